"""Train arms that differ in declared overrides alone, evaluate them and print both ladders.

    python scripts/compare.py experiment=mini
    python scripts/compare.py experiment=mini arms=[vanilla,deepnorm,deeploop] seeds=[0,1,2]
    python scripts/compare.py experiment=mini 'grid={optim.lr:[5e-4,1e-3,2e-3]}' data.validation=0.5
    python scripts/compare.py experiment=mini '+arms.mine={scaling:deeploop,optim.lr:2e-3}'

Cells (arm x point of the grid x seed) that are already in run_dir are used as they are. With a grid
each arm takes the point that solves most held-out demonstrations, by its first seed; test pairs are
predicted for the chosen points alone. Several processes share the cells with share=0/2
and share=1/2 (a SLURM array), or under torchrun.
"""

import sys
from pathlib import Path
from typing import Any

from hrm_deeploop.device import Ranks, choose_device
from hrm_deeploop.runs.cells import StoppedError
from hrm_deeploop.runs.comparison import (
    OWN_KEYS,
    CompareOptions,
    Plan,
    check_arm_files,
    parse_share,
    run_cells,
    wait_for_cells,
)
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import to_yaml, validate
from hrm_deeploop.runs.report import (
    COMPARISON_FILE,
    CURVES_PLOT,
    HTML_FILE,
    LADDER_PLOT,
    MARKDOWN_FILE,
    summarize,
    write_comparison,
)
from scripts import cli


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("compare", overrides)
    output = cli.take_output(values)
    own = {key: values[key] for key in (*OWN_KEYS, "run_dir")}
    own |= {key: own[key] or {} for key in ("arms", "grid")}
    if own["seeds"] is None:
        own["seeds"] = [values["seed"]]
    check_arm_files(overrides)
    options: CompareOptions = validate(CompareOptions, own)
    if len(options.arms) < 2:
        raise ValueError(f"arms={list(options.arms)}: a comparison needs at least two")
    share, report_dir = parse_share(options.share), Path(options.report_dir)
    comparison = Plan(options, overrides)
    cells = comparison.grid_cells() or comparison.final_cells(comparison.choose())
    first = cells[0]
    cli.show_config(
        f"# cell {first.title}; the others differ as listed below\n{to_yaml(first.config)}"
    )
    ranks = Ranks(device=choose_device(first.config.device))
    try:
        run_cells(comparison.grid_cells(), share, ranks, test=False)
        grid = wait_for_cells(comparison.grid_cells(), test=False)
        chosen = comparison.choose()
        run_cells(comparison.final_cells(chosen), share, ranks, test=True)
    except StoppedError as stopped:
        print("stopped; the same command goes on", file=sys.stderr)
        return {"exit_status": 128 + stopped.number}
    if share[0]:
        print("this share is done; share 0 writes the report", file=sys.stderr)
        return {}
    final = wait_for_cells(comparison.final_cells(chosen), test=True)
    summary = summarize(comparison, chosen, grid, final)
    unmeasured = [name for name, arm in summary["arms"].items() if not arm["alignment"]]
    if first.config.alignment.every and unmeasured:
        print(
            f"warning: alignment.every={first.config.alignment.every}: finished cells of "
            f"{', '.join(unmeasured)} have no measurements and are not run again",
            file=sys.stderr,
        )
    text = write_comparison(summary, report_dir)
    if output == "text":
        print(text)
        names = (COMPARISON_FILE, MARKDOWN_FILE, HTML_FILE, LADDER_PLOT, CURVES_PLOT)
        print(f"written: {', '.join(names)} in {report_dir}/")
    return {**summary, "output": output}


if __name__ == "__main__":
    cli.launch(main, "compare", __doc__, keys_of=["compare", "train"])
