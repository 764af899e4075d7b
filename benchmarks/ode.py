"""Flows: training steps of each engine and solver side by side, torchdiffeq beside them, and memory of the adjoint.

    python benchmarks/ode.py [--device cuda] [--out results/ode_h200.jsonl] [--quick]

* step: one training step of section 5.2 (batch 1024, 64 units): eager, compiled, on CUDA captured; and with
  torchdiffeq's odeint inside the same game, in the same four steps and adaptively at tolerances 1e-3 and 1e-5.
* solve: the map with its log-density alone, without gradients. RK4 takes as many steps as give the error of
  torchdiffeq's dopri5 at each tolerance, for a field as it is after some training.
* memory: bytes kept for the backward pass (on CUDA also the peak) against the number of steps.
"""

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torchdiffeq import odeint

from games import FOUR, flow, rng
from step import Runner, synchronise
from torchspot.networks import ode
from torchspot.networks.generators import Shapes
from torchspot.networks.solvers import RK4, Adjoint, Dopri5
from torchspot.training.engine import Captured, Compiled, Eager

REPEATS = 5
TOLERANCES = (1e-3, 1e-5)


class TorchdiffeqRK4:
    """torchdiffeq's own fixed steps (the 3/8 rule), with gradients by backpropagation."""

    def __init__(self, steps: int) -> None:
        self.options = RK4(steps).options()

    def __call__(self, motion, start, span, weights):
        path = odeint(motion, start, torch.tensor(span, device=start[0].device), **self.options)
        return tuple(y[-1] for y in path)


def steps(options) -> Iterator[dict]:
    """All ways interleaved: each repeat runs some steps of every one."""
    device = options.device
    ways = {"eager": (FOUR, Eager(device))}
    if Eager(device).device.type == "cuda":
        ways["captured"] = (FOUR, Captured(device))
    if not options.no_compile:
        ways["compiled"] = (FOUR, Compiled(device, outlast=0))
    ways["torchdiffeq rk4, eager"] = (TorchdiffeqRK4(4), Eager(device))
    ways |= {f"torchdiffeq dopri5 {t:g}, eager": (Dopri5(t), Eager(device)) for t in TOLERANCES}
    ways["adjoint of rk4, eager"] = (Adjoint(FOUR), Eager(device))
    for sizes in ((1, 1), (8, 8)):
        builds = {name: partial(flow, sizes=sizes, solver=solver) for name, (solver, _) in ways.items()}
        runners = {name: Runner(builds[name], engine) for name, (_, engine) in ways.items()}
        for runner in runners.values():
            runner.run(2 if options.quick else 8)
        count = {name: max(1, round((0.02 if options.quick else 0.4) / r.run(1))) for name, r in runners.items()}
        times = {name: [] for name in runners}
        for _ in range(2 if options.quick else REPEATS):
            for name, runner in runners.items():
                times[name].append(runner.run(count[name]))
        for name, taken in times.items():
            ms = 1e3 * statistics.median(taken)
            ratio = statistics.median(a / b for a, b in zip(times["eager"], taken, strict=True))
            print(f"step {sizes}: {name:32} {ms:8.2f} ms {ratio:6.2f}x eager  ({runners[name].how[:60]})", flush=True)
            about = {"part": "step", "dimensions": list(sizes), "way": name, "how": runners[name].how}
            yield about | {"ms": ms, "times_eager": ratio}
        ways.pop("compiled", None)  # once is enough: it takes a minute


def made(device: torch.device, dim: int = 2):
    """A flow whose field is about as steep as a trained one, in float32."""
    network = ode.flow(64)(Shapes(2 * dim, ((dim,), (dim,))), rng(0))
    for parameter in network.field.parameters():
        torch.nn.init.normal_(parameter, std=0.2, generator=rng(1))
    return network.to(device)


@torch.no_grad()
def solves(options) -> Iterator[dict]:
    device = Eager(options.device).device
    network = made(device)
    z = torch.randn(1024 if options.quick else 10_000, 4, generator=rng(2)).to(device)
    exact = joined(network.double().solved_by(Dopri5(1e-11)), z.double())
    network.float()
    for tolerance in TOLERANCES:
        adaptive = network.solved_by(Dopri5(tolerance))
        goal = float((joined(adaptive, z) - exact).abs().mean())
        count = next(
            k for k in range(1, 200) if float((joined(network.solved_by(RK4(k)), z) - exact).abs().mean()) <= goal
        )
        ours = network.solved_by(RK4(count))
        ways = {"dopri5": lambda f=adaptive: joined(f, z), f"RK4({count})": lambda f=ours: joined(f, z)}
        if device.type == "cuda":
            ways[f"RK4({count}), captured"] = captured(lambda f=ours: joined(f, z))
        times = {name: [] for name in ways}
        for _ in range(2 if options.quick else 3 * REPEATS):
            for name, way in ways.items():
                synchronise(device)
                started = time.perf_counter()
                way()
                synchronise(device)
                times[name].append(time.perf_counter() - started)
        for name, taken in times.items():
            ratio = statistics.median(a / b for a, b in zip(times["dopri5"], taken, strict=True))
            ms = 1e3 * statistics.median(taken)
            print(f"solve to {goal:.1e} ({tolerance:g}): {name:20} {ms:8.2f} ms {ratio:6.2f}x dopri5", flush=True)
            about = {"part": "solve", "tolerance": tolerance, "mean_error": goal, "way": name}
            yield about | {"ms": ms, "times_dopri5": ratio}


def joined(network, z):
    xs, log_p = network.with_log_density(z)
    return torch.cat([*xs, log_p[:, None]], 1)


def captured(function):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def memory(options) -> Iterator[dict]:
    device = Eager(options.device).device
    network = made(device, 1)
    z = torch.randn(1024, 2, generator=rng(2)).to(device)
    saved(network, z)  # the first call also allocates what libraries work with
    for name, solver in (("backpropagation", RK4), ("adjoint", lambda k: Adjoint(RK4(k)))):
        for count in (4, 16, 64, 256):
            kept, peak = saved(network.solved_by(solver(count)), z)
            yield {"part": "memory", "way": name, "steps": count, "saved_bytes": kept, "peak_bytes": peak}
            beside = "" if peak is None else f", peak {peak / 2**20:.1f} MiB"
            print(f"memory: {name:16} {count:4} steps: {kept / 2**20:8.2f} MiB saved{beside}", flush=True)


def saved(network, z) -> tuple[int, int | None]:
    """Bytes kept for the backward pass, and on CUDA the most that was in use until it ended."""
    kept: dict[int, int] = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    cuda = z.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if cuda else 0
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        xs, log_p = network.with_log_density(z)
        loss = (xs[0] - xs[1]).square().mean() + log_p.mean()
    torch.autograd.grad(loss, list(network.parameters()))
    return sum(kept.values()), torch.cuda.max_memory_allocated() - before if cuda else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    device = Eager(options.device).device
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, one thread"
    facts = {"benchmark": "ode", "hardware": hardware, "torch": torch.__version__}
    rows = []
    for part in (memory, solves, steps):
        for row in part(options):
            rows.append(facts | row)
            if options.out:
                options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
