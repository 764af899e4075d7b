"""Steps a second of each engine, side by side in one run, and how far each is from the floor.

    python benchmarks/step.py [--device cuda] [--out results/step_h200.jsonl] [--only "width 8"] [--quick]
    python benchmarks/step.py --against ../an-older-checkout     # the eager step on the CPU, before and after

The floor of a step is the largest of three times, each counted on one eager step and measured in the same run:
operations × the time of the smallest operation (on CUDA: kernels × time a kernel takes inside a graph; on the CPU:
calls × one addition of one number), bytes that operations read and write ÷ the bandwidth of a large copy, and FLOPs
of matrix products and convolutions ÷ the rate of a large float32 product.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from games import flow, pictures, section_5_1, section_5_3, section_5_4
from torchspot.networks.lipschitz import Orthogonal, SpectralNorm
from torchspot.training.engine import Captured, Compiled, Eager

CONTROLS = {"orthogonal": Orthogonal(), "spectral norm": SpectralNorm()}
GAMES = {
    f"section 5.1, width {width}, {'50 replicas' if replicas > 1 else '1 run'}, {name}": (
        lambda e, width=width, replicas=replicas, control=control: section_5_1(
            e, width=width, replicas=replicas, control=control
        )
    )
    for width in (8, 512)
    for replicas in (1, 50)
    for name, control in CONTROLS.items()
} | {"pictures (convolutions, batch norm, tied)": pictures, "flow (RK4)": flow}
PICTURES = {
    f"section 5.3, {size} pixels, batch {batch}": lambda e, size=size, batch=batch: section_5_3(
        e, size=size, batch=batch
    )
    for size, batch in ((28, 128), (64, 64), (64, 128))
}
PICTURES |= {
    f"section 5.4 (adaptation), 28 pixels, batch {batch}": lambda e, batch=batch: section_5_4(e, batch=batch)
    for batch in (64, 128)
}
"""Real pictures, for which products may be in bfloat16."""
GAMES |= PICTURES
REPEATS = 5


class Runner:
    """A game and the engine that steps it."""

    def __init__(self, build, engine) -> None:
        self.engine, self.training = engine, build(engine)
        self.steps = [(turn.player.repeats, engine.prepare(turn)) for turn in self.training.turns]

    def run(self, count: int) -> float:
        """Seconds a step, over so many."""
        with self.engine.running():
            synchronise(self.engine.device)
            started = time.perf_counter()
            for number in range(count):
                for repeats, step in self.steps:
                    for _ in range(repeats(number)):
                        step()
            synchronise(self.engine.device)
        return (time.perf_counter() - started) / count

    @property
    def how(self) -> str:
        return "; ".join(sorted({step.how for _, step in self.steps}))


class Counter(TorchDispatchMode):
    """Operations that are no views, and the bytes of their inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.calls += 1
            self.bytes += sum(map(size, tensors_of((args, kwargs or {}, result))))
        return result


def tensors_of(tree) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def size(tensor: torch.Tensor) -> int:
    """Bytes of memory behind a tensor: what is expanded counts once."""
    numbers = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers *= length if stride else 1
    return numbers * tensor.element_size()


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def median_time(function, device: torch.device, repeats: int = 7) -> float:
    times = []
    for _ in range(repeats):
        synchronise(device)
        started = time.perf_counter()
        function()
        synchronise(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def machine(device: torch.device) -> dict[str, float]:
    """Seconds of the smallest operation, bytes a second of a copy, FLOPs a second of a product."""
    one, count = torch.zeros(1, device=device), 1000

    def additions() -> None:
        for _ in range(count):
            one.add_(1)

    additions()
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            additions()
        smallest = median_time(graph.replay, device) / count
    else:
        smallest = median_time(additions, device) / count
    large = torch.zeros(1 << (29 if device.type == "cuda" else 25), dtype=torch.uint8, device=device)
    other = torch.empty_like(large)
    n = 8192 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device)
    return {
        "operation": smallest,
        "bandwidth": 2 * large.numel() / median_time(lambda: other.copy_(large), device),
        "flops": 2 * n**3 / median_time(lambda: a @ a, device),
    }


def floor(build, device: str, numbers: dict[str, float]) -> dict[str, float]:
    """What a step has to do at least, counted, and the time that takes."""
    runner = Runner(build, Eager(device))
    runner.run(2)
    with Counter() as counter, FlopCounterMode(display=False) as flops:
        runner.run(2)
    calls, moved, products = counter.calls / 2, counter.bytes / 2, flops.get_total_flops() / 2
    if runner.engine.device.type == "cuda":
        calls = kernels(runner)
    times = {
        "operations": calls * numbers["operation"],
        "bytes": moved / numbers["bandwidth"],
        "flops": products / numbers["flops"],
    }
    binding = max(times, key=times.get)
    counted = {"operations": calls, "bytes": moved, "flops": products}
    return {
        "counted": counted,
        "times_ms": {k: 1e3 * v for k, v in times.items()},
        "bound_by": binding,
        "seconds": times[binding],
    }


def kernels(runner: Runner) -> float:
    """Kernels and copies that the device ran for one eager step."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        runner.run(2)
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profile.events()) / 2


def measure(build, engine, *, seconds: float) -> tuple[list[float], str]:
    """Seconds a step in each repeat, after warming up."""
    runner = Runner(build, engine)
    runner.run(8 if seconds > 0.1 else 4)
    count = max(1, min(2000, round(seconds / REPEATS / runner.run(1))))
    return [runner.run(count) for _ in range(REPEATS)], runner.how


def measure_game(name: str, build, options, numbers: dict[str, float], facts: dict) -> list[dict]:
    cuda = Eager(options.device).device.type == "cuda"
    engines = {"eager": lambda: Eager(options.device)}
    if cuda:
        engines["captured"] = lambda: Captured(options.device)
    if name in PICTURES:
        engines |= {"eager bf16": lambda: Eager(options.device, autocast=torch.bfloat16)}
        engines |= {"shipped": lambda: Captured(options.device, autocast=torch.bfloat16)} if cuda else {}
    if not options.no_compile and name not in PICTURES:
        engines["compiled"] = lambda: Compiled(options.device, outlast=0)
    least = floor(build, options.device, numbers)
    rows = []
    for engine, make in engines.items():
        torch.compiler.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            times, how = measure(build, make(), seconds=0.05 if options.quick else 1.0)
        median = statistics.median(times)
        first = median if engine == "eager" else rows[0]["ms"] / 1e3
        row = facts | {
            "game": name,
            "engine": engine,
            "how": how,
            "ms": 1e3 * median,
            "spread_ms": 1e3 * (max(times) - min(times)),
        }
        row |= {
            "steps_per_second": 1 / median,
            "times_eager": first / median,
            "floor": least,
            "over_floor": median / least["seconds"],
        }
        rows.append(row)
        print(
            f"{name:48} {engine:9} {1e3 * median:9.3f} ms {1 / median:8.1f}/s {first / median:5.1f}x eager "
            f"{row['over_floor']:5.1f}x floor ({least['bound_by']}, {1e3 * least['seconds']:.3f} ms)  {how[:90]}",
            flush=True,
        )
    return rows


BEFORE_AFTER = """
import dataclasses, json, sys
import numpy as np
from torchspot import SPOT, presets
width, steps, last = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
x, y = (rng.normal((m, 0), 1, size=(100_000, 2)) for m in (-2.5, 2.5))
def stop(training, record):
    if training.step >= last:
        training.stop("enough")
spot = SPOT(preset=dataclasses.replace(presets.default(), width=width), steps=steps, callbacks=[stop]).fit(x, y)
logs = [r for r in spot.history_ if r["step"] > 0]
print(json.dumps([(b["seconds"] - a["seconds"]) / (b["step"] - a["step"]) for a, b in zip(logs, logs[1:])]))
"""


def before_after(old: Path, quick: bool) -> list[dict]:
    """The eager step through the public names alone, in this checkout and another, in turn."""
    trees = {"before": old.resolve(), "after": Path(__file__).resolve().parents[1]}
    rows = []
    for width, steps, last in ((8, 2000, 500), (64, 2000, 400), (512, 600, 90)):
        times: dict[str, list[float]] = {name: [] for name in trees}
        for _ in range(2 if quick else REPEATS):
            for name, tree in trees.items():
                environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
                command = [sys.executable, "-c", BEFORE_AFTER, str(width), str(steps), str(last)]
                said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
                times[name].append(statistics.median(json.loads(said)))
        ratio = statistics.median(b / a for b, a in zip(times["before"], times["after"], strict=True))
        before, after = (1e3 * statistics.median(times[name]) for name in trees)
        rows.append({"width": width, "before_ms": before, "after_ms": after, "ratio": ratio, "all": times})
        print(f"width {width:4}: {before:.2f} ms before, {after:.2f} ms after, {ratio:.2f}x faster", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="part of a game's name")
    parser.add_argument("--skip", default="-", help="part of the names to leave out")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--against", type=Path, help="an older checkout to compare the eager CPU step with")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = Eager(options.device).device
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, one thread"
    facts = {"benchmark": "step", "hardware": hardware, "torch": torch.__version__}
    rows = []
    if options.against:
        rows = [facts | row for row in before_after(options.against, options.quick)]
    else:
        numbers = machine(device)
        rates = f"{numbers['bandwidth'] / 1e9:.0f} GB/s, {numbers['flops'] / 1e12:.2f} TFLOP/s"
        print(f"{hardware}: {1e6 * numbers['operation']:.2f} µs an operation, {rates}")
        facts |= {"machine": numbers}
        for name, build in GAMES.items():
            if options.only in name and options.skip not in name:
                rows += measure_game(name, build, options, numbers, facts)
                if options.out:
                    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
