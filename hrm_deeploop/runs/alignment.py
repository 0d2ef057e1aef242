"""Visit alignment kappa of checkpoints, on training batches, and the exponent that it predicts.

python scripts/alignment.py run=runs/arc1-mini-deeploop-seed0
python scripts/alignment.py run=runs/arc1-mini-deeploop-seed0 checkpoint=all
python scripts/alignment.py run=[runs/L2,runs/L4,runs/L8]     # gamma over L_cycles, and p*
python scripts/alignment.py run=[runs/compare2,runs/compare6] arm=deeploop   # runs of comparisons

kappa = 1: the visits of a shared sublayer are unrelated; kappa = R: all push the same way, equally
strongly. The cosine between visits' gradients tells the direction apart from the strength. Over
runs of several depths kappa_L ~ R^gamma, and eq. 20 stays bounded for p >= p* = (1 + gamma) / 4.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from tqdm import tqdm

from eval.compare import config_difference
from eval.tables import Table
from hrm_deeploop.alignment import ModuleAlignment, align_segment
from hrm_deeploop.config import LoopedConfig, StrictConfig
from hrm_deeploop.device import DeviceName, choose_device
from hrm_deeploop.runs.build import build_network, build_table, load_table, to_batch
from hrm_deeploop.runs.checkpoint import load_into
from hrm_deeploop.runs.config import RESUMABLE_KEYS, RunConfig
from hrm_deeploop.runs.data import build_probe, load_data
from hrm_deeploop.runs.evaluation import Count
from hrm_deeploop.runs.report import COMPARISON_FILE
from hrm_deeploop.scaling import stability_bound

# Keys in which runs of several depths may differ for gamma; total_steps at equal FLOPs.
MAY_DIFFER = {"model.L_cycles", "model.rounds", "total_steps", "seed", "optim.lr"}


class AlignmentOptions(StrictConfig):
    """Keys of ``configs/alignment.yaml``."""

    run: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    arm: str | None  # of comparisons: their runs of this arm
    checkpoint: int | str
    rows: Count
    batches: Count
    segment: Count
    device: DeviceName
    out: str | None


def measure_checkpoint(
    config: RunConfig, checkpoint: Path, options: AlignmentOptions
) -> dict[str, Any]:
    """kappa of every module at a checkpoint: means over batches, and the bound that it gives."""
    max_steps = config.model.halt_max_steps
    if options.segment > max_steps:
        raise ValueError(
            f"segment={options.segment}: allowed are 1 to {max_steps}, the run's "
            "model.halt_max_steps"
        )
    device = choose_device(options.device)
    data = load_data(config, checkpoint)
    stream = build_probe(config, data, options.rows)
    # Flash has no forward-mode derivatives.
    network = build_network(config.model_copy(update={"attention": "auto"}), device, torch.float32)
    load_into(network, checkpoint, "ema" if config.optim.ema_rate else "model")
    table = build_table(config, data.puzzles, device)
    load_table(table, data, checkpoint)
    found: list[dict[Any, ModuleAlignment]] = []
    for number in tqdm(range(options.batches), desc=f"align {checkpoint.name}", unit="batch"):
        (part,) = stream.batches(number)
        batch = to_batch(part, device)
        vectors = table.lookup(batch.puzzle_ids)
        found.append(align_segment(network, batch, vectors, options.segment))
    modules = list(network.stacks)
    kappa = {m: float(np.mean([one[m].kappa for one in found])) for m in modules}
    bound = stability_bound(network.scaling, network.visits, kappa)
    looped = isinstance(config.model, LoopedConfig)
    return {
        "run": config.run_dir,
        "checkpoint": checkpoint.name,
        "rule": config.scaling.rule,
        "modules": modules,
        "revisited": "loop" if looped else "L",
        **{f"rounds_{m}": found[0][m].rounds for m in modules},
        **{f"kappa_{m}": kappa[m] for m in modules},
        **{
            f"kappa_{m}_sd": float(np.std([one[m].kappa for one in found], ddof=1))
            if len(found) > 1
            else None
            for m in modules
        },
        **{
            f"{name}_{m}": float(np.mean([getattr(one[m], name) for one in found]))
            for name in ("cosine", "gradient")
            for m in modules
        },
        **{
            f"ratio_{m}": network.scaling[m].beta / network.scaling[m].alpha for m in modules
        },  # beta / alpha
        "bound": {**bound, "total": sum(bound.values())},
        "sublayers": {
            m: {
                sublayer.name: {
                    name: float(np.mean([getattr(one[m].sublayers[i], name) for one in found]))
                    for name in ("kappa", "cosine", "gradient", "response")
                }
                for i, sublayer in enumerate(found[0][m].sublayers)
            }
            for m in modules
        },
    }


def _row_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Checkpoints by the last parts of their paths, as many as tell them apart."""
    paths = [(*Path(row["run"]).parts, row["checkpoint"]) for row in rows]
    longest = max(map(len, paths))
    for num_parts in range(3, longest + 1):
        names = ["/".join(path[-num_parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return ["/".join(path) for path in paths]


def alignment_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """A row per checkpoint, and its sublayers where there is one checkpoint alone."""
    rows = result["rows"]
    modules = list(dict.fromkeys(m for row in rows for m in row["modules"]))

    names = _row_names(rows)

    def table(caption: str, columns: Sequence[str], entries: Any, last: str | None = None) -> Table:
        """``columns`` of every module, and of a row as a whole ``last``."""

        def line(row: Mapping[str, Any]) -> list[str]:
            found = [
                entry
                for m in modules
                for entry in (entries(row, m) if m in row["modules"] else [""] * len(columns))
            ]
            return found if last is None else [*found, f"{row['bound']['total']:.4f}"]

        titles = [column.replace("*", m) for m in modules for column in columns]
        return Table(
            caption,
            titles if last is None else [*titles, last],
            {name: line(row) for name, row in zip(names, rows, strict=True)},
        )

    tables = {
        "kappa": table(
            "visit alignment: kappa (at most R) ± sd over batches; mean cosine between visits' G "
            "(1 aligned, 0 unrelated); |sum G| / sum |G|",
            ["R_*", "kappa_*", "cosine *", "|sum G|/sum|G| *"],
            lambda row, m: [
                f"{row[f'rounds_{m}']}",
                f"{row[f'kappa_{m}']:.3f}{_spread(row[f'kappa_{m}_sd'])}",
                f"{row[f'cosine_{m}']:.3f}",
                f"{row[f'gradient_{m}']:.3f}",
            ],
        ),
        "bound": table(
            "eq. 20: J R kappa (beta / alpha)^2 of each module, and their sum",
            ["beta/alpha *", "eq. 20 *"],
            lambda row, m: [f"{row[f'ratio_{m}']:.4f}", f"{row['bound'][m]:.4f}"],
            "eq. 20 sum",
        ),
    }
    if result["gamma"] is not None:
        tables["exponent"] = Table(
            "kappa ~ R^gamma of the revisited module, and the threshold p* = (1 + gamma) / 4",
            ["gamma", "p*"],
            {"": [f"{result['gamma']:.2f}", f"{result['p_star']:.2f}"]},
        )
    if len(rows) == 1:
        tables["sublayers"] = Table(
            "sublayers",
            ["kappa", "cosine of G", "|sum G|/sum|G|", "|sum U|/sum|U|"],
            {
                f"{module} {name}": [
                    f"{values[key]:.3f}" for key in ("kappa", "cosine", "gradient", "response")
                ]
                for module in modules
                for name, values in rows[0]["sublayers"][module].items()
            },
        )
    return tables


def _spread(sd: float | None) -> str:
    return "" if sd is None else f" ±{sd:.3f}"


def _other_differences(configs: list[RunConfig]) -> list[str]:
    """Keys beside depth, length, seed and learning rate in which the runs differ."""
    values = {str(number): config.model_dump() for number, config in enumerate(configs)}
    may_differ = RESUMABLE_KEYS | MAY_DIFFER
    return sorted(config_difference(values).keys() - may_differ)


def _runs(options: AlignmentOptions) -> list[Path]:
    """The run directories: those given, or those of an arm of the comparisons given.

    Raises:
        ValueError: if one is no comparison, or does not have the arm.
    """
    if options.arm is None:
        return [Path(run) for run in options.run]
    found = []
    for run in map(Path, options.run):
        path = run / COMPARISON_FILE
        if not path.is_file():
            raise ValueError(f"arm={options.arm}: {run} is no comparison, it has no {path.name}")
        arms = json.loads(path.read_text(encoding="utf-8"))["arms"]
        if options.arm not in arms:
            raise ValueError(f"arm={options.arm}: {run} has {', '.join(arms)}")
        # The comparison may have been moved since.
        found += [run / options.arm / Path(d).name for d in arms[options.arm]["run_dirs"]]
    return found
