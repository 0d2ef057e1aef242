"""Train arms that differ in declared overrides alone, evaluate them and print both ladders.

    python scripts/compare.py experiment=mini
    python scripts/compare.py experiment=mini arms=[vanilla,deepnorm,deeploop] total_steps=3000
    python scripts/compare.py experiment=mini '+arms.mine={scaling:deeploop,optim.lr:2e-3}'

Arms that are already trained in run_dir are continued or used as they are.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from eval.compare import check_declared, config_difference, format_difference
from eval.plots import plot_ladders
from eval.tables import format_ladders
from hrm_deeploop.device import Ranks, choose_device
from scripts import cli
from scripts.evaluation import Choices, Evaluation
from scripts.run_config import RunConfig, to_yaml, validate
from scripts.train import train

COMPARISON_FILE = "comparison.json"
PLOT_FILE = "ladder.png"
RESERVED = {"run_dir", "resume", "output", "arms"}  # the comparison's own business
ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def arm_configs(
    overrides: list[str], arms: dict[str, dict[str, Any]], run_dir: Path
) -> dict[str, RunConfig]:
    """The full configuration of each arm: ``overrides``, then its own keys and values.

    Raises:
        ValueError: if an arm's name can't be a directory's, or there are fewer than two.
    """
    if len(arms) < 2:
        raise ValueError(f"arms={list(arms)}: a comparison needs at least two")
    configs = {}
    for name, own in arms.items():
        if not ARM_NAME.fullmatch(name):
            raise ValueError(f"arms.{name}: a name has letters, digits, '_', '-' and '.' only")
        if not isinstance(own, dict):
            raise ValueError(
                f"arms.{name}={own}: expected keys and values, as {{scaling: vanilla}}"
            )
        reserved = sorted(RESERVED & own.keys())
        if reserved or not own:
            raise ValueError(
                f"arms.{name}: {', '.join(reserved) or 'no key'} given; an arm declares keys of a "
                f"run other than {', '.join(sorted(RESERVED))}"
            )
        own_overrides = [f"{key}={json.dumps(value)}" for key, value in own.items()]
        values = cli.compose_config("compare", [*overrides, *own_overrides])
        cli.take_output(values)
        values.pop("arms", None)
        place = {"run_dir": str(run_dir / name), "resume": "auto"}
        configs[name] = validate(RunConfig, {**values, **place})
    return configs


def main(overrides: list[str]) -> dict[str, Any]:
    values = cli.compose_config("compare", overrides)
    output = cli.take_output(values)
    if not isinstance(values["run_dir"], str):
        raise ValueError(f"run_dir={values['run_dir']}: expected a path")
    run_dir, arms = Path(values["run_dir"]), values.get("arms") or {}
    configs = arm_configs(overrides, arms, run_dir)
    difference = config_difference({name: c.model_dump() for name, c in configs.items()})
    check_declared(difference, declared=arms)
    first = next(iter(configs.values()))
    cli.show_config(
        f"# arm {next(iter(arms))}; the others differ as listed below\n{to_yaml(first)}"
    )
    print(format_difference(difference), file=sys.stderr)

    results, ladders = {}, {}
    device = choose_device(first.device)
    for number, (name, config) in enumerate(configs.items(), start=1):
        title = f"{name} ({number}/{len(configs)})"
        checkpoint, stopped_by = train(config, Ranks(device=device), title=f"train {title}")
        if stopped_by is not None:
            print(f"stopped in {checkpoint}; the same command goes on", file=sys.stderr)
            return {"run_dir": str(run_dir), "exit_status": 128 + stopped_by}
        evaluation = Evaluation(config, checkpoint, Ranks(device=device), Choices())
        stopped_by = evaluation.predict(f"predict {title}")
        if stopped_by is not None:
            print("stopped; the same command goes on", file=sys.stderr)
            return {"run_dir": str(run_dir), "exit_status": 128 + stopped_by}
        ladders[name] = evaluation.results(None, name)
        results[name] = {
            "overrides": arms[name],
            "run_dir": config.run_dir,
            "evaluation": str(evaluation.directory),
            "ladder": ladders[name],
        }
    comparison = {"arms": results, "config_difference": difference}
    path = run_dir / COMPARISON_FILE
    path.write_text(json.dumps(comparison, indent=2) + "\n", encoding="utf-8")
    plot_ladders(ladders, run_dir / PLOT_FILE)
    if output == "text":
        print(format_difference(difference), format_ladders(ladders), sep="\n\n")
        print(f"written: {path} and {run_dir / PLOT_FILE}")
    return {**comparison, "output": output}


if __name__ == "__main__":
    cli.launch(main, "compare", __doc__, keys_of=["compare", "train"])
