"""Optimisers against torch's own, and against the game that they are for."""

from functools import partial

import pytest
import torch
from torch import nn

from torchspot.errors import InvalidArgument
from torchspot.training.optimizers import Adam, FlatParameters, OptimisticAdam, RMSprop
from torchspot.training.schedules import Constant, Cosine, Rising


@pytest.mark.parametrize(
    ("rule", "torchs"),
    [
        (Adam(0.01, (0.5, 0.9)), partial(torch.optim.Adam, lr=0.01, betas=(0.5, 0.9))),
        (RMSprop(0.01, (0.5, 0.9)), partial(torch.optim.RMSprop, lr=0.01, alpha=0.9)),
    ],
)
def test_rules_are_torchs_own(rule, torchs):
    mine, theirs = (torch.nn.Linear(3, 2, dtype=torch.float64) for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    flat = FlatParameters([mine])
    memory = rule.init(flat.vector)
    reference = torchs(theirs.parameters())
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    numbers = rule.numbers(torch.arange(25, dtype=torch.float64), torch.arange(25, dtype=torch.float64) / 25)
    for t in range(25):
        rule.move(flat.vector, flat.gradient(mine(x).square().mean()), memory, numbers[t])
        reference.zero_grad()
        theirs(x).square().mean().backward()
        reference.step()
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("rule", "converges"), [(Adam, False), (OptimisticAdam, True)])
def test_optimism_turns_the_cycle_of_a_bilinear_game_into_convergence(rule, converges):
    """min_x max_y x y: simultaneous steps circle around (0, 0)."""
    rule = rule(learning_rate=0.03, betas=(0.0, 0.9))
    players = torch.tensor([[1.0], [1.0]])
    memories = [rule.init(player) for player in players]
    numbers = rule.numbers(torch.arange(1000.0), torch.arange(1000.0) / 1000)
    for t in range(1000):
        x, y = players.clone()
        rule.move(players[0], y, memories[0], numbers[t])
        rule.move(players[1], -x, memories[1], numbers[t])
    assert (float(players.norm()) < 0.1) == converges


def test_flat_parameters_are_views():
    layer = nn.Linear(2, 2)
    before = [p.detach().clone() for p in layer.parameters()]
    flat = FlatParameters([layer, layer])
    assert flat.vector.numel() == 6
    for p, old in zip(layer.parameters(), before, strict=True):
        assert torch.equal(p, old)
    flat.vector.zero_()
    assert all(not p.any() for p in layer.parameters())


def test_kernels_are_aligned_and_what_lies_between_stays_zero():
    modules = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 5, 3))
    before = [p.detach().clone() for p in modules.parameters()]
    flat = FlatParameters([modules])
    offsets = [(p.data_ptr() - flat.vector.data_ptr()) // 4 for p in modules.parameters()]
    assert offsets[0] % 64 == 0 and offsets[2] % 64 == 0 and offsets[2] > 30
    for p, old in zip(modules.parameters(), before, strict=True):
        assert torch.equal(p, old)
    rule = Adam(0.1)
    memory, numbers = rule.init(flat.vector), rule.numbers(torch.zeros(1), torch.zeros(1))[0]
    rule.move(flat.vector, flat.gradient(modules(torch.randn(2, 1, 8, 8)).square().sum()), memory, numbers)
    own = torch.cat([torch.arange(o, o + p.numel()) for o, p in zip(offsets, modules.parameters(), strict=True)])
    between = torch.ones(len(flat.vector), dtype=torch.bool).index_fill(0, own, False)
    assert between.any() and not flat.vector[between].any()
    assert all(not torch.equal(p, old) for p, old in zip(modules.parameters(), before, strict=True))


def test_kernels_have_their_channels_last_and_step_as_in_torch():
    mine, theirs = (nn.Sequential(nn.Conv2d(3, 4, (2, 3)), nn.ConvTranspose2d(4, 5, 3)).double() for _ in range(2))
    theirs.load_state_dict(mine.state_dict())
    x = torch.randn(2, 3, 6, 7).double()
    flat, rule, torchs = FlatParameters([mine]), Adam(0.1), torch.optim.Adam(theirs.parameters(), 0.1)
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in mine.parameters() if p.ndim == 4)
    memory, numbers = rule.init(flat.vector), rule.numbers(torch.arange(2.0).double(), torch.zeros(2).double())
    for t in range(2):
        rule.move(flat.vector, flat.gradient(mine(x).square().mean()), memory, numbers[t])
        torchs.zero_grad()
        theirs(x).square().mean().backward()
        torchs.step()
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_parameter_that_the_loss_does_not_see_gets_zero():
    layer = nn.Linear(2, 2)
    gradient = FlatParameters([layer]).gradient(layer.weight.sum())
    assert gradient.tolist() == [1, 1, 1, 1, 0, 0]


def test_nothing_to_train_is_an_error():
    with pytest.raises(InvalidArgument, match="no parameters"):
        FlatParameters([nn.ReLU()])
    with pytest.raises(InvalidArgument, match="above 0"):
        Adam(learning_rate=0)
    with pytest.raises(InvalidArgument, match="above 0"):
        OptimisticAdam(learning_rate=-1)


def test_schedules():
    progress = torch.tensor([0.0, 0.25, 0.5, 1.0])
    assert torch.allclose(Cosine()(progress), torch.tensor([1, 0.8535534, 0.5, 0]), atol=1e-6)
    assert torch.allclose(Rising(0.5, Cosine())(progress), torch.tensor([0, 0.5 * 0.8535534, 0.5, 0]), atol=1e-6)
    assert Constant()(progress).tolist() == [1, 1, 1, 1]
