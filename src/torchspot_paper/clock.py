"""What a computation takes: its seconds, and its peak memory in a process of its own."""

__all__ = ["Clock", "OnRows", "Taken", "in_own_process", "on_rows"]

import multiprocessing
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

MOST = {"emd": 10_000, "sinkhorn": 10_000}
"""Points beyond which a matrix of all pairs does not fit, or takes hours."""


@dataclass(frozen=True)
class OnRows:
    """A method on so many points."""

    method: str
    n: int

    def __str__(self) -> str:
        return f"{self.method}/{self.n}"


def on_rows(methods: Iterable[str], sizes: Iterable[int]) -> list[OnRows]:
    """Every method on every number of points that it can take, smallest first."""
    return [OnRows(method, n) for n in sizes for method in methods if n <= MOST.get(method, n)]


@dataclass(frozen=True)
class Taken:
    """What a task gave, and what it took."""

    metrics: dict[str, float]
    seconds: float
    peak: float
    """Megabytes."""
    before: float
    """Megabytes that the process had taken before the clock ran."""

    def as_metrics(self) -> dict[str, float]:
        """Everything as numbers by name."""
        took = {"seconds": self.seconds, "peak_megabytes": self.peak, "megabytes_before": self.before}
        return self.metrics | took


class Clock:
    """Runs within a `with` block; what a task does before and after is not counted."""

    def __init__(self) -> None:
        self.seconds = self.peak = self.before = 0.0

    def __enter__(self) -> "Clock":
        self.before, self._started = _peak_megabytes(), time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds, self.peak = time.perf_counter() - self._started, _peak_megabytes()


Task = Callable[[Clock, Any, bool], dict[str, float]]
"""What is measured of a setting (quickly or in earnest); the clock runs where the task lets it."""


def in_own_process(task: Task, setting: Any, quick: bool) -> Taken:
    """Runs the task on one thread in a new process, so that the peak memory is its own (unless it is quick)."""
    if quick:
        return _taken(task, setting, quick)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(theirs, task, setting, quick))
    process.start()
    theirs.close()  # so that a child that dies is noticed
    taken: Taken = ours.recv()
    process.join()
    return taken


def _send(pipe: Any, task: Task, setting: Any, quick: bool) -> None:
    torch.set_num_threads(1)
    pipe.send(_taken(task, setting, quick))


def _taken(task: Task, setting: Any, quick: bool) -> Taken:
    clock = Clock()
    metrics = task(clock, setting, quick)
    return Taken(metrics, clock.seconds, clock.peak, clock.before)


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
