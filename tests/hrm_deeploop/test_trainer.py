"""The trainer: deterministic, resumable, and equal to one step computed by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from hrm_deeploop.device import Ranks
from hrm_deeploop.finite import NonFiniteError
from hrm_deeploop.fit import fit
from hrm_deeploop.halting import Batch
from hrm_deeploop.losses import correctness, segment_loss
from hrm_deeploop.noise import draw_noise
from hrm_deeploop.puzzle_embedding import PuzzleEmbedding
from hrm_deeploop.runs.checkpoint import load_into, load_training_state, save_checkpoint
from hrm_deeploop.runs.metrics import MetricsLog, read_metrics
from hrm_deeploop.trainer import Trainer

NUM_PUZZLES = 5
CPU = torch.device("cpu")

NOISY = {"name": "recurrent_gpt", "noise": 0.5}


@pytest.fixture
def make_trainer(make_network, optim_config):
    def make(*, total_steps=20, network=None, optim=None, seed=0, **options):
        network = network or make_network()
        table = PuzzleEmbedding(NUM_PUZZLES, network.config.puzzle_emb_ndim)
        return Trainer(
            network,
            table.to(network.lm_head.weight.dtype),
            optim or optim_config(),
            total_steps=total_steps,
            seed=seed,
            ranks=Ranks(device=CPU),
            **options,
        )

    return make


def draw(step: int) -> tuple[Batch]:
    rng = np.random.default_rng((7, step))
    inputs = torch.from_numpy(rng.integers(0, 12, (8, 9)))
    batch = Batch(
        inputs=inputs,
        labels=(inputs + 1) % 12,  # learnable
        puzzle_ids=torch.from_numpy(rng.integers(0, NUM_PUZZLES, 8)),
    )
    return (batch,)


def all_weights(trainer):
    return {
        f"{stem}.{name}": tensor
        for stem, module in trainer.modules().items()
        for name, tensor in module.state_dict().items()
    }


def assert_equal_weights(first, second):
    ours, theirs = all_weights(first), all_weights(second)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def run(trainer, until, log=None):
    fit(
        trainer,
        draw,
        log,
        until=until,
        log_every=5,
        checkpoint_every=None,
        save=lambda: None,
    )


def test_two_runs_with_one_seed_have_equal_weights(make_trainer):
    first, second = make_trainer(), make_trainer()
    run(first, 12)
    run(second, 12)
    assert_equal_weights(first, second)
    assert not torch.equal(first.puzzle_embedding.weight, torch.zeros(NUM_PUZZLES, 16))


def test_a_step_is_the_gradient_of_the_mean_loss(make_trainer, make_network, optim_config):
    """One AdamW step from zero moments moves every entry by lr times the gradient's sign."""
    optim = optim_config(weight_decay=0.0, lr=1e-3, puzzle_emb_weight_decay=0.0)
    trainer, twin = make_trainer(optim=optim), make_network()
    (batch,) = draw(0)
    trainer.train_step((batch,))
    logged = trainer.log_sums.take(8)

    vectors = torch.zeros(8, 16, requires_grad=True)
    out = twin(twin.initial_state(8), batch.inputs, vectors)
    exact = correctness(out.logits, batch.labels).exact
    loss = segment_loss(out.logits, batch.labels, exact, out.q_halt)
    (loss.total / 8).backward()
    assert logged["lm_loss"] == pytest.approx(loss.lm.item() / 8)
    assert logged["q_halt_loss"] == pytest.approx(loss.q_halt.item() / 8)
    for module in ("H", "L"):
        squares = [p.grad.square().sum() for p in getattr(twin, module).parameters()]
        assert logged[f"grad_norm_{module}"] == pytest.approx(sum(squares).sqrt().item(), rel=1e-5)
    for name, parameter in twin.named_parameters():
        large = parameter.grad.abs() > 1e-5  # where eps = 1e-8 does not matter
        moved = trainer.network.get_parameter(name) - parameter
        expected = -1e-3 * parameter.grad.sign()
        torch.testing.assert_close(moved[large], expected[large], rtol=1e-2, atol=1e-6, msg=name)
    for puzzle in range(NUM_PUZZLES):
        summed = vectors.grad[batch.puzzle_ids == puzzle].sum(0)
        assert torch.equal(trainer.puzzle_embedding.weight[puzzle], -1e-2 * summed.sign())


def test_training_learns_and_counts_what_it_did(make_trainer, optim_config, tmp_path):
    trainer = make_trainer(total_steps=150, optim=optim_config(lr=1e-2))
    log = MetricsLog(tmp_path / "metrics.jsonl")
    run(trainer, 150, log)
    log.close()
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(5, 151, 5))
    assert rows[-1]["train/lm_loss"] < 0.3 * rows[0]["train/lm_loss"]
    assert rows[-1]["train/examples_drawn"] == 150 * 8
    finished = rows[-1]["train/examples_finished"]
    assert 150 * 8 / 3 - 8 <= finished <= 150 * 8  # at most 3 segments each
    assert 1 <= rows[-1]["train/segments"] <= 3


@pytest.mark.parametrize("optimizer", ["adamw", "adam_atan2"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("hrm", {"q_target": "halt_only"}),
        ("hrm", {"q_target": "bootstrap"}),
        ("hrm", {"transition": "operloop"}),
        ("hrm", {"transition": NOISY}),
        ("looped", {"prelude_layers": 1, "transition": "hyperloop"}),
    ],
)
def test_resuming_is_exact(
    make_trainer, make_network, make_looped, optim_config, optimizer, kind, options, tmp_path
):
    """7 steps, a checkpoint, a fresh trainer and 13 more equal 20, bit for bit, log included."""

    def make():
        return make_trainer(
            network={"hrm": make_network, "looped": make_looped}[kind](**options),
            optim=optim_config(optimizer=optimizer, lr_warmup_steps=4, lr_min_ratio=0.1),
        )

    whole, half, resumed = make(), make(), make()
    logs = {name: MetricsLog(tmp_path / f"{name}.jsonl") for name in ("whole", "half")}
    run(whole, 20, logs["whole"])
    run(half, 7, logs["half"])
    checkpoint = save_checkpoint(
        tmp_path,
        half.step,
        weights={stem: module.state_dict() for stem, module in half.modules().items()},
        training_state=half.training_state(),
        texts={},
        config_digest="",
    )
    for stem, module in resumed.modules().items():
        load_into(module, checkpoint, stem)
    resumed.load_training_state(load_training_state(checkpoint))
    logs["half"].close()
    logs["half"] = MetricsLog(tmp_path / "half.jsonl", resumed_step=7)
    run(resumed, 20, logs["half"])
    assert resumed.step == whole.step == 20
    assert_equal_weights(whole, resumed)
    for name, ours in resumed.carry[0].state.items():
        assert torch.equal(ours, whole.carry[0].state[name])

    def rows(name):
        logs[name].close()
        return [
            {key: value for key, value in row.items() if "second" not in key}
            for row in read_metrics(tmp_path / f"{name}.jsonl")
        ]

    assert rows("half") == rows("whole")
    assert [row["step"] for row in rows("whole")] == [5, 10, 15, 20]


@pytest.mark.parametrize("before", [torch.float32, torch.bfloat16])
def test_a_run_goes_on_in_another_dtype(make_trainer, make_network, before):
    """As on another machine, where dtype=auto is another."""
    after = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float32}[before]
    first, second = (make_trainer(network=make_network(dtype=d)) for d in (before, after))
    run(first, 3)
    for stem, module in first.modules().items():
        second.modules()[stem].load_state_dict(module.state_dict())
    second.load_training_state(first.training_state())
    run(second, 6)
    assert {z.dtype for z in second.carry[0].state.values()} == {after}


@pytest.mark.parametrize("transition", ["huginn", NOISY])
@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
def test_micro_batches_change_nothing_but_rounding(
    make_trainer, make_network, micro_batch_size, transition
):
    """In float64, where rounding stays invisible under sign-like updates."""

    def make(**options):
        network = make_network(
            dtype=torch.float64, q_target="bootstrap", transition=transition
        ).double()
        return make_trainer(network=network, **options)

    whole, split = make(), make(micro_batch_size=micro_batch_size)
    for step in range(8):
        whole.train_step(draw(step))
        split.train_step(draw(step))
    ours, theirs = all_weights(split), all_weights(whole)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-12, msg=name)
    assert torch.equal(split.carry[0].halted, whole.carry[0].halted)
    assert torch.equal(split.carry[0].steps, whole.carry[0].steps)
    torch.testing.assert_close(split.carry[0].state["z_H"], whole.carry[0].state["z_H"])
    assert split.log_sums.take(8) == pytest.approx(whole.log_sums.take(8), rel=1e-5)


def test_a_micro_batch_must_divide_the_batch(make_trainer):
    with pytest.raises(ValueError, match="micro_batch_size=3 must divide the 8 rows"):
        make_trainer(micro_batch_size=3)


@pytest.mark.parametrize("where", ["weight", "puzzle"])
def test_a_non_finite_gradient_stops_before_anything_is_updated(make_trainer, where):
    trainer = make_trainer()
    run(trainer, 3)
    with torch.no_grad():
        if where == "weight":
            trainer.network.H.blocks[0].mlp.down_proj.weight[0, 0] = float("nan")
        else:
            trainer.puzzle_embedding.weight.fill_(float("inf"))
    before = {name: tensor.clone() for name, tensor in all_weights(trainer).items()}
    with pytest.raises(NonFiniteError, match=r"step 4: .*lm_loss nan.*grad_norm_H nan"):
        trainer.train_step(draw(3))
    assert trainer.step == 3
    for name, tensor in all_weights(trainer).items():
        assert torch.equal(tensor.nan_to_num(7.0), before[name].nan_to_num(7.0)), name


def test_a_finished_row_takes_the_next_example_of_its_slot(make_trainer, make_network):
    trainer = make_trainer(network=make_network(halt_max_steps=1))  # every row halts at once
    trainer.train_step(draw(0))
    trainer.train_step(draw(1))
    assert torch.equal(trainer.carry[0].batch.inputs, draw(1)[0].inputs)
    patient = make_trainer(network=make_network(halt_max_steps=3, halt_exploration_prob=0.0))
    patient.train_step(draw(0))  # q_halt starts at -5: nobody halts early
    patient.train_step(draw(1))
    assert torch.equal(patient.carry[0].batch.inputs, draw(0)[0].inputs)
    assert patient.carry[0].steps.tolist() == [2] * 8


def test_bootstrap_trains_the_continue_value(make_trainer, make_network):
    trainer = make_trainer(network=make_network(q_target="bootstrap"))
    before = trainer.network.q_head.bias.detach().clone()
    trainer.train_step(draw(0))
    assert trainer.log_sums.take(8)["q_continue_loss"] > 0
    assert (trainer.network.q_head.bias != before).all()


def test_the_average_follows_and_covers_the_network_alone(make_trainer):
    trainer = make_trainer()
    run(trainer, 6)
    averaged = trainer.averaged.module
    assert set(averaged.state_dict()) == set(trainer.network.state_dict())
    assert not torch.equal(averaged.lm_head.weight, trainer.network.lm_head.weight)


def test_a_model_without_puzzle_embedding_trains(make_trainer, make_network):
    trainer = make_trainer(network=make_network(puzzle_emb_ndim=0))
    run(trainer, 3)
    assert trainer.step == 3


def test_a_batch_that_ranks_cannot_share_is_refused(make_network, optim_config):
    with pytest.raises(ValueError, match=r"global_batch_size=8 must be a multiple of the 3 ranks"):
        Trainer(
            make_network(),
            PuzzleEmbedding(NUM_PUZZLES, 16),
            optim_config(),
            total_steps=1,
            seed=0,
            ranks=Ranks(device=CPU, rank=0, world_size=3),
        )


def test_the_first_steps_are_pinned(make_trainer):
    """Loss and update of this tiny run. Other numbers mean that what a step computes has changed:
    say so in the commit, with the values before and after."""
    trainer = make_trainer()
    start = trainer.network.lm_head.weight.detach().clone()
    means = []
    for step in range(3):
        trainer.train_step(draw(step))
        means.append(trainer.log_sums.take(8)["lm_loss"])
    assert means == pytest.approx([2.42012739, 2.38381815, 2.36919427], rel=1e-5)
    moved = (trainer.network.lm_head.weight - start).norm().item()
    assert moved == pytest.approx(0.03823297, rel=1e-4)


def test_noise_is_drawn_anew_each_step_and_absent_from_evaluation(make_trainer, make_network):
    noisy, plain = (
        make_trainer(network=make_network(transition={"name": "recurrent_gpt", "noise": noise}))
        for noise in (0.5, 0.0)
    )
    batch = draw(0)[0]

    def noise(trainer, step=0, rows=range(8)):
        given = dict(seed=0, step=step, part=0, rows=rows, seq_len=9, device=CPU)
        return draw_noise(trainer.network, **given)

    assert noise(noisy).shape == (8, 2 * 2, 10, 16)  # of a row for each of L's updates
    assert noise(noisy).std().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(noise(noisy), noise(noisy))  # a function of the step
    assert torch.equal(noise(noisy, rows=range(2, 8)), noise(noisy)[2:])  # and of the row
    assert not torch.equal(noise(noisy, step=1), noise(noisy))
    assert noise(plain) is None
    arguments = (batch.inputs, torch.zeros(len(batch.inputs), 16))
    with torch.no_grad():
        outs = [
            t.network(t.network.initial_state(len(batch.inputs)), *arguments)
            for t in (noisy, plain)
        ]
    assert torch.equal(outs[0].logits, outs[1].logits)
    states = []
    for trainer in (noisy, plain):
        trainer.train_step(draw(0))
        states.append(trainer.carry[0].state)
    for name in ("z_H", "z_L"):  # training reads it
        assert not torch.allclose(states[0][name], states[1][name], atol=0.01)


def test_every_noisy_update_takes_a_draw_of_its_own(make_network, make_batch):
    """Noise in one update alone changes the state; H's updates take theirs between L's."""
    network = make_network(transition=NOISY, transition_H=NOISY)
    assert network.num_noisy_updates == 2 * (2 + 1)
    inputs, _, _ = make_batch()
    vectors, state = torch.zeros(4, 16), network.initial_state(4)

    def logits(noise):
        with torch.no_grad():
            return network(state, inputs, vectors, None, noise).logits

    plain = logits(None)
    assert torch.equal(logits(torch.zeros(4, 6, 10, 16)), plain)
    found = []
    for number in range(6):
        noise = torch.zeros(4, 6, 10, 16)
        noise[:, number] = torch.randn(4, 10, 16, generator=torch.Generator().manual_seed(1))
        found.append(logits(noise))
        assert not torch.allclose(found[-1], plain, atol=1e-3)
    assert all(not torch.equal(a, b) for a, b in pairwise(found))
