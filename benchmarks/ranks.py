"""Processes that train together: time per step for 1, 2 and 4 of them, side by side. Writes one JSON object a line.

    python benchmarks/ranks.py --out results/ranks_cpu.jsonl [--processes 1 2 4] [--repeats 3] [--quick]

Each count of processes is a run of torchrun on this machine, one thread a process, gloo between them; counts take turns
and the median of the repeats is kept. Every process draws a batch of its own, so there are more samples a step the more
processes there are (weak scaling). The message is one vector a player: its gradient and its loss.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchspot import SPOT, engines
from torchspot.types import Record

GAMES = {"plane": ((2,), 512, 800), "64 dimensions": ((64,), 512, 60), "pictures 3x32x32": ((3, 32, 32), 32, 20)}
"""Shape of the samples, samples a step and process, steps."""


class Clock:
    """Seconds at logged steps."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def __call__(self, training: Any, record: Record) -> None:
        self.seen.append((training.step, time.perf_counter()))


def worker(game: str, steps: int) -> None:
    """One of the processes; the first one prints what it took."""
    shape, batch, _ = GAMES[game]
    engine = engines.Distributed(engines.Eager("cpu"))
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(4000, *shape)).astype(np.float32).clip(-3, 3) for _ in range(2))
    clock = Clock()
    spot = SPOT(steps=steps, batch_size=batch, engine=engine, callbacks=[clock]).fit(x, y + 1)
    if engine.ranks.rank == 0:
        paces = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(clock.seen[1:], clock.seen[2:], strict=False)]
        networks = (spot.plan_.generator, spot.critics_)
        numbers = [sum(p.numel() for p in network.parameters()) for network in networks]
        print("took", json.dumps({"ms": 1000 * statistics.median(paces), "message": [4 * (n + 1) for n in numbers]}))


def run(game: str, count: int, steps: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", __file__]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    asked = [*command, "--worker", game, str(steps)]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)
    said = next((line for line in done.stdout.splitlines() if line.startswith("took ")), None)
    if said is None:
        raise RuntimeError(done.stderr)
    return json.loads(said.removeprefix("took "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("ranks.jsonl"))
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        torch.set_num_threads(1)
        worker(arguments.worker[0], int(arguments.worker[1]))
        return
    lines = []
    print(f"{'game':>18s} {'processes':>9s} {'ms/step':>8s} {'samples/s':>10s} {'of one':>7s}")
    for game, (_, batch, steps) in GAMES.items():
        taken: dict[int, list[dict[str, Any]]] = {count: [] for count in arguments.processes}
        for _ in range(1 if arguments.quick else arguments.repeats):
            for count, some in taken.items():
                some.append(run(game, count, 30 if arguments.quick else steps))
        alone = None
        for count, some in taken.items():
            ms = statistics.median(one["ms"] for one in some)
            samples = 1000 * batch * count / ms
            alone = alone or samples
            message = some[0]["message"]
            setting = {"game": game, "processes": count, "cores": os.cpu_count(), "batch": batch}
            row = {"ms_per_step": ms, "samples_per_second": samples, "of_one": samples / alone}
            lines.append({"experiment": "ranks", "setting": setting, **row, "message_bytes": message})
            print(f"{game:>18s} {count:9d} {ms:8.2f} {samples:10.0f} {samples / alone:6.2f}×", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
