"""With ``scaling: vanilla`` and HRM's recorded weights, everything equals what HRM computed."""

import json

import pytest
import torch
from safetensors.torch import load_file

from hrm_deeploop.halting import continue_target
from hrm_deeploop.hrm import HRM, HRMConfig
from hrm_deeploop.hrm_weights import our_name
from hrm_deeploop.losses import correctness, segment_loss
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from hrm_deeploop.recurrence import detach
from hrm_deeploop.scaling import RULES

BATCH = 4


@pytest.fixture(scope="module")
def recorded(data_dir):
    return load_file(data_dir / "hrm_parity.safetensors")


@pytest.fixture(scope="module")
def build(recorded, data_dir):
    facts = json.loads((data_dir / "hrm_parity_config.json").read_text())
    keys = set(HRMConfig.model_fields) & set(facts)
    config = HRMConfig(
        **{key: facts[key] for key in keys},
        mlp_multiple_of=256,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        q_target="bootstrap",
    )
    weights = {
        our_name(name.removeprefix("state/")): tensor
        for name, tensor in recorded.items()
        if name.startswith("state/")
    }

    def make(gradient):
        network = HRM(
            config,
            vocab_size=facts["vocab_size"],
            seq_len=facts["seq_len"],
            rule=RULES["vanilla"],
            gradient=gradient,
            generator=torch.Generator().manual_seed(0),
        )
        table = PuzzleEmbedding(facts["num_puzzle_identifiers"], config.puzzle_emb_ndim)
        network.load_state_dict({k: v for k, v in weights.items() if k != "puzzle_emb.weights"})
        table.load_state_dict({"weight": weights["puzzle_emb.weights"]})
        return network, table

    return make


@pytest.fixture(scope="module")
def batch(recorded):
    labels = recorded["batch/labels"].long()
    assert not (labels == 0).any()  # so that 0 can stand for "no loss", which HRM calls -100
    inputs, puzzle_ids = recorded["batch/inputs"], recorded["batch/puzzle_identifiers"]
    return inputs.long(), torch.where(labels == -100, 0, labels), puzzle_ids.long()


@torch.no_grad()
def test_four_segments_of_an_evaluation(build, recorded, batch):
    network, table = build("last_update")
    inputs, labels, puzzle_ids = batch
    state = network.initial_state(BATCH)
    for segment in range(1, 5):
        out = network(state, inputs, table.lookup(puzzle_ids))
        state = out.state
        tolerance = dict(rtol=0, atol=1e-4 if segment <= 2 else 5e-4)
        computed = {
            "logits": out.logits,
            "z_H": out.state["z_H"],
            "z_L": out.state["z_L"],
            "q_halt_logits": out.q_halt,
            "q_continue_logits": out.q_continue,
        }
        for name, value in computed.items():
            torch.testing.assert_close(
                value, recorded[f"eval/segment{segment}/{name}"], **tolerance
            )
        exact = correctness(out.logits, labels).exact
        loss = segment_loss(out.logits, labels, exact, out.q_halt)
        for name, value in (("lm_loss_sum", loss.lm), ("q_halt_loss_sum", loss.q_halt)):
            expected = recorded[f"eval/segment{segment}/{name}"].float()
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=0)


def first_step(network, table, batch):
    """Losses of one training step from the initial states, and the puzzle vectors' leaf."""
    inputs, labels, puzzle_ids = batch
    vectors = table.lookup(puzzle_ids)
    out = network(network.initial_state(BATCH), inputs, vectors)
    with torch.no_grad():
        ahead = network(detach(out.state), inputs, vectors)
    is_last = torch.zeros(BATCH, dtype=torch.bool)
    target = continue_target(ahead.q_halt, ahead.q_continue, is_last)
    exact = correctness(out.logits, labels).exact
    loss = segment_loss(out.logits, labels, exact, out.q_halt, out.q_continue, target)
    return loss, vectors


def check_gradients(network, vectors, recorded, prefix):
    grads = {
        our_name(key.removeprefix(prefix)): value
        for key, value in recorded.items()
        if key.startswith(prefix)
    }
    torch.testing.assert_close(vectors.grad, grads.pop("local_puzzle_emb"), rtol=1e-3, atol=1e-5)
    for name, expected in grads.items():
        computed = network.get_parameter(name).grad
        torch.testing.assert_close(computed, expected, rtol=1e-3, atol=1e-5, msg=name)
    return set(grads)


def test_the_losses_and_the_gradient_of_last_update(build, recorded, batch):
    network, table = build("last_update")
    loss, vectors = first_step(network, table, batch)
    for name in ("lm", "q_halt", "q_continue"):
        expected = recorded[f"train/{name}_loss_sum"].float()
        torch.testing.assert_close(getattr(loss, name), expected, rtol=1e-4, atol=0)
    total = loss.total / BATCH
    torch.testing.assert_close(total, recorded["train/loss_over_batch"].float(), rtol=1e-4, atol=0)

    total.backward()
    compared = check_gradients(network, vectors, recorded, "train/grad_last_update/")
    assert compared == set(dict(network.named_parameters()))

    table.sign_sgd_step(batch[2], vectors.grad, lr=0.01, weight_decay=0.1)
    expected = recorded["train/puzzle_emb_after_sign_sgd_lr0.01_wd0.1"]
    torch.testing.assert_close(table.weight, expected, rtol=0, atol=1e-6)
    assert sorted(set(batch[2].tolist())) == [1, 3, 7]  # row 3 occurs twice


def test_the_gradient_of_last_cycle(build, recorded, batch):
    network, table = build("last_cycle")
    loss, vectors = first_step(network, table, batch)
    lm = loss.lm / BATCH
    expected = recorded["train/last_cycle/lm_loss_over_batch"].float()
    torch.testing.assert_close(lm, expected, rtol=1e-4, atol=0)
    lm.backward()
    compared = check_gradients(network, vectors, recorded, "train/grad_last_cycle_lm_loss_only/")
    assert set(dict(network.named_parameters())) - compared == {"q_head.weight", "q_head.bias"}


def test_the_two_truncations_have_different_gradients(recorded):
    """So that the tests above tell them apart."""
    name = "model.inner.L_level.layers.0.mlp.down_proj.weight"
    update = recorded[f"train/grad_last_update/{name}"]
    cycle = recorded[f"train/grad_last_cycle_lm_loss_only/{name}"]
    assert (update - cycle).norm() > 0.1 * cycle.norm()
