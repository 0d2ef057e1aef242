"""Shared small things: a tiny model's configuration and its parts."""

from pathlib import Path

import pytest
import torch

from arc_data.config import DataConfig
from hrm_deeploop.alignment import _in_float32, _Segment
from hrm_deeploop.config import ReasonerConfig
from hrm_deeploop.hrm import HRM, HRMConfig
from hrm_deeploop.looped import Looped, LoopedConfig
from hrm_deeploop.losses import correctness, segment_loss
from hrm_deeploop.optim import OptimConfig
from hrm_deeploop.scaling import RULES
from hrm_deeploop.transitions import TransitionConfig

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    return DATA


@pytest.fixture(scope="session")
def data_config():
    """Makes a DataConfig of arc1-mini; keyword arguments replace its values."""

    def make(**changes) -> DataConfig:
        values = dict(
            source="arc1-mini",
            folders=(),
            challenges=None,
            solutions=None,
            splits=None,
            tasks=None,
            extra_folders=(),
            extra_sources=(),
            evaluate="all",
            validation=0.0,
            leaks="exclude",
            canvas=30,
            num_aug=4,
            seed=0,
        )
        return DataConfig(**{**values, **changes})

    return make


@pytest.fixture
def model_config():
    """Makes a tiny HRMConfig; keyword arguments replace its values."""

    def make(**changes) -> HRMConfig:
        values = dict(
            H_cycles=2,
            L_cycles=2,
            H_layers=1,
            L_layers=1,
            hidden_size=16,
            num_heads=2,
            expansion=4.0,
            mlp_multiple_of=8,
            pos_encodings="rope",
            rope_theta=10000.0,
            rms_norm_eps=1e-5,
            puzzle_emb_ndim=16,
            halt_max_steps=3,
            halt_exploration_prob=0.1,
            q_target="halt_only",
        )
        return HRMConfig(**{**values, **changes})

    return make


@pytest.fixture
def optim_config():
    """Makes an OptimConfig; keyword arguments replace its values."""

    def make(**changes) -> OptimConfig:
        values = dict(
            optimizer="adamw",
            global_batch_size=8,
            lr=1e-3,
            lr_warmup_steps=0,
            lr_min_ratio=1.0,
            lr_decay_fraction=1.0,
            beta1=0.9,
            beta2=0.95,
            weight_decay=0.1,
            puzzle_emb_lr=1e-2,
            puzzle_emb_weight_decay=0.1,
            ema_rate=0.9,
        )
        return OptimConfig(**{**values, **changes})

    return make


def build(network, config, *, rule="deeploop", transition="huginn", seed=0, **options):
    """A network of 12 tokens on 9 positions."""
    return network(
        config,
        vocab_size=12,
        seq_len=9,
        rule=RULES[rule],
        transition=TransitionConfig.model_validate(transition),
        generator=torch.Generator().manual_seed(seed),
        **options,
    )


OPTIONS = ("rule", "gradient", "transition", "seed", "dtype", "attention")


@pytest.fixture
def make_network(model_config):
    """Makes an HRM; keyword arguments go to ``build`` or HRMConfig."""

    def make(*, transition_H="huginn", **changes):
        options = {key: changes.pop(key) for key in OPTIONS if key in changes}
        options["transition_H"] = TransitionConfig.model_validate(transition_H)
        return build(HRM, model_config(**changes), **{"gradient": "last_cycle", **options})

    return make


@pytest.fixture
def make_looped(model_config):
    """Makes a looped model like ``make_network``'s HRM."""

    def make(**changes):
        options = {key: changes.pop(key) for key in OPTIONS if key in changes}
        known = model_config().model_dump()
        shared = {key: known[key] for key in ReasonerConfig.model_fields if key != "name"}
        own = dict(prelude_layers=0, layers=1, rounds=3, coda_layers=0)
        heads = dict(tie_embeddings=False, embedding_norm=False)
        config = LoopedConfig(name="looped", **{**shared, **own, **heads, **changes})
        return build(Looped, config, **{"gradient": "all_rounds", **options})

    return make


@pytest.fixture
def check_visits(make_batch):
    """Checks a network's visit counts against what hooks on its sublayers see."""

    def check(network):
        visits = {}

        def count(sublayer, _args, output):
            total, with_gradient = visits.get(sublayer, (0, 0))
            visits[sublayer] = (total + 1, with_gradient + output.requires_grad)

        for stack in network.stacks.values():
            for block in stack:
                block.attention.register_forward_hook(count)
                block.mlp.register_forward_hook(count)
        inputs, _, _ = make_batch()
        network(network.initial_state(4), inputs, torch.zeros(4, 16))
        assert sum(total for total, _ in visits.values()) == network.visits.M_forward
        assert sum(seen for _, seen in visits.values()) == network.visits.M_g
        for name, stack in network.stacks.items():
            for block in stack:
                rounds = network.visits[name].rounds
                assert visits[block.attention][1] == visits[block.mlp][1] == rounds

    return check


@pytest.fixture
def make_batch():
    """Makes (inputs, labels, puzzle ids) of random tokens on 9 positions."""

    def make(num_rows=4, *, num_puzzles=5, seed=0):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randint(0, 12, (num_rows, 9), generator=generator)
        labels = torch.randint(0, 12, (num_rows, 9), generator=generator)
        return inputs, labels, torch.randint(0, num_puzzles, (num_rows,), generator=generator)

    return make


@pytest.fixture
def assert_visits_add_up():
    """A check that the gradients of a module's visits add up to the ordinary gradient."""

    def check(network, batch, vectors, state):
        with _in_float32(network):
            copies = _Segment(network, batch, vectors, state).visit_gradients()
        out = network(state, batch.inputs, vectors)
        exact = correctness(out.logits, batch.labels).exact
        loss = segment_loss(out.logits, batch.labels, exact, out.q_halt).total
        (loss / len(batch.inputs)).backward()
        for name, visits in copies.items():
            for key, parameter in network.stacks[name].named_parameters():
                total = torch.stack([visit.gradients[key] for visit in visits]).sum(0)
                torch.testing.assert_close(total, parameter.grad, rtol=1e-4, atol=1e-6)
        return {name: len(visits) for name, visits in copies.items()}

    return check
