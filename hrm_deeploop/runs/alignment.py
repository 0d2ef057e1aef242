"""Visit alignment kappa of checkpoints, and the exponent of kappa over depths."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveInt
from tqdm import tqdm

from eval.compare import config_difference
from eval.comparison import Comparison
from eval.record import Record
from eval.tables import Table, format_html, format_text
from hrm_deeploop.alignment import ModuleAlignment, align_segment, fit_exponent
from hrm_deeploop.config import StrictConfig
from hrm_deeploop.device import DeviceName, choose_device
from hrm_deeploop.runs.build import build_network, build_table, load_table, to_batch
from hrm_deeploop.runs.checkpoint import list_checkpoints, load_into
from hrm_deeploop.runs.choices import DataPaths
from hrm_deeploop.runs.comparison import check_distinct
from hrm_deeploop.runs.config import RESUMABLE_KEYS, RunConfig, load_config
from hrm_deeploop.runs.data import build_probe, load_data
from hrm_deeploop.runs.directory import CHECKPOINTS, find_checkpoint
from hrm_deeploop.runs.report import COMPARISON_FILE
from hrm_deeploop.scaling import LayerGains, stability_bound

# Keys in which runs of several depths may differ for gamma; total_steps at equal FLOPs.
MAY_DIFFER = {"total_steps", "seed", "optim.lr"}


class AlignmentOptions(StrictConfig):
    """Keys of ``configs/alignment.yaml``."""

    run: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    arm: str | None  # of comparisons: their runs of this arm
    checkpoint: int | str
    rows: PositiveInt
    batches: PositiveInt
    segment: PositiveInt
    data: DataPaths = DataPaths()
    device: DeviceName
    out: Annotated[str, Field(min_length=1)] | None


class SublayerRow(Record):
    """One sublayer, means over batches; see :class:`~hrm_deeploop.alignment.SublayerAlignment`."""

    kappa: float
    cosine: float
    gradient: float
    response: float


class ModuleRow(Record):
    """One module at a checkpoint, means over batches."""

    rounds: int  # R_g
    kappa: float
    kappa_sd: float | None  # over batches; None of one
    cosine: float
    gradient: float
    ratio: float  # beta / alpha
    bound: float  # its term of eq. 20
    sublayers: dict[str, SublayerRow]


class AlignmentRow(Record):
    """One checkpoint."""

    run: str
    checkpoint: str
    rule: str  # of scaling
    revisited: str  # the module whose visits the depth counts
    modules: dict[str, ModuleRow]

    @property
    def bound(self) -> float:
        """The sum of eq. 20."""
        return sum(module.bound for module in self.modules.values())


class AlignmentResult(Record):
    """What ``out=`` writes: checkpoints, and the exponent of kappa over their depths."""

    rows: tuple[AlignmentRow, ...]
    gamma: float | None
    p_star: float | None
    why_no_gamma: str | None  # of several depths that can't be compared

    def tables(self) -> dict[str, Table]:
        """Return a row per checkpoint, and its sublayers where there is one checkpoint alone."""
        return alignment_tables(self)

    def show(self) -> None:
        """Print the tables."""
        print(format_text(self.tables().values()))
        if self.why_no_gamma is not None:
            print(f"no gamma: {self.why_no_gamma}")

    def _repr_html_(self) -> str:
        return format_html(self.tables().values())

    def __repr__(self) -> str:
        kappas = ", ".join(
            f"{name} {module.kappa:.2f}"
            for row in self.rows
            for name, module in row.modules.items()
        )
        return f"AlignmentResult({len(self.rows)} checkpoints, kappa: {kappas})"


def measure_alignment_of(options: AlignmentOptions) -> AlignmentResult:
    """Measure kappa at checkpoints of runs, and write it where ``out`` says.

    Raises:
        ValueError: if a run, a checkpoint or the segment is not there.
    """
    check_distinct("run", options.run)
    if options.out is not None and not Path(options.out).absolute().parent.is_dir():
        raise ValueError(f"out={options.out}: there is no folder {Path(options.out).parent}")
    configs = {}
    for run in _runs(options):
        config = load_config(run)
        configs[run] = config.changed(run_dir=str(run), data=options.data.move(config.data))
    rows = []
    for run, config in configs.items():
        which = "last" if options.checkpoint == "all" else options.checkpoint
        checkpoints = [find_checkpoint(run, which)]
        if options.checkpoint == "all":
            checkpoints = list(list_checkpoints(run / CHECKPOINTS).values())
        rows += [measure_checkpoint(config, checkpoint, options) for checkpoint in checkpoints]
    others = _other_differences(list(configs.values()))
    revisited = [row.modules[row.revisited] for row in rows]
    rounds, kappas = [m.rounds for m in revisited], [m.kappa for m in revisited]
    gamma, p_star, why_not = None, None, None
    if len(set(rounds)) > 1:
        if others:
            why_not = f"the runs differ in {', '.join(others)}"
        elif options.checkpoint == "all":
            why_not = "checkpoint=all takes several steps of a run"
        else:
            gamma, p_star = fit_exponent(rounds, kappas)
    result = AlignmentResult(rows=tuple(rows), gamma=gamma, p_star=p_star, why_no_gamma=why_not)
    if options.out is not None:
        result.save(Path(options.out))
    return result


def measure_checkpoint(
    config: RunConfig, checkpoint: Path, options: AlignmentOptions
) -> AlignmentRow:
    """Measure kappa of every module at a checkpoint, over batches, and the bound that it gives."""
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
    network = build_network(config.changed(attention="auto"), device, torch.float32)
    load_into(network, checkpoint, config.optim.predicting_weights)
    table = build_table(config, data.puzzles, device)
    load_table(table, data, checkpoint)
    found: list[dict[str, ModuleAlignment]] = []
    for number in tqdm(range(options.batches), desc=f"align {checkpoint.name}", unit="batch"):
        (part,) = stream.batches(number)
        batch = to_batch(part, device)
        vectors = table.lookup(batch.puzzle_ids)
        found.append(align_segment(network, batch, vectors, options.segment))
    kappa = {m: float(np.mean([one[m].kappa for one in found])) for m in network.stacks}
    bound = stability_bound(network.scaling, network.visits, kappa)
    return AlignmentRow(
        run=config.run_dir,
        checkpoint=checkpoint.name,
        rule=config.scaling.rule,
        revisited=config.kind.revisited,
        modules={
            m: _module_row([one[m] for one in found], network.scaling[m], bound[m])
            for m in network.stacks
        },
    )


def _module_row(found: Sequence[ModuleAlignment], gains: LayerGains, bound: float) -> ModuleRow:
    """Average a module's measurements over batches."""

    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    kappas = [one.kappa for one in found]
    return ModuleRow(
        rounds=found[0].rounds,
        kappa=mean(kappas),
        kappa_sd=float(np.std(kappas, ddof=1)) if len(found) > 1 else None,
        cosine=mean(one.cosine for one in found),
        gradient=mean(one.gradient for one in found),
        ratio=_ratio(gains),
        bound=bound,
        sublayers={
            sublayer.name: SublayerRow(
                **{
                    name: mean(getattr(one.sublayers[i], name) for one in found)
                    for name in SublayerRow.model_fields
                }
            )
            for i, sublayer in enumerate(found[0].sublayers)
        },
    )


def _ratio(gains: LayerGains) -> float:
    """Return beta / alpha, the mean over layers where they differ."""
    return float(np.mean([one.beta / one.alpha for one in gains]))


def _row_names(rows: Sequence[AlignmentRow]) -> list[str]:
    """Checkpoints by the last parts of their paths, as many as tell them apart."""
    paths = [(*Path(row.run).parts, row.checkpoint) for row in rows]
    longest = max(map(len, paths))
    for num_parts in range(3, longest + 1):
        names = ["/".join(path[-num_parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return ["/".join(path) for path in paths]


def alignment_tables(result: AlignmentResult) -> dict[str, Table]:
    """Return a row per checkpoint, and its sublayers where there is one checkpoint alone."""
    rows, names = result.rows, _row_names(result.rows)
    modules = list(dict.fromkeys(m for row in rows for m in row.modules))

    def table(
        caption: str,
        columns: Sequence[str],
        entries: Callable[[ModuleRow], list[str]],
        last: str | None = None,
    ) -> Table:
        """Make ``columns`` of every module, and of a row as a whole ``last``."""

        def line(row: AlignmentRow) -> list[str]:
            found = [
                entry
                for m in modules
                for entry in (entries(row.modules[m]) if m in row.modules else [""] * len(columns))
            ]
            return found if last is None else [*found, f"{row.bound:.4f}"]

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
            lambda m: [
                f"{m.rounds}",
                f"{m.kappa:.3f}{_spread(m.kappa_sd)}",
                f"{m.cosine:.3f}",
                f"{m.gradient:.3f}",
            ],
        ),
        "bound": table(
            "eq. 20: J R kappa (beta / alpha)^2 of each module, and their sum",
            ["beta/alpha *", "eq. 20 *"],
            lambda m: [f"{m.ratio:.4f}", f"{m.bound:.4f}"],
            "eq. 20 sum",
        ),
    }
    if result.gamma is not None:
        tables["exponent"] = Table(
            "kappa ~ R^gamma of the revisited module, and the threshold p* = (1 + gamma) / 4",
            ["gamma", "p*"],
            {"": [f"{result.gamma:.2f}", f"{result.p_star:.2f}"]},
        )
    if len(rows) == 1:
        tables["sublayers"] = Table(
            "sublayers",
            ["kappa", "cosine of G", "|sum G|/sum|G|", "|sum U|/sum|U|"],
            {
                f"{m} {name}": [f"{value:.3f}" for value in dict(sublayer).values()]
                for m, module in rows[0].modules.items()
                for name, sublayer in module.sublayers.items()
            },
        )
    return tables


def _spread(sd: float | None) -> str:
    return "" if sd is None else f" ±{sd:.3f}"


def _other_differences(configs: list[RunConfig]) -> list[str]:
    """Keys beside depth, length, seed and learning rate in which the runs differ."""
    values = {str(number): config.model_dump() for number, config in enumerate(configs)}
    may_differ = RESUMABLE_KEYS | MAY_DIFFER | {f"model.{c.kind.depth_key}" for c in configs}
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
        arms = Comparison.load(path).arms
        if options.arm not in arms:
            raise ValueError(f"arm={options.arm}: {run} has {', '.join(arms)}")
        # The comparison may have been moved since.
        found += [run / options.arm / Path(d).name for d in arms[options.arm].run_dirs]
    return found
