"""Visit alignment kappa of checkpoints, on training batches, and the exponent that it predicts.

hrm-deeploop alignment run=runs/arc1-mini-deeploop-seed0
hrm-deeploop alignment run=runs/arc1-mini-deeploop-seed0 checkpoint=all
hrm-deeploop alignment run=[runs/L2,runs/L4,runs/L8]     # gamma over L_cycles, and p*
hrm-deeploop alignment run=[runs/compare2,runs/compare6] arm=deeploop   # runs of comparisons

kappa = 1: the visits of a shared sublayer are unrelated; kappa = R: all push the same way, equally
strongly. The cosine between visits' gradients tells the direction apart from the strength. Over
runs of several depths kappa_L ~ R^gamma, and eq. 20 stays bounded for p >= p* = (1 + gamma) / 4.
"""

import json
from pathlib import Path
from typing import Any

from eval.tables import format_text
from hrm_deeploop.alignment import fit_exponent
from hrm_deeploop.runs.alignment import (
    AlignmentOptions,
    _other_differences,
    _runs,
    alignment_tables,
    measure_checkpoint,
)
from hrm_deeploop.runs.checkpoint import list_checkpoints
from hrm_deeploop.runs.comparison import check_distinct
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import load_config, to_yaml, validate
from hrm_deeploop.runs.directory import CHECKPOINTS, find_checkpoint
from scripts import cli

KEYS_OF = ["alignment"]


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("alignment", overrides)
    output = cli.take_output(values)
    if isinstance(values["run"], str):
        values["run"] = [values["run"]]
    check_distinct("run", values["run"] or [])
    options: AlignmentOptions = validate(AlignmentOptions, values)
    cli.show_config(to_yaml(options))
    if options.out is not None and not Path(options.out).absolute().parent.is_dir():
        raise ValueError(f"out={options.out}: there is no folder {Path(options.out).parent}")
    configs = {run: load_config(run) for run in _runs(options)}
    others = _other_differences(list(configs.values()))
    rows = []
    for run in configs:
        config = configs[run].model_copy(update={"run_dir": str(run)})
        which = "last" if options.checkpoint == "all" else options.checkpoint
        checkpoints = [find_checkpoint(run, which)]
        if options.checkpoint == "all":
            checkpoints = list(list_checkpoints(run / CHECKPOINTS).values())
        rows += [measure_checkpoint(config, checkpoint, options) for checkpoint in checkpoints]
    result: dict[str, Any] = {"rows": rows, "gamma": None, "p_star": None}
    revisited = [
        (row[f"rounds_{m}"], row[f"kappa_{m}"]) for row in rows for m in [row["revisited"]]
    ]
    rounds, kappas = zip(*revisited, strict=True)
    why_not = None
    if others:
        why_not = f"the runs differ in {', '.join(others)}"
    elif options.checkpoint == "all":
        why_not = "checkpoint=all takes several steps of a run"
    if len(set(rounds)) > 1 and why_not is None:
        result["gamma"], result["p_star"] = fit_exponent(rounds, kappas)
    if options.out is not None:
        Path(options.out).write_text(json.dumps(result) + "\n", encoding="utf-8")
    if output == "text":
        print(format_text(alignment_tables(result).values()))
        if len(set(rounds)) > 1 and why_not is not None:
            print(f"no gamma: {why_not}")
    return {**result, "output": output}


if __name__ == "__main__":
    cli.launch(main, "alignment", __doc__, keys_of=KEYS_OF)
