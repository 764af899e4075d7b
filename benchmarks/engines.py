"""Do captured and compiled runs give what eager runs give? `python benchmarks/engines.py --check` on a GPU.

float64: two runs of 100 steps side by side; the largest difference of parameters, averages and buffers, relative to
the largest of each. float32: 30 single steps, each from the same state; also the same of the mean gradient, as Adam
turns rounding errors of gradients that are 0 (a constant added to a critic) into full steps. Then what a graph must
survive: a run that is stopped and resumed, a step that cannot be recorded, numbers that stop being finite.
"""

import argparse
import contextlib
import json
import platform
import tempfile
import warnings
from pathlib import Path

import torch

from games import flow, pictures, section_5_1
from torchspot import SPOT, costs, presets
from torchspot.errors import Diverged
from torchspot.networks.lipschitz import SpectralNorm
from torchspot.training.callbacks import Checkpoint
from torchspot.training.engine import Captured, Compiled, Eager
from torchspot.training.loop import Training

GAMES = {
    "section 5.1, width 8": lambda e: section_5_1(e, width=8),
    "section 5.1, width 512": lambda e: section_5_1(e, width=512),
    "section 5.1, width 8, spectral norm": lambda e: section_5_1(e, width=8, control=SpectralNorm()),
    "section 5.1, width 8, 50 replicas": lambda e: section_5_1(e, width=8, replicas=50),
    "section 5.1, width 8, data on the host": lambda e: section_5_1(e, width=8, host_data=True),
    "pictures (convolutions, batch norm, tied)": pictures,
    "pictures, 4 replicas": lambda e: pictures(e, replicas=4),
    "flow (RK4)": flow,
}


COMPILED = {name for name in GAMES if not any(part in name for part in ("512", "host", "4 replicas", "spectral"))}
"""Compiling takes its time; these show what there is to show."""


def tensors(training: Training) -> list[torch.Tensor]:
    """All of the state that is a number."""
    return [t for turn in training.turns for t in turn.tensors() if t.is_floating_point()]


def parameters(training: Training) -> list[torch.Tensor]:
    averages = [turn.average.vector for turn in training.turns if turn.average is not None]
    modules = [module for turn in training.turns for module in turn.player.modules]
    buffers = [buffer for module in modules for buffer in module.buffers() if buffer.is_floating_point()]
    return [*(turn.flat.vector for turn in training.turns), *averages, *buffers]


def gradients(training: Training) -> list[torch.Tensor]:
    return [turn.memory["mean"] for turn in training.turns]


def difference(a: Training, b: Training, numbers=parameters) -> float:
    pairs = zip(numbers(a), numbers(b), strict=True)
    return max(float((s - t).abs().max() / t.abs().max().clamp(min=1e-3)) for s, t in pairs)


class Lockstep:
    """A game stepped by hand."""

    def __init__(self, build, engine) -> None:
        self.engine, self.training = engine, build(engine)
        self.steps = [(turn.player.repeats, engine.prepare(turn)) for turn in self.training.turns]

    def step(self, count: int = 1) -> None:
        with self.engine.running():
            for _ in range(count):
                for repeats, step in self.steps:
                    for _ in range(repeats(self.training.step)):
                        step()
                self.training.step += 1

    @property
    def how(self) -> str:
        return ", ".join(sorted({step.how for _, step in self.steps}))


def compare(build, engine_of) -> dict:
    eager = Lockstep(build, Eager(DEVICE, dtype=torch.float64))
    other = Lockstep(build, engine_of(torch.float64))
    eager.step(100)
    other.step(100)
    result = {"float64, 100 steps": difference(other.training, eager.training), "how": other.how}
    eager, other = Lockstep(build, Eager(DEVICE)), Lockstep(build, engine_of(torch.float32))
    worst, worst_gradient = 0.0, 0.0
    for _ in range(30):
        with torch.no_grad():
            for s, t in zip(tensors(other.training), tensors(eager.training), strict=True):
                s.copy_(t)
        eager.step()
        other.step()
        worst = max(worst, difference(other.training, eager.training))
        worst_gradient = max(worst_gradient, difference(other.training, eager.training, gradients))
    return result | {"float32, one step": worst, "float32, mean gradient": worst_gradient}


def resumed() -> str:
    """A captured run that is stopped, saved and resumed ends bit for bit where an uninterrupted one does."""
    x = torch.randn(5000, 2)
    y = torch.randn(5000, 2) + 3
    whole = SPOT(steps=300).fit(x, y)

    class Stop(Exception):
        pass

    def stop(training, record):
        if training.step == 120:
            raise Stop

    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(Stop):
            SPOT(steps=300, callbacks=[Checkpoint(folder, every_seconds=0), stop]).fit(x, y, resume=folder)
        again = SPOT(steps=300).fit(x, y, resume=folder)
    equal = all(
        torch.equal(a, b) for a, b in zip(whole.plan_.sample(1000, 1), again.plan_.sample(1000, 1), strict=True)
    )
    return f"equal bit for bit: {equal} ({again.plan_.facts['engine']})"


def falls_back() -> str:
    """A cost that looks at its values on the host cannot be recorded: eager, with the reason, and a right answer."""

    def looking(x, y):
        cost = (x - y).norm(dim=1)
        return cost if cost.mean().item() >= 0 else -cost

    x, y = torch.randn(5000, 2), torch.randn(5000, 2) + 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spot = SPOT(cost=looking, steps=60, marginal_weight=2).fit(x, y)
    plain = SPOT(cost=costs.euclidean, steps=60, marginal_weight=2).fit(x, y)
    apart = abs(spot.distance_.value - plain.distance_.value)
    return f"{spot.plan_.facts['engine']} | warned {len(caught)} | apart from captured {apart:.1e}"


def drawing_its_own() -> str:
    """A cost with random numbers of its own is recorded, found to differ, and run eagerly."""
    x, y = torch.randn(5000, 2), torch.randn(5000, 2) + 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spot = SPOT(cost=lambda x, y: (x - y + 0.1 * torch.randn_like(x)).norm(dim=1), steps=40, marginal_weight=2)
        spot.fit(x, y)
    return f"{spot.plan_.facts['engine']} | warned {len(caught)}"


def diverges() -> str:
    x, y = torch.randn(5000, 2), torch.randn(5000, 2) + 3
    try:
        cost = lambda x, y: torch.log(60 - x.square().sum(1)) + (x - y).norm(dim=1)  # noqa: E731
        SPOT(cost=cost, marginal_weight=1, steps=500, preset=presets.default(learning_rate=1.0)).fit(x, y)
    except Diverged as error:
        return f"Diverged at step {error.step}"
    return "not noticed"


def no_sync() -> str:
    """No step waits for the device: torch raises if one does."""
    engine = Captured(DEVICE)
    game = Lockstep(lambda e: section_5_1(e, width=8), engine)
    game.step(10)
    torch.cuda.set_sync_debug_mode("error")
    try:
        game.step(50)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none in 50 steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with eager (all there is so far)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    global DEVICE  # noqa: PLW0603
    DEVICE = options.device
    cuda = Eager(DEVICE).device.type == "cuda"
    hardware = torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {hardware}")
    compiled = {"compiled": lambda dtype: Compiled(DEVICE, dtype=dtype, backend=options.backend, outlast=0)}
    engines = ({"captured": lambda dtype: Captured(DEVICE, dtype=dtype)} if cuda else {}) | compiled
    torch.backends.cudnn.deterministic = True
    rows = []
    for game, build in GAMES.items():
        for name, engine_of in engines.items():
            left_out = name == "compiled" and game not in COMPILED
            if left_out or options.only not in f"{game} {name}":
                continue
            torch.compiler.reset()
            row = {"game": game, "engine": name} | compare(build, engine_of)
            rows.append(row)
            apart = f"f64 {row['float64, 100 steps']:.1e}  f32 {row['float32, one step']:.1e}"
            apart += f" (gradient {row['float32, mean gradient']:.1e})"
            print(f"{game:42} {name:9} {apart}  {row['how']}", flush=True)
    if cuda and not options.only:
        for check in (resumed, falls_back, drawing_its_own, diverges, no_sync):
            said = check()
            rows.append({"check": check.__name__, "result": said})
            print(f"{check.__name__}: {said}")
    if options.out:
        options.out.write_text(
            "".join(json.dumps({"hardware": hardware, "torch": torch.__version__} | r) + "\n" for r in rows)
        )


if __name__ == "__main__":
    main()
