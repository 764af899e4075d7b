"""Engines run the same steps: compiled against eager, and what happens where compiling cannot be done."""

import itertools

import pytest
import torch
from torch import nn

from problems import two_players
from torchspot import latents
from torchspot.errors import InvalidArgument
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import Shapes, separate
from torchspot.networks.lipschitz import Orthogonal, SpectralNorm
from torchspot.random import Key
from torchspot.training import steps as running
from torchspot.training.engine import Captured, Compiled, Eager, choose_engine
from torchspot.training.loop import Training, train
from torchspot.training.optimizers import OptimisticAdam
from torchspot.training.players import Draw, Stream
from torchspot.training.schedules import Cosine

SHAPES = Shapes(2, ((2,), (3,)))


class Norm(nn.Module):
    """A generator with batch norm."""

    def __init__(self, dtype):
        super().__init__()
        self.network = separate(8, 2)(SHAPES, torch.Generator().manual_seed(0)).to(dtype)
        self.norm = nn.BatchNorm1d(2, dtype=dtype)

    def forward(self, z):
        return self.network(self.norm(z))


def game(dtype, control=None, steps=100):
    """Two players, orthogonal critics, batch norm, a varying number of critic steps."""
    generator, rng = Norm(dtype), torch.Generator().manual_seed(1)
    critics = mlp_critics(8, 2, control or Orthogonal())(SHAPES, rng).to(dtype)
    noise = Stream(latents.normal(2), 32, dtype)
    data = [Stream(latents.normal(dim), 32, dtype) for dim in (2, 3)]

    def generator_loss(batch):
        x, y = generator(batch[0])
        pull = torch.stack([value.mean() for value in critics((x, y))]).sum()
        return (x - y[:, :2]).square().sum(1).mean() + 2 * pull

    rule = OptimisticAdam(1e-2, (0.5, 0.99), Cosine())
    draws = [
        Draw(Key(0, role), *parts, device=torch.device("cpu"))
        for role, parts in (("c", (noise, *data)), ("g", (noise,)))
    ]
    players = two_players(generator, critics, draws, generator_loss, rule)
    return Training(players, steps)


def state(training):
    return [t for turn in training.turns for t in turn.tensors()]


def largest_difference(a, b):
    return max(float((s.double() - t.double()).abs().max()) for s, t in zip(state(a), state(b), strict=True))


@pytest.mark.parametrize("control", [Orthogonal(), SpectralNorm()], ids=str)
def test_compiled_steps_are_eager_steps(control):
    """float64: 1e-9 after 100 steps."""
    torch.compiler.reset()
    eager, compiled = game(torch.float64, control), game(torch.float64, control)
    train(eager, engine=Eager("cpu", dtype=torch.float64))
    train(compiled, engine=Compiled("cpu", dtype=torch.float64, backend="aot_eager", outlast=0))
    assert compiled.ran == {"critics": "compiled", "generator": "compiled"}
    assert eager.ran == {"critics": "eager", "generator": "eager"}
    assert largest_difference(eager, compiled) < 1e-9
    assert largest_difference(eager, game(torch.float64, control)) > 0.1


def test_a_compiled_step_is_an_eager_step_in_float32():
    """1e-5 a step, each from the same state."""
    torch.compiler.reset()
    eager, compiled = game(torch.float32), game(torch.float32)
    engine = Compiled("cpu", backend="aot_eager", outlast=0)
    ready = [(Eager("cpu").prepare(a), engine.prepare(b)) for a, b in zip(eager.turns, compiled.turns, strict=True)]
    for _ in range(10):
        for s, t in zip(state(compiled), state(eager), strict=True):
            s.detach().copy_(t)
        for a, b in ready:
            a()
            b()
        assert largest_difference(eager, compiled) < 1e-5


def test_a_run_that_ends_sooner_than_the_compilation_stays_eager():
    training = game(torch.float32, steps=30)
    train(training, engine=Compiled("cpu", backend="aot_eager", outlast=1000.0))
    assert "eager, not compiled, as only about" in training.ran["critics"]
    assert "outlast=1000" in training.ran["critics"]
    shorter = game(torch.float32, steps=3)
    train(shorter, engine=Compiled("cpu", backend="aot_eager"))
    assert shorter.ran["generator"] == "eager, not compiled, as the run ended within 20 steps"


def test_without_a_compiler_steps_stay_eager_and_say_so(monkeypatch):
    monkeypatch.setattr(running.shutil, "which", lambda name: None)
    training = game(torch.float32, steps=3)
    train(training, engine=Compiled("cpu", outlast=0))
    assert "no C++ compiler was found" in training.ran["generator"]
    same = game(torch.float32, steps=3)
    train(same, engine=Eager("cpu"))
    assert largest_difference(training, same) == 0


def test_where_compiling_fails_steps_go_on_eagerly_from_the_same_state():
    def broken(module, inputs):
        raise RuntimeError("no such luck")

    training, same = game(torch.float32, steps=5), game(torch.float32, steps=5)
    torch.compiler.reset()
    with pytest.warns(UserWarning, match="no such luck"):
        train(training, engine=Compiled("cpu", backend=broken, outlast=0))
    train(same, engine=Eager("cpu"))
    assert "eager, not compiled, as compiling failed" in training.ran["critics"]
    assert largest_difference(training, same) == 0


class Replay:
    """Stands for a CUDA graph: replays what was recorded, by calling it again."""

    def __init__(self):
        self.recorded = None

    def register_generator_state(self, generator):
        self.generator = generator

    def replay(self):
        self.recorded()


@pytest.fixture
def pretended(monkeypatch):
    """CUDA graphs pretended on the CPU, so that the bookkeeping around them is tested everywhere."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Replay)
    monkeypatch.setattr(running, "_end_failed_capture", lambda generator: None)

    def record(self):
        before = [t.detach().clone() for t in self.turn.tensors()]
        try:
            self.turn.update(self.parts)
        except Exception as error:
            return f"recording failed ({running._in_short(error)})"
        finally:
            for tensor, value in zip(self.turn.tensors(), before, strict=True):
                tensor.detach().copy_(value)
            self.turn.seed()
        self._graph.recorded = lambda: self.turn.update(self.parts)
        return None

    monkeypatch.setattr(running.CapturedStep, "_record", record)


def run_captured(training):
    steps = [(turn.player.repeats, running.CapturedStep(turn, None)) for turn in training.turns]
    for number in range(10):
        for repeats, step in steps:
            for _ in range(repeats(number)):
                step()
    return [step.how for _, step in steps]


def test_steps_around_a_recording_lose_and_repeat_nothing(pretended):
    captured, eager = game(torch.float64, steps=10), game(torch.float64, steps=10)
    assert run_captured(captured) == ["captured", "captured"]
    train(eager, engine=Eager("cpu", dtype=torch.float64))
    assert largest_difference(captured, eager) == 0


def test_a_step_with_a_state_of_its_own_is_not_kept_as_a_recording(pretended):
    training, calls = game(torch.float64, steps=10), itertools.count()
    loss = training.turns[1].player.loss
    object.__setattr__(training.turns[1].player, "loss", lambda batch: loss(batch) * (1 + next(calls)))
    with pytest.warns(UserWarning, match="steps of the generator run without a CUDA graph.*gives other numbers"):
        ways = run_captured(training)
    assert ways[0] == "captured"
    assert ways[1].startswith("eager, as the recorded step gives other numbers")


def test_engines_say_what_they_are_and_where():
    assert isinstance(choose_engine("cpu"), Eager)
    assert repr(Eager("cpu")) == "Eager(device='cpu', dtype=torch.float32, threads=1)"
    assert "backend='inductor'" in repr(Compiled("cpu"))
    if not torch.cuda.is_available():
        with pytest.raises(InvalidArgument, match="captured on CUDA devices only"):
            Captured()


@pytest.mark.parametrize(("torchs", "ours"), [(1, 1), (2, 1), (8, 4)])
def test_pictures_on_the_cpu_take_half_of_the_threads(torchs, ours, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: torchs)
    assert choose_engine("cpu", pictures=True).threads == ours
    assert choose_engine("cpu").threads == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_steps_are_eager_steps():
    """The long version is benchmarks/engines.py."""
    from torchspot import SPOT

    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(1000, 2, generator=rng), torch.randn(1000, 2, generator=rng) + 3
    captured, eager = (SPOT(steps=50, engine=e).fit(x, y) for e in (Captured(), Eager("cuda")))
    assert captured.plan_.facts["engine"].startswith("captured")
    for a, b in zip(captured.sample(100, 0), eager.sample(100, 0), strict=True):
        assert torch.allclose(a, b, atol=1e-4)
