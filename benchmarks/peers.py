"""torchspot beside POT, GeomLoss, OTT and FlashSinkhorn: one table, one figure, one JSON row a number.

    pip install POT geomloss pykeops 'ott-jax[neural]' 'jax<0.11' flash-sinkhorn      # what is missing is said
    python benchmarks/peers.py --out results/peers.jsonl [--devices cpu cuda] [--slots 2] [--only learned/16] [--resume]

Every cell (method, problem, cost, dimension, number of rows, device) runs in a process of its own. Data are made and
what a library does once (imports, compiled kernels, finding the pace) is done without the clock; it then runs from data
in memory to the distance and whatever makes partners of fresh points, with `--seconds` for it. Methods that can use any
time (torchspot, OTT's neural duals) take as many steps as fit, at most a number of their own; others are ended when the
time is over, with a quarter more. A CPU cell has one core, and as many run at once as there are slots; on the GPU one
runs at a time. Memory is what a process takes above its data. Where a method has no answer, the row has a reason
instead of a value. The table and the figure are written beside the rows.
"""

import argparse
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from peer_report import KEYS, read, report

METHODS = (
    "torchspot",
    "pot-emd",
    "pot-emd-split",
    "pot-sinkhorn",
    "pot-lazy",
    "geomloss",
    "flash-sinkhorn",
    "ott-sinkhorn",
    "ott-neural",
    "ott-enot",
)
COSTS, DIMS, SIZES = ("euclidean", "squared_euclidean", "learned"), (2, 16, 64), tuple(10**k for k in range(3, 8))
GAUSSIAN_SIZES = (10_000, 100_000)
JUDGING = 300.0
"""Seconds to find partners of fresh points and to judge them, without the clock."""
COMPILING = {"ott-sinkhorn": 5.0}
"""Seconds of a run that do not grow with n."""
JUDGED = 40_000
"""Fresh points that are given partners."""
LIBRARIES = {
    "torchspot": "torchspot",
    "pot": "ot",
    "geomloss": "geomloss",
    "flash": "flash_sinkhorn",
    "ott": "ott.neural.methods",
}
STREAMED = ("torchspot", "ott-neural", "ott-enot")
"""Methods whose time is chosen and does not grow with n; that of others grows as n²."""


@dataclass(frozen=True)
class Cell:
    """A method on a problem."""

    method: str
    problem: str
    cost: str
    d: int
    n: int
    device: str

    def __str__(self) -> str:
        return f"{self.method}/{self.problem}/{self.cost}/{self.d}/{self.n}/{self.device}"

    @property
    def series(self) -> tuple[Any, ...]:
        """All but the number of rows."""
        return (self.method, self.problem, self.cost, self.d, self.device)


@dataclass
class Found:
    """What a cell gave."""

    cell: Cell
    reason: str | None = None
    metrics: dict[str, float] | None = None


def child(pipe: Connection, cell: Cell, seconds: float, room: float, core: int | None) -> None:
    """Loads, waits for its turn, makes its data, prepares, solves, and judges; says each as it is done."""
    device = settle(cell, core)
    try:
        import peer_jobs
        import peer_methods
        from peer_problems import laws

        importlib.import_module(LIBRARIES[cell.method.partition("-")[0]])
        world = laws(cell.problem, cell.cost, cell.d)
        pipe.send("ready")
        pipe.recv()
        x, y = world.sample(cell.n, 0, device)
        truth = world.truth(device)
        job = peer_jobs.Job(world, cell.cost, x, y, seconds, room)
        prepare = peer_methods.METHODS[cell.method]
        solve = None if cell.method in STREAMED else prepare(job)
        before = memory_now(cell.device)
        solve = solve or prepare(job)  # finds its pace, by runs that take memory
        pipe.send("going")
        started = time.perf_counter()
        answer = solve()
        if cell.device == "cuda":
            torch.cuda.synchronize()
        took, peak = time.perf_counter() - started, memory(cell.device) - before
        pipe.send("solved")
        found = {"value": answer.value, "truth": truth, "error": answer.value / truth - 1}
        found |= {"seconds": took, "peak_bytes": float(max(0, peak))} | answer.more
        if "value_at_step_0" in found:
            found["error_at_step_0"] = found.pop("value_at_step_0") / truth - 1
        if answer.partner is not None:
            points = world.base(JUDGED, torch.Generator(device).manual_seed(5))
            found["pair_error"] = world.pair_error(points, answer.partner(points), 7, truth)
            best = world.move(points, torch.Generator(device).manual_seed(9))
            found["pair_error_of_optimal"] = world.pair_error(points, best, 7, truth)
        pipe.send(found)
    except ImportError as error:
        pipe.send(f"not installed: {error.name}")
    except peer_jobs.Cannot as why:
        pipe.send(str(why))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        short = any(word in said for word in ("out of memory", "RESOURCE_EXHAUSTED", "MemoryError", "can't allocate"))
        pipe.send(f"memory: {first_line(said)}" if short else f"failed: {first_line(said)}")


def settle(cell: Cell, core: int | None) -> torch.device:
    """Puts this process on its core or device, before any library is loaded."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    torch.set_num_threads(1 if cell.device == "cpu" else 4)
    os.environ |= {"JAX_PLATFORMS": cell.device, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if cell.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["KEOPS_CACHE_FOLDER"] = str(Path(tempfile.gettempdir()) / "-".join(map(str, ("keops", *cell.series))))
    os.environ |= {"JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir()) / "peers-jax")}
    os.environ |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3"}  # XLA has a line of 3000 letters for every program it finds there
    return torch.device(cell.device)


def memory_now(device: str) -> int:
    """Bytes that this process has now; from here on `memory` gives the most it had."""
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")
    else:
        torch.cuda.reset_peak_memory_stats()
    return memory(device)


def memory(device: str) -> int:
    """The most bytes that this process has had since `memory_now`; on a GPU, what either library took."""
    if device == "cpu":
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    jax = sys.modules.get("jax")
    stats = {} if jax is None else jax.devices()[0].memory_stats() or {}
    return torch.cuda.max_memory_allocated() + stats.get("peak_bytes_in_use", 0)


def first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:160]


def measure(
    cell: Cell,
    arguments: argparse.Namespace,
    room: float,
    turn: AbstractContextManager[Any],
    core: int | None = None,
) -> Found:
    """Runs a cell in a process, and ends it where it takes too long; without the turn it does no more than load."""
    seconds, preparing = arguments.seconds, arguments.prepare
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs, cell, seconds, room, core))
    process.start()
    theirs.close()
    try:
        said = hear(process, ours, preparing, "not prepared")
        if said != "ready":
            return Found(cell, reason=said)
        with turn:
            ours.send("go")
            said = hear(process, ours, preparing, "not prepared")
            if said != "going":
                return Found(cell, reason=said)
            most = seconds * patience(cell.method)
            said = hear(process, ours, most, f"not done in {most:.0f} s")
            if said == "solved":
                said = hear(process, ours, JUDGING, "partners of fresh points took too long")
        return Found(cell, metrics=said) if isinstance(said, dict) else Found(cell, reason=said)
    finally:
        ours.close()
        process.join(20)
        process.kill()
        process.join()


def patience(method: str) -> float:
    """A process is ended after so many times its seconds; where they were only aimed at, later."""
    return 2.5 if method in STREAMED else 1.25


def hear(process: Any, pipe: Connection, seconds: float, late: str) -> Any:
    """What the process says within this time, or why it says nothing; one that is late is ended."""
    try:
        if pipe.poll(seconds):
            return pipe.recv()
        process.kill()
        return f"time: {late}"
    except EOFError:
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        return "memory: ended by the system" if killed else f"failed: crashed (exit code {process.exitcode})"


def cells(devices: Sequence[str], sizes: Sequence[int], dims: Sequence[int]) -> list[Cell]:
    """Mixtures in every size, Gaussians in two; smallest first."""
    return [
        Cell(method, problem, cost, d, n, device)
        for problem, some in (("mixture", sizes), ("gaussian", [n for n in sizes if n in GAUSSIAN_SIZES]))
        for n in some
        for d in dims
        for cost in COSTS
        for method in METHODS
        for device in devices
    ]


class Runs:
    """Cells side by side, those of a series one after the other: past its limit, larger sizes are not tried."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.turn, self.writing = arguments, threading.Lock(), threading.Lock()
        self.known = known(arguments.out) if arguments.resume and arguments.out.exists() else {}
        self.cores: queue.SimpleQueue[int] = queue.SimpleQueue()
        for core in sorted(os.sched_getaffinity(0))[-arguments.slots :]:
            self.cores.put(core)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.room = {"cpu": 0.8 * memory / arguments.slots}
        if "cuda" in arguments.devices:
            self.room["cuda"] = 0.8 * torch.cuda.get_device_properties(0).total_memory
        self.started = time.perf_counter()

    def go(self, asked: Sequence[Cell]) -> None:
        """All of them; those on a GPU load five at a time, and use it one at a time."""
        series: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in asked:
            series.setdefault(cell.series, []).append(cell)
        pools = {"cpu": ThreadPoolExecutor(self.arguments.slots), "cuda": ThreadPoolExecutor(5)}
        waiting = [pools[some[0].device].submit(self.one_series, some) for some in series.values()]
        for future in waiting:
            future.result()

    def one_series(self, some: Sequence[Cell]) -> None:
        past = None
        for cell in some:
            found = self.known.get(cell)
            if found is None:
                found = self.one(cell) if past is None else Found(cell, reason=past)
                self.note(found)
            past = past or self.limit(found)

    def one(self, cell: Cell) -> Found:
        """A cell on the GPU when its turn comes, or on a CPU core of its own."""
        room = self.room[cell.device]
        if cell.device == "cuda":
            return measure(cell, self.arguments, room, self.turn)
        core = self.cores.get()
        try:
            return measure(cell, self.arguments, room, nullcontext(), core)
        finally:
            self.cores.put(core)

    def limit(self, found: Found) -> str | None:
        """Why a larger n is not tried, if it is not: n² grows a hundredfold, of which a fifth is asked."""
        if found.reason is not None:
            said = found.reason.partition(":")[0] in ("time", "memory")
            return f"{found.reason} (with n = {found.cell.n:.0e})" if said else found.reason
        took = (found.metrics or {})["seconds"]
        growing = took - COMPILING.get(found.cell.method, 0.0)
        if found.cell.method in STREAMED or 20 * growing < self.arguments.seconds:
            return None
        return f"time: {took:.1f} s with n = {found.cell.n:.0e}, and grows as n²"

    def note(self, found: Found) -> None:
        with self.writing:
            seconds = time.perf_counter() - self.started
            print(f"{seconds:6.0f} s  {found.cell}  {in_short(found)}", flush=True)
            self.arguments.out.parent.mkdir(parents=True, exist_ok=True)
            with self.arguments.out.open("a") as stream:
                stream.writelines(json.dumps(row) + "\n" for row in rows(found, self.arguments))


def known(file: Path) -> dict[Cell, Found]:
    """What a file of rows already has."""
    cells = {}
    for key, said in read(file).items():
        cell = Cell(**dict(zip(KEYS, key, strict=True)))
        cells[cell] = Found(cell, reason=said["reason"]) if "reason" in said else Found(cell, metrics=said)
    return cells


def in_short(found: Found) -> str:
    if found.metrics is None:
        return str(found.reason)
    pairs = f"pairs {found.metrics['pair_error']:.4f}  " if "pair_error" in found.metrics else ""
    m = found.metrics
    return f"error {100 * m['error']:+.2f} %  {pairs}{m['seconds']:.1f} s  {m['peak_bytes'] / 1e6:.0f} MB"


def rows(found: Found, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """As they are stored."""
    cell = found.cell
    core = f"one core of a {os.cpu_count()}-core machine"
    hardware = torch.cuda.get_device_name() if cell.device == "cuda" else core
    shared = {"experiment": "peers", "setting": asdict(cell), "seeds": 1, "hardware": hardware}
    shared |= {"commit": arguments.commit, "version": version(cell.method), "budget_seconds": arguments.seconds}
    if found.metrics is None:
        return [shared | {"metric": "error", "value": None, "reason": found.reason}]
    return [shared | {"metric": name, "value": value} for name, value in found.metrics.items()]


def version(method: str) -> str:
    known = {"pot": "POT", "geomloss": "geomloss", "flash": "flash-sinkhorn", "ott": "ott-jax"}
    package = known.get(method.partition("-")[0], "torchspot")
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("peers.jsonl"))
    parser.add_argument("--devices", nargs="*", default=["cpu"] + ["cuda"] * torch.cuda.is_available())
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--prepare", type=float, default=420.0, help="seconds for what is done without the clock")
    parser.add_argument("--slots", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1), help="CPU cells at once")
    parser.add_argument("--rows", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--dims", type=int, nargs="*", default=list(DIMS))
    parser.add_argument("--only", nargs="*", default=[""], help="cells whose name has one of these in it")
    parser.add_argument("--without", nargs="*", default=[], help="… but none of these")
    parser.add_argument("--resume", action="store_true", help="cells that --out already has are not run again")
    parser.add_argument("--commit", default="", help="noted in the rows")
    parser.add_argument("--quick", action="store_true", help="small problems, to see that everything runs")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.dims, arguments.seconds = [300], [2], 5.0
    named = [c for c in cells(arguments.devices, arguments.rows, arguments.dims) if is_in(arguments.only, c)]
    Runs(arguments).go([c for c in named if not is_in(arguments.without, c)])
    report(arguments.out)


def is_in(names: Sequence[str], cell: Cell) -> bool:
    return any(name in str(cell) for name in names)


if __name__ == "__main__":
    main()
