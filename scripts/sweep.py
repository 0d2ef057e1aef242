"""Train at several exponents p and depths (L_cycles or rounds), and show where that is stable.

python scripts/sweep.py experiment=mini seeds=[0,1,2]
python scripts/sweep.py experiment=mini which=L depths=[2,4,8] optim.lr=4e-3
python scripts/sweep.py experiment=mini exponents=[0.25,0.5] depths=[1,2,4,8] seeds=[0,1,2]
python scripts/sweep.py experiment=mini model=looped depths=[3]

Per point: the share of seeds that train, and the loss of those that do; per depth the boundary,
the least exponent from which on all seeds train. With alignment.every also kappa at the end of
training, its exponent gamma over depths at each p, and p* = (1 + gamma) / 4, where the theory has
the boundary. Finished cells are read.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch

from eval.plots import plot_sweep
from eval.tables import format_markdown, format_text
from hrm_deeploop.device import Ranks, choose_device
from hrm_deeploop.runs.build import build_network
from hrm_deeploop.runs.cells import StoppedError
from hrm_deeploop.runs.comparison import (
    CompareOptions,
    Plan,
    check_distinct,
    parse_share,
    run_cells,
    wait_for_cells,
)
from hrm_deeploop.runs.compose import compose_config
from hrm_deeploop.runs.config import to_yaml, validate
from hrm_deeploop.runs.sweep import (
    DEPTH_KEYS,
    MARKDOWN_FILE,
    OWN_KEYS,
    PLOT_FILE,
    REVISITED,
    SWEEP_FILE,
    SweepOptions,
    _arm_name,
    find_boundaries,
    summarize,
    sweep_arms,
    sweep_tables,
)
from scripts import cli


def main(overrides: list[str]) -> dict[str, Any]:
    values = compose_config("sweep", overrides)
    output = cli.take_output(values)
    own = {key: values[key] for key in (*OWN_KEYS, "run_dir")}
    own["seeds"] = own["seeds"] or [values["seed"]]
    model = values["model"]
    depth_key = DEPTH_KEYS.get(str(model.get("name")), "L_cycles")
    own["depths"] = own["depths"] or [model[depth_key]]
    if isinstance(own["exponents"], list):  # 0 is an integer to Hydra
        own["exponents"] = [float(p) if isinstance(p, int) else p for p in own["exponents"]]
    options: SweepOptions = validate(SweepOptions, own)
    if model.get("name") == "looped" and options.which != "both":
        raise ValueError(f"which={options.which}: a looped model has one loop; allowed is both")
    for key in ("exponents", "depths", "seeds"):
        check_distinct(key, getattr(options, key))
    compared = CompareOptions(
        arms=sweep_arms(options, depth_key),
        baseline=None,
        seeds=options.seeds,
        grid={},
        budget="steps",
        share=options.share,
        run_dir=options.run_dir,
        report_dir=options.run_dir,
    )
    comparison = Plan(compared, overrides, config_name="sweep", own_keys=OWN_KEYS)
    cells = comparison.final_cells(comparison.choose())
    share, run_dir = parse_share(options.share), Path(options.run_dir)
    others = f"the others differ in p and {depth_key}"
    cli.show_config(f"# cell {cells[0].title}; {others}\n{to_yaml(cells[0].config)}")
    try:
        run_cells(cells, share, Ranks(device=choose_device(cells[0].config.device)), test=False)
    except StoppedError as stopped:
        print("stopped; the same command goes on", file=sys.stderr)
        return {"exit_status": 128 + stopped.number}
    if share[0]:
        print("this share is done; share 0 writes the report", file=sys.stderr)
        return {}
    found = wait_for_cells(cells, test=False)
    rounds = {
        depth: build_network(cell.config, torch.device("meta")).visits[REVISITED[depth_key]].rounds
        for depth in options.depths
        for cell in [next(c for c in cells if c.arm == _arm_name(options.exponents[0], depth))]
    }
    rows = summarize(options, found, rounds, REVISITED[depth_key])
    sweep = {"which": options.which, "other": options.other, "depth_key": depth_key, "rows": rows}
    tables = sweep_tables(sweep).values()
    (run_dir / SWEEP_FILE).write_text(json.dumps(sweep, indent=2) + "\n", encoding="utf-8")
    (run_dir / MARKDOWN_FILE).write_text(format_markdown(tables), encoding="utf-8")
    plot_sweep(rows, find_boundaries(rows), depth_key, run_dir / PLOT_FILE)
    if output == "text":
        print(format_text(tables))
        print(f"written: {SWEEP_FILE}, {MARKDOWN_FILE} and {PLOT_FILE} in {run_dir}/")
    return {"rows": rows, "output": output}


if __name__ == "__main__":
    cli.launch(main, "sweep", __doc__, keys_of=["sweep", "train"])
