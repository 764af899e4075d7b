"""Cost per step and memory against the number of rows: neither may grow. Writes one JSON object a line.

    python benchmarks/scale_n.py --out results/scale_n.jsonl [--rows 100000 …] [--source parquet | dataset] [--quick]

Each size is measured in a process of its own, on float32 rows of .npy files that are mapped, of Parquet files that are
copied once to such a map, or of a Dataset in a DataLoader with one worker, which reads row by row. Steps run on one
thread; what they need next is read meanwhile by others. Time per step is the median over blocks of steps; sizes take
turns, so that a noisy moment of the machine hits all of them. Memory is RssAnon (what the process itself has allocated;
pages of the mapped file are not counted, nor are workers), the most that was seen at the ends of blocks. 10⁸ rows take
1.6 GB of disk (twice that as Parquet) under TMPDIR.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from torchspot import SPOT

BLOCKS = 20
DIM = 2
PIECE = 1_000_000


def write(folder: Path, rows: int, source: str) -> list[Path]:
    """Two Gaussians five apart, written in pieces; as Parquet sorted by the first coordinate within each piece."""
    return write_parquet(folder, rows) if source == "parquet" else write_mapped(folder, rows)


def pieces(k: int, rows: int) -> Iterator[np.ndarray]:
    """The rows of marginal k, a million at a time."""
    rng = np.random.default_rng(k)
    for start in range(0, rows, PIECE):
        piece = rng.standard_normal(size=(min(PIECE, rows - start), DIM), dtype=np.float32)
        piece[:, 0] += 5 * k - 2.5
        yield piece


def write_parquet(folder: Path, rows: int) -> list[Path]:
    """A folder of Parquet files for each marginal."""
    folders = [folder / f"{rows}-{k}" for k in range(2)]
    for k, target in enumerate(folders):
        target.mkdir()
        for number, piece in enumerate(pieces(k, rows)):
            order = np.argsort(piece[:, 0])
            table = pa.table({f"x{j}": piece[order, j] for j in range(DIM)})
            pq.write_table(table, target / f"{number:04d}.parquet", compression="none")
    return folders


def write_mapped(folder: Path, rows: int) -> list[Path]:
    """One .npy file for each marginal."""
    files = [folder / f"{rows}-{k}.npy" for k in range(2)]
    for k, file in enumerate(files):
        out = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(rows, DIM))
        for number, piece in enumerate(pieces(k, rows)):
            out[number * PIECE : number * PIECE + len(piece)] = piece
        out.flush()
    return files


class OneByOne(Dataset[Tensor]):
    """Rows of a mapped file, as a dataset of one's own gives them."""

    def __init__(self, file: Path) -> None:
        self.rows = np.load(file, mmap_mode="r")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self.rows[index]))


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
        self.memory = max(self.memory, anonymous_memory())
        if training.step < training.steps:
            self.turn.acquire()
        self.started = time.perf_counter()


def measure(files: list[Path], source: str, steps: int, turn: Any, done: Any, result: Any) -> None:
    torch.set_num_threads(1)
    clock = Clock(turn, done)
    sources = [DataLoader(OneByOne(file), num_workers=1) for file in files] if source == "dataset" else files
    spot = SPOT(steps=steps, callbacks=[clock]).fit(*sources)
    result.put({"blocks": clock.blocks, "rss_anon": clock.memory, "error": spot.distance_.value / 5 - 1})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("scale_n.jsonl"))
    parser.add_argument("--rows", type=int, nargs="*", default=[10**k for k in range(5, 9)])
    parser.add_argument("--steps", type=int, default=2000, help="a multiple of 20 of at most 2000")
    parser.add_argument("--source", choices=["npy", "parquet", "dataset"], default="npy")
    parser.add_argument("--quick", action="store_true", help="few rows and steps, to see that it runs")
    arguments = parser.parse_args()
    sizes, steps = ([1000, 20_000], 200) if arguments.quick else (arguments.rows, arguments.steps)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHSPOT_CACHE"] = str(Path(folder) / "cache")
        sides = []
        for rows in sizes:
            turn, done, result = spawn.Semaphore(0), spawn.Semaphore(0), spawn.Queue()
            files = write(Path(folder), rows, arguments.source)
            process = spawn.Process(target=measure, args=(files, arguments.source, steps, turn, done, result))
            process.start()
            sides.append((rows, turn, done, result, process))
        for _ in range(BLOCKS):
            for _, turn, done, _, _ in sides:
                turn.release()
                done.acquire()
        found = [{"rows": rows} | result.get() for rows, _, _, result, _ in sides]
        for *_, process in sides:
            process.join()
    report(found, steps // BLOCKS, arguments.source, arguments.out)


def report(found: list[dict[str, Any]], block: int, source: str, out: Path) -> None:
    base = found[0]
    print(f"{'rows':>10s} {'ms/step':>8s} {'ratio':>6s} {'RssAnon MB':>11s} {'error':>7s}")
    lines = []
    for side in found:
        ratio = statistics.median(a / b for a, b in zip(side["blocks"][1:], base["blocks"][1:], strict=True))
        row = {
            "experiment": "scale_n",
            "setting": {"rows": side["rows"], "dim": DIM, "source": source},
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
