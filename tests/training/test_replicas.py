"""Replica i is the run with the same weights and batches: batched, one by one, with buffers, ties and checkpoints."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from problems import two_players
from torchspot import latents
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import Shapes, separate
from torchspot.networks.lipschitz import Clipping, Orthogonal, SpectralNorm
from torchspot.random import Key
from torchspot.training.engine import Compiled, Eager
from torchspot.training.loop import Training, train
from torchspot.training.optimizers import OptimisticAdam
from torchspot.training.players import Draw, Stream
from torchspot.training.replicas import OverReplicas, replica, stack_modules, stacked

CPU = torch.device("cpu")
SHAPES = Shapes(2, ((2,), (2,)))
K, STEPS = 3, 100


class Entry(Draw):
    """Batch k of a draw for all replicas, as one of them sees it."""

    def __init__(self, draw: Draw, index: int) -> None:
        super().__init__(draw.key, *draw.streams, device=CPU, replicas=draw.replicas)
        self.index = index

    def __call__(self):
        return tuple(part[self.index] for part in super().__call__())


class Networks(nn.Module):
    """A generator with batch norm and a tied layer, or without them."""

    def __init__(self, seed, norm=True):
        super().__init__()
        self.generator = separate(8, 2)(SHAPES, torch.Generator().manual_seed(seed)).double()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Linear(2, 2, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(2, dtype=torch.float64) if norm else nn.Identity()
        self.again = self.first if norm else nn.Identity()

    def forward(self, z):
        x, y = self.generator(self.again(self.norm(self.first(z))))
        return x, y


def players(seed, draws, control, cost, norm):
    generator = Networks(seed, norm)
    critics = mlp_critics(8, 2, control)(SHAPES, torch.Generator().manual_seed(100 + seed)).double()

    def generator_loss(batch):
        x, y = generator(batch[0])
        return cost(x, y).mean() + 2 * torch.stack([value.mean() for value in critics((x, y))]).sum()

    rule = OptimisticAdam(1e-2, (0.5, 0.99))
    return two_players(generator, critics, draws, generator_loss, rule)


def smooth(x, y):
    return (x - y - 1).square().sum(1)


def looking(x, y):
    """The same cost, written so that it cannot be batched: it reads a value on the host."""
    values = smooth(x, y)
    return values if float(values.detach().sum()) > -1 else -values


def games(control=None, cost=smooth, k=K, norm=True):
    """The stacked game, and the k games it should be."""
    noise = Stream(latents.normal(2), 16, torch.float64)
    draws = [
        Draw(Key(0, role), *[noise] * parts, device=CPU, replicas=k)
        for role, parts in (("critics", 3), ("generator", 1))
    ]
    control = control or Orthogonal()
    together = Training(stacked([players(seed, draws, control, cost, norm) for seed in range(k)]), STEPS)
    alone = []
    for seed in range(k):
        parts = players(seed, [Entry(copy.deepcopy(d), seed) for d in draws], control, cost, norm)
        alone.append(Training([replace(p, draw=Entry(p.draw, seed)) for p in parts], STEPS))
    return together, alone


def run(training):
    train(training, engine=Eager("cpu", dtype=torch.float64))
    return training


def largest_difference(together, alone):
    """Over all parameters, averages and buffers of all replicas."""
    worst = 0.0
    for k, one in enumerate(alone):
        for name in ("critics", "generator"):
            index = ["critics", "generator"].index(name)
            modules = [(together.turns[index].player.modules[0], one.turns[index].player.modules[0])]
            if name == "generator":
                modules.append((together.averaged(name)[0], one.averaged(name)[0]))
            for stack, mine in modules:
                entry = replica(stack, mine, k)
                pairs = zip(entry.state_dict().values(), mine.state_dict().values(), strict=True)
                worst = max(worst, *(float((a.double() - b.double()).abs().max()) for a, b in pairs))
    return worst


@pytest.mark.parametrize("control", [Orthogonal(), SpectralNorm(), Clipping(0.1)], ids=str)
def test_replica_i_is_the_run_with_its_weights_and_batches(control):
    """float64: 1e-9 after 100 steps; and the replicas differ from each other."""
    together, alone = games(control)
    assert largest_difference(run(together), [run(one) for one in alone]) < 1e-9
    assert largest_difference(together, alone[1:] + alone[:1]) > 0.1


def test_what_cannot_be_batched_runs_one_after_another_to_the_same_result():
    batched, _ = games()
    together, alone = games(cost=looking)
    with pytest.warns(UserWarning, match=r"one after another, as the loss of the generator cannot be batched: .*item"):
        run(together)
    assert largest_difference(together, [run(one) for one in alone]) < 1e-9
    assert torch.allclose(together.turns[1].flat.vector, run(batched).turns[1].flat.vector, atol=1e-9)


def test_an_error_of_the_loss_itself_is_shown():
    def wrong(x, y):
        raise KeyError("my own mistake")

    together, _ = games(cost=wrong)
    with pytest.warns(UserWarning, match="cannot be batched"), pytest.raises(KeyError, match="my own mistake"):
        run(together)


def test_replicas_compile():
    torch.compiler.reset()
    together, alone = games(norm=False)
    train(together, engine=Compiled("cpu", dtype=torch.float64, backend="aot_eager", outlast=0))
    assert set(together.ran.values()) == {"compiled"}
    assert largest_difference(together, [run(one) for one in alone]) < 1e-9


def test_a_stack_keeps_ties_and_gives_back_what_went_in():
    copies = [nn.ModuleList([Networks(seed)]) for seed in range(3)]
    stack = stack_modules(copies)
    assert stack[0].first is stack[0].again
    assert stack[0].first.weight.shape == (3, 2, 2)
    for k, one in enumerate(copies):
        back = replica(stack, copies[0], k)
        assert back[0].first is back[0].again
        for a, b in zip(back.state_dict().values(), one.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_a_function_over_replicas_sees_one_at_a_time():
    layers = [nn.ModuleList([nn.Linear(2, 2)]) for _ in range(4)]
    stack = stack_modules(layers)
    x = torch.randn(4, 5, 2)
    doubled = OverReplicas(lambda x: 2 * layers[0][0](x), layers[0], stack, name="it")(x)
    for k, layer in enumerate(layers):
        assert torch.allclose(doubled[k], 2 * layer[0](x[k]), atol=1e-6)
