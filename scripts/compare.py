"""Train arms that differ in declared overrides alone, evaluate them and print both ladders.

    hrm-deeploop compare experiment=mini
    hrm-deeploop compare experiment=mini arms=[vanilla,deepnorm,deeploop] seeds=[0,1,2]
    hrm-deeploop compare experiment=mini 'grid={optim.lr:[5e-4,1e-3,2e-3]}' data.validation=0.5
    hrm-deeploop compare experiment=mini '+arms.mine={scaling:deeploop,optim.lr:2e-3}'

Cells (arm x point of the grid x seed) that are already in run_dir are used as they are. With a grid
each arm takes the point that solves most held-out demonstrations, by its first seed; test pairs are
predicted for the chosen points alone. Cells run side by side: workers=auto takes every core or GPU
of this machine, cluster=ray those of several (docs/cluster.md).
"""

from pathlib import Path
from typing import Any

from eval.comparison import Comparison
from hrm_deeploop.runs.checking import to_yaml
from hrm_deeploop.runs.comparison import plan_comparison
from hrm_deeploop.runs.compose import Composer
from hrm_deeploop.runs.report import FILES, run_comparison
from scripts import cli

KEYS_OF = ["compare", "train"]


def main(overrides: list[str]) -> dict[str, Any]:
    composer = Composer("compare", overrides)
    output = cli.take_output(composer.values())
    plan = plan_comparison(composer)
    beside = plan.options.beside
    other = None if beside is None else Comparison.load(Path(beside))
    cell = plan.first_cell
    cli.show_config(
        f"# cell {cell.title}; the others differ as listed below\n{to_yaml(cell.config)}"
    )
    comparison = run_comparison(plan)
    if output == "text":
        comparison.show()
        if other is not None:
            print(f"beside, from {beside}: {other}")
        print(f"written: {', '.join(FILES)} in {plan.options.report_dir}/")
    return {**comparison.to_values(), "output": output}


if __name__ == "__main__":
    cli.launch(main, "compare", __doc__, keys_of=KEYS_OF)
