"""Say what a run is before it is paid for: visits, gains, parameters, puzzles, steps.

python scripts/describe.py experiment=arc1
python scripts/describe.py experiment=arc1 scaling=deepnorm output=json
"""

from typing import Any

import torch

from hrm_deeploop.scaling import stability_bound
from scripts import cli
from scripts.assemble import build_network, load_data, load_training_set
from scripts.run_config import RunConfig, to_yaml, validate


def describe(config: RunConfig) -> dict[str, Any]:
    """The facts of a run; counts are visits of sublayers (M) or blocks (N)."""
    data = load_data(config)
    network = build_network(config, torch.device("meta"))
    visits, scaling, model = network.visits, network.scaling, config.model
    num_core = sum(parameter.numel() for parameter in network.parameters())
    num_table = len(data.puzzles) * model.puzzle_emb_ndim
    bounds = {
        name: stability_bound(
            scaling, visits, H_layers=model.H_layers, L_layers=model.L_layers, aligned=aligned
        )
        for name, aligned in (("kappa_1", False), ("kappa_R", True))
    }
    examples = sum(map(len, load_training_set(config, data)))
    return {
        "M_g": visits.M_g,
        "N_g": visits.N_g,
        "M_forward": visits.M_forward,
        "R_g_H": visits.R_g_H,
        "R_g_L": visits.R_g_L,
        "alpha_H": scaling.H.alpha,
        "beta_H": scaling.H.beta,
        "alpha_L": scaling.L.alpha,
        "beta_L": scaling.L.beta,
        "bound": {
            name: {"H": bound.H, "L": bound.L, "total": bound.total}
            for name, bound in bounds.items()
        },
        "params": {
            "core": num_core,
            "puzzle_embedding": num_table,
            "total": num_core + num_table,
        },
        "seq_len": network.seq_len,
        "num_tasks": len(data.puzzles.tasks),
        "num_evaluated_tasks": len(data.collection.evaluated),
        "num_puzzles": len(data.puzzles),
        "examples_per_epoch": examples,
        "total_steps": config.num_steps(examples),
    }


def format_description(config: RunConfig, facts: dict[str, Any]) -> str:
    """The facts as text."""
    params, bound = facts["params"], facts["bound"]
    lines = [
        f"data      {config.data.source}: {facts['num_tasks']:,} tasks, "
        f"{facts['num_evaluated_tasks']:,} of them evaluated; {facts['num_puzzles']:,} puzzles; "
        f"canvas {config.data.canvas}, {facts['seq_len']} tokens",
        f"training  {facts['total_steps']:,} steps of {config.optim.global_batch_size} examples "
        f"({facts['examples_per_epoch']:,} in an epoch)",
        f"params    {params['core']:,} core + {params['puzzle_embedding']:,} puzzle embedding "
        f"= {params['total']:,}",
        f"visits    gradient={config.gradient}: M_g = {facts['M_g']}, N_g = {facts['N_g']}; "
        f"forward M = {facts['M_forward']}",
        f"scaling   {config.scaling.rule}, sized from "
        f"{'M_g' if config.scaling.resolve().count == 'gradient' else 'the forward count M'}",
        "",
        "module       R_g      alpha       beta  beta/alpha  eq. 20, kappa=1  kappa=R_g",
    ]
    for m in ("H", "L"):
        alpha, beta = facts[f"alpha_{m}"], facts[f"beta_{m}"]
        lines.append(
            f"{m:<9}{facts[f'R_g_{m}']:>7}{alpha:>11.6f}{beta:>11.6f}{beta / alpha:>12.6f}"
            f"{bound['kappa_1'][m]:>17.6f}{bound['kappa_R'][m]:>11.6f}"
        )
    lines.append(f"{'sum':<50}{bound['kappa_1']['total']:>17.6f}{bound['kappa_R']['total']:>11.6f}")
    return "\n".join(lines)


def main(overrides: list[str]) -> dict[str, Any]:
    values = cli.compose_config("train", overrides)
    output = cli.take_output(values)
    config: RunConfig = validate(RunConfig, values)
    cli.show_config(to_yaml(config))
    facts = describe(config)
    if output == "text":
        print(format_description(config, facts))
    return facts


if __name__ == "__main__":
    cli.launch(main, "describe", __doc__, keys_of=["train"])
