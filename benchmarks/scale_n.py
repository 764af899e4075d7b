"""Cost per step and memory against the number of rows: neither may grow. Writes one JSON object a line.

    python benchmarks/scale_n.py --out results/scale_n.jsonl [--rows 10000 1000000 10000000] [--quick]

Each size is measured in a process of its own, on float32 rows mapped from a .npy file. Time per step is the median over
blocks of steps; sizes take turns, so that a noisy moment of the machine hits all of them. Memory is RssAnon (what the
process itself has allocated; pages of the mapped file are not counted), read at the end of training.
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchspot import SPOT

BLOCK = 50
DIM = 2


def write(folder: Path, rows: int) -> list[Path]:
    """Two Gaussians five apart, written in pieces."""
    files = [folder / f"{rows}-{k}.npy" for k in range(2)]
    for k, file in enumerate(files):
        rng = np.random.default_rng(k)
        out = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(rows, DIM))
        for start in range(0, rows, 1_000_000):
            piece = out[start : start + 1_000_000]
            piece[:] = rng.normal(size=piece.shape)
            piece[:, 0] += 5 * k - 2.5
        out.flush()
    return files


def anonymous_memory() -> int:
    """RssAnon of this process in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Clock:
    """Seconds of each block of steps, measuring left out; waits for its turn before each block."""

    def __init__(self, turn: Any, done: Any) -> None:
        self.turn, self.done = turn, done
        self.blocks: list[float] = []
        self.started: float | None = None
        self.memory = 0

    def __call__(self, training: Any, record: dict[str, Any]) -> None:
        if self.started is not None:
            self.blocks.append(time.perf_counter() - self.started)
            self.done.release()
        self.memory = anonymous_memory()
        if training.step < training.steps:
            self.turn.acquire()
        self.started = time.perf_counter()


def measure(files: list[Path], steps: int, turn: Any, done: Any, result: Any) -> None:
    torch.set_num_threads(1)
    clock = Clock(turn, done)
    spot = SPOT(steps=steps, callbacks=[clock]).fit(*files)
    result.put({"blocks": clock.blocks, "rss_anon": clock.memory, "error": spot.distance_.value / 5 - 1})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scale_n.jsonl"))
    parser.add_argument("--rows", type=int, nargs="*", default=[10_000, 1_000_000, 10_000_000])
    parser.add_argument("--steps", type=int, default=20 * BLOCK)
    parser.add_argument("--quick", action="store_true", help="few rows and steps, to see that it runs")
    arguments = parser.parse_args()
    sizes, steps = ([1000, 20_000], 200) if arguments.quick else (arguments.rows, arguments.steps)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        sides = []
        for rows in sizes:
            turn, done, result = spawn.Semaphore(0), spawn.Semaphore(0), spawn.Queue()
            process = spawn.Process(target=measure, args=(write(Path(folder), rows), steps, turn, done, result))
            process.start()
            sides.append((rows, turn, done, result, process))
        blocks = 20
        for _ in range(blocks):
            for _, turn, done, _, _ in sides:
                turn.release()
                done.acquire()
        found = [{"rows": rows} | result.get() for rows, _, _, result, _ in sides]
        for *_, process in sides:
            process.join()
    report(found, steps // blocks, arguments.out)


def report(found: list[dict[str, Any]], block: int, out: Path) -> None:
    base = found[0]
    print(f"{'rows':>10s} {'ms/step':>8s} {'ratio':>6s} {'RssAnon MB':>11s} {'error':>7s}")
    lines = []
    for side in found:
        ratio = statistics.median(a / b for a, b in zip(side["blocks"][1:], base["blocks"][1:], strict=True))
        row = {
            "experiment": "scale_n",
            "setting": {"rows": side["rows"], "dim": DIM, "source": "memory-mapped .npy"},
            "ms_per_step": 1000 * statistics.median(side["blocks"][1:]) / block,
            "ratio_to_smallest": ratio,
            "rss_anon_bytes": side["rss_anon"],
            "error": side["error"],
        }
        lines.append(json.dumps(row) + "\n")
        memory = side["rss_anon"] / 1e6
        print(f"{side['rows']:10d} {row['ms_per_step']:8.2f} {ratio:6.3f} {memory:11.0f} {side['error']:+7.2%}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(lines))


if __name__ == "__main__":
    main()
