"""Every transition in both models against its row of the table, written out: values and gradients.

The parameters are random (the starting values make several rows of the table equal), the noise is
given, eps is not the default, and the state goes through two segments.
"""

import pytest
import torch

from hrm_deeploop.losses import token_loss
from hrm_deeploop.transitions import TransitionConfig

EPS = 1e-3
L_CYCLES = 3
SINGLE = ["once_a_cycle", "huginn", "parcae", "parcae_aligned", "recurrent_gpt", "recirculation"]
EXPANDED = [
    {"name": "hyperloop", "streams": 2},
    {"name": "hyperloop_aligned", "streams": 3},
    *(
        {"name": "operloop", "streams": 2, "step": step, "objective": objective}
        for step in ("causal", "noncausal", "unit")
        for objective in ("delta", "inner")
    ),
]
AT_EVERY_UPDATE = ["huginn", "parcae", "parcae_aligned", "recurrent_gpt"]  # e enters there


def gates(transition, Y, index):
    """s(a W_l Z + b_l) of Z = RMSNorm(flatten Y), (batch, tokens, 1, size) by kind."""
    flat = Y.flatten(-2)
    Z = flat / (flat.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    logits, found, start = Z @ transition.gates.W[index].weight.T, {}, 0
    for kind, (name, size) in enumerate(transition.gates.sizes.items()):
        rows = slice(start, start + size)
        a, b = transition.gates.gain[index, kind], transition.gates.bias[index, rows]
        found[name] = torch.sigmoid(a * logits[..., rows] + b).unsqueeze(-2)
        start += size
    return found


def step(transition, config, y, e, blocks, index, eta, noise):
    """(o, y') of the table for update index; eta is that of the update before it."""
    match config.name:
        case "once_a_cycle":
            return blocks(y + e if index == 0 else y), eta
        case "huginn":
            return blocks(y + e), eta
        case "parcae" | "parcae_aligned":
            a, delta = transition.log_decay.exp(), transition.log_step.exp()
            A = torch.diag(torch.exp(-delta * a))
            B = torch.diag((1 - torch.exp(-delta * a)) / a) @ transition.B_0.weight
            t = blocks(y @ A.T + e @ B.T)
            return t @ A.T if config.name == "parcae_aligned" else t, eta
        case "recurrent_gpt":
            W_y, W_e = transition.W.weight.chunk(2, dim=1)
            t = blocks((y + config.noise * noise) @ W_y.T + e @ W_e.T)
            g = 1 / (1 + torch.exp(-transition.gate))
            return g * y + (1 - g) * t, eta
        case "recirculation":
            y = y + e if index == 0 else y
            t = blocks(y)
            lengths = y.pow(2).sum(-1, keepdim=True).sqrt() / t.pow(2).sum(-1, keepdim=True).sqrt()
            return 0.5 * y + 0.5 * lengths * t, eta
    Y = y + e.unsqueeze(-2) if index == 0 else y
    H = gates(transition, Y, index)
    b = transition.bias[index]
    if config.name != "operloop":
        t = blocks((H["pre"] @ Y).squeeze(-2)) + b
        H_post = H["pre"] if config.name == "hyperloop_aligned" else 2 * H["post"]
        return torch.diag_embed(H["res"].squeeze(-2)) @ Y + H_post.mT @ t.unsqueeze(-2), eta
    o = (H["in"] @ Y).squeeze(-2)
    t = blocks(o) + b
    if config.step == "unit":
        eta = torch.ones(1, 1, 1, 1, dtype=Y.dtype)
    else:
        eta = H["step"] * (eta if config.step == "causal" else 1.0)
    error = t - o if config.objective == "delta" else t
    Lambda = torch.diag_embed(H["decay"].squeeze(-2))
    kept = (torch.eye(config.streams, dtype=Y.dtype) - eta * Lambda) @ Y
    return kept + eta * H["in"].mT @ error.unsqueeze(-2), eta


def read(y):
    return y.mean(-2) if y.ndim == 4 else y


def hrm_segment(network, configs, gradient, state, embedded, noise):
    """C cycles of C_L updates of L and one of H."""
    z_H, z_L, draws = state["z_H"], state["z_L"], iter(noise.unbind(1))
    loops = network.transitions

    def update(name, y, e, index, eta):
        drawn = next(draws) if loops[name].noise else None
        blocks = network.stacks[name]
        return step(
            loops[name],
            configs[name],
            y,
            e,
            lambda x: blocks(x, embedded.rotation),
            index,
            eta,
            drawn,
        )

    num_cycles = network.config.H_cycles
    for cycle in range(num_cycles):
        last, eta = cycle == num_cycles - 1, 1.0
        for index in range(L_CYCLES):
            z_L, eta = update("L", z_L, read(z_H) + embedded.tokens, index, eta)
            if not (gradient == "full" or (last and (gradient == "last_cycle" or index == 2))):
                z_L, eta = z_L.detach(), eta.detach() if torch.is_tensor(eta) else eta
        z_H, _ = update("H", z_H, read(z_L), 0, 1.0)
        if not (gradient == "full" or last):
            z_H = z_H.detach()
    return {"z_H": z_H, "z_L": z_L}, read(z_H)


def looped_segment(network, configs, gradient, state, embedded, noise):
    """Prelude, three rounds, coda."""
    draws, eta, z = iter(noise.unbind(1)), 1.0, state["z"]
    stacks, rotation = network.stacks, embedded.rotation
    tokens = embedded.tokens
    norm = (tokens.pow(2).mean(-1, keepdim=True) + EPS).sqrt()
    e = stacks["prelude"](tokens / norm, rotation)
    for index in range(3):
        drawn = next(draws) if network.transition.noise else None
        config = configs["loop"]
        z, eta = step(
            network.transition,
            config,
            z,
            e,
            lambda x: stacks["loop"](x, rotation),
            index,
            eta,
            drawn,
        )
        if gradient == "last_round" and index < 2:
            z = z.detach()
    return {"z": z}, stacks["coda"](read(z), rotation)


def run_two_segments(network, batch, noises, segment):
    """Logits, states and every gradient after two segments of a loss of both heads."""
    inputs, labels, _ = batch
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(4, 16, dtype=torch.float64, generator=generator).requires_grad_()
    state, logits = network.initial_state(4), None
    network.zero_grad()
    for noise in noises:
        state = {name: z.detach() for name, z in state.items()}
        state, logits, q_halt = segment(state, inputs, vectors, noise)
        (token_loss(logits, labels).sum() + q_halt.sum()).backward()
    gradients = {name: p.grad for name, p in network.named_parameters()} | {"vectors": vectors.grad}
    return {"logits": logits, **state}, {
        n: None if g is None else g.clone() for n, g in gradients.items()
    }


def check(network, configs, gradient, batch, written_out):
    """The network's own forward against the written-out one, from random parameters."""
    network = network.double()
    generator = torch.Generator().manual_seed(5)
    for transition in network.transitions.values():
        for parameter in transition.parameters():
            parameter.data.normal_(std=0.5, generator=generator)
    network.q_head.weight.data.normal_(std=0.3, generator=generator)
    shape = (4, network.num_noisy_updates, 10, 16)
    noises = [torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2)]

    def own(state, inputs, vectors, noise):
        out = network(state, inputs, vectors, None, noise if noise.numel() else None)
        return out.state, out.logits, out.q_halt

    def reference(state, inputs, vectors, noise):
        embedded = network.embed(inputs, vectors)
        state, latent = written_out(network, configs, gradient, state, embedded, noise)
        return state, network.token_logits(latent), network.q_values(latent)[:, 0]

    found, expected = (run_two_segments(network, batch, noises, s) for s in (own, reference))
    for name, value in expected[0].items():
        torch.testing.assert_close(found[0][name], value, rtol=1e-9, atol=1e-10, msg=name)
    for name, value in expected[1].items():
        gradient_found = found[1][name]
        assert (gradient_found is None) == (value is None), name
        if value is not None:
            torch.testing.assert_close(gradient_found, value, rtol=1e-7, atol=1e-9, msg=name)
    for name, value in expected[1].items():  # a gate, bias or row of one update is reached too
        if name.startswith("transition") and value is not None and value.ndim == 2:
            assert (value.abs().sum(1) > 0).all(), name


@pytest.mark.parametrize("gradient", ["last_cycle", "full"])
@pytest.mark.parametrize("given", [*SINGLE, *EXPANDED], ids=str)
def test_hrm(make_network, make_batch, given, gradient):
    config = TransitionConfig.model_validate(given)
    other = TransitionConfig(name="huginn") if given == "recirculation" else config
    network = make_network(
        transition=given,
        transition_H=other,
        gradient=gradient,
        L_cycles=L_CYCLES,
        rms_norm_eps=EPS,
        dtype=torch.float64,
    )
    check(network, {"L": config, "H": other}, gradient, make_batch(), hrm_segment)


@pytest.mark.parametrize("given", AT_EVERY_UPDATE)
def test_hrm_of_the_last_update(make_network, make_batch, given):
    config = TransitionConfig.model_validate(given)
    network = make_network(
        transition=given,
        transition_H=config,
        gradient="last_update",
        L_cycles=L_CYCLES,
        rms_norm_eps=EPS,
        dtype=torch.float64,
    )
    check(network, {"L": config, "H": config}, "last_update", make_batch(), hrm_segment)


@pytest.mark.parametrize(
    ("given", "gradient"),
    [
        *((given, "all_rounds") for given in [*SINGLE, *EXPANDED]),
        *((given, "last_round") for given in AT_EVERY_UPDATE),
    ],
    ids=str,
)
def test_looped(make_looped, make_batch, given, gradient):
    network = make_looped(
        transition=given,
        gradient=gradient,
        prelude_layers=1,
        rounds=3,
        coda_layers=1,
        tie_embeddings=True,
        embedding_norm=True,
        rms_norm_eps=EPS,
        dtype=torch.float64,
    )
    configs = {"loop": TransitionConfig.model_validate(given)}
    check(network, configs, gradient, make_batch(), looped_segment)
