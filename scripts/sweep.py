"""Train at several exponents p and depths (L_cycles or rounds), and show where that is stable.

    hrm-deeploop sweep experiment=mini seeds=[0,1,2]
    hrm-deeploop sweep experiment=mini which=L depths=[2,4,8] optim.lr=4e-3
    hrm-deeploop sweep experiment=mini exponents=[0.25,0.5] depths=[1,2,4,8] seeds=[0,1,2]
    hrm-deeploop sweep experiment=mini model=looped depths=[3]

Per point: the share of seeds that train, and the loss of those that do; per depth the boundary,
the least exponent from which on all seeds train. With alignment.every also kappa at the end of
training, its exponent gamma over depths at each p, and p* = (1 + gamma) / 4, where the theory has
the boundary. Finished cells are read; workers= and cluster= are those of compare.
"""

from typing import Any

from hrm_deeploop.runs.checking import to_yaml
from hrm_deeploop.runs.compose import Composer
from hrm_deeploop.runs.sweep import FILES, plan_sweep, run_sweep
from scripts import cli

KEYS_OF = ["sweep", "train"]


def main(overrides: list[str]) -> dict[str, Any]:
    composer = Composer("sweep", overrides)
    output = cli.take_output(composer.values())
    options, plan = plan_sweep(composer)
    cell = plan.first_cell
    others = f"the others differ in p and {cell.config.kind.depth_key}"
    cli.show_config(f"# cell {cell.title}; {others}\n{to_yaml(cell.config)}")
    sweep = run_sweep(options, plan)
    if output == "text":
        sweep.show()
        print(f"written: {', '.join(FILES)} in {options.run_dir}/")
    return {**sweep.to_values(), "output": output}


if __name__ == "__main__":
    cli.launch(main, "sweep", __doc__, keys_of=KEYS_OF)
