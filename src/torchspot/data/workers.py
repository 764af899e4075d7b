"""Processes that read the items of a dataset, as a DataLoader asks for them."""

__all__ = ["Readers", "Workers", "ending_with_this_process"]

import copy
import functools
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch.utils.data import DataLoader

from torchspot.errors import InvalidArgument, TorchspotError
from torchspot.random import Key

_PATIENCE = 5.0
"""Seconds in which workers that are let go of may end by themselves."""

Read = Callable[[Any, Int[np.ndarray, " batch"]], np.ndarray]
"""From a dataset, the items with these numbers, one a row."""


@dataclass(frozen=True)
class Workers:
    """How many there are to be, and what a DataLoader says of them."""

    count: int
    init: Callable[[int], None] | None = None
    """Called in each with its number."""
    context: Any = None
    """How they are started; None: as this system does."""
    timeout: float = 0
    """Seconds that one may take for a batch of the DataLoader's; 0: any time."""
    batch: int = 1
    """Rows of that."""

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> "Workers | None":
        """Those that a DataLoader asks for."""
        if loader.num_workers == 0:
            return None
        batch = getattr(loader.batch_sampler, "batch_size", 1)
        return cls(loader.num_workers, loader.worker_init_fn, loader.multiprocessing_context, loader.timeout, batch)


class Readers:
    """The processes, started when they are first needed; only they touch the dataset, as under a DataLoader."""

    _begun = itertools.count()

    def __init__(self, workers: Workers, dataset: Any, read: Read, name: str) -> None:
        self.workers, self.name = workers, name
        self._dataset, self._read = dataset, read
        self._pool: ProcessPoolExecutor | None = None
        self._starting = threading.Lock()
        self._last_read = 0.0

    def read(self, indices: Int[np.ndarray, " batch"]) -> list[np.ndarray]:
        """The items with these numbers, in parts: each process reads one, or several where its time is limited."""
        most = self.workers.batch if self.workers.timeout else len(indices)
        shares = np.array_split(indices, max(self.workers.count, -(-len(indices) // max(1, most))))
        try:
            parts = [self._submit(_read_here, share) for share in shares if len(share)]
            self._wait_for(parts)
            return [part.result() for part in parts]
        except BrokenProcessPool:
            raise TorchspotError(
                f"a worker process that reads {self.name} has died: it was killed, often for want of memory, a library "
                "in it crashed, or it could not start (a script needs if __name__ == '__main__': around what it runs). "
                "Give the DataLoader fewer workers, or 0 to see what its dataset does. "
                "A fit that was given resume= goes on from its last checkpoint when it is called again."
            ) from None

    def _wait_for(self, parts: "list[Future[Any]]") -> None:
        """Until they are read; raises where nothing at all has been read for too long, these parts or others."""
        while True:
            started = time.monotonic()
            done, late = wait(parts, self.workers.timeout or None, FIRST_EXCEPTION)
            if not late or any(part.exception() for part in done):
                return
            if self._last_read < started:
                raise TorchspotError(
                    f"a worker process that reads {self.name} took more than {self.workers.timeout:g} s for "
                    f"{self.workers.batch} samples. Give the DataLoader a longer timeout=, or 0 for any time."
                )

    def _note(self, part: "Future[Any]") -> None:
        self._last_read = time.monotonic()

    def begin(self) -> None:
        """Starts the processes: from a thread that is not about to read."""
        if self._pool is None:
            self._submit(os.getpid)

    def close(self) -> None:
        """Ends the processes once they have read what they are at, or soon; the next batch starts new ones."""
        with self._starting:
            if self._pool is not None:
                processes = list((self._pool._processes or {}).values())  # there is no public way before Python 3.14
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
                threading.Thread(target=_see_off, args=(processes,), daemon=True).start()

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        with self._starting:
            self._pool = self._pool or self._new()
            try:
                part = self._pool.submit(work, *arguments)
            except (AttributeError, TypeError, pickle.PicklingError) as error:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
                raise InvalidArgument(
                    f"{self.name} cannot be sent to worker processes ({error}). Define its dataset, collate_fn and "
                    "worker_init_fn at the top of a module and let them open files when they are first used, or give "
                    "the DataLoader multiprocessing_context='fork' or num_workers=0."
                ) from error
            part.add_done_callback(self._note)
            return part

    def _new(self) -> ProcessPoolExecutor:
        context = self.workers.context or multiprocessing.get_context()
        numbers = context.SimpleQueue()
        for number in range(self.workers.count):
            numbers.put(number)
        start = functools.partial(_begin_work, self._dataset, self._read, self.workers, numbers, self._seed())
        return ProcessPoolExecutor(self.workers.count, mp_context=context, initializer=start)

    def _seed(self) -> int:
        """Of what the dataset draws itself: another one for each rank, restart, and set of processes."""
        role = f"workers {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        return Key(torch.initial_seed(), role, int(os.environ.get("RANK", "0"))).at(next(self._begun))


_at_work: list[Callable[[Int[np.ndarray, " batch"]], np.ndarray]] = []
"""In a worker process: what reads items."""


def _begin_work(dataset: Any, read: Read, workers: Workers, numbers: Any, seed: int) -> None:
    """Makes this process a worker: one thread, random numbers of its own, and the dataset at hand."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that trains
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    number = numbers.get()
    _end_with_the_parent()
    torch.set_num_threads(1)
    torch.manual_seed(seed + number)
    random.seed(seed + number)
    np.random.seed((seed + number) % 2**32)
    _introduce(dataset, workers, number, seed + number)
    _at_work.append(functools.partial(read, dataset))
    if workers.init is not None:
        try:
            workers.init(number)
        except Exception as error:
            _at_work[0] = functools.partial(_fail, f"worker_init_fn failed with {type(error).__name__}: {error}")


def _introduce(dataset: Any, workers: Workers, number: int, seed: int) -> None:
    """What torch.utils.data.get_worker_info() is to say in this process."""
    from torch.utils.data._utils import worker  # there is no public way

    worker._worker_info = worker.WorkerInfo(id=number, num_workers=workers.count, seed=seed, dataset=dataset)


def ending_with_this_process(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A copy of the loader whose workers end when this process is gone."""
    if loader.num_workers == 0:
        return loader
    mindful = copy.copy(loader)
    mindful.worker_init_fn = functools.partial(_begin_mindful, loader.worker_init_fn)
    return mindful


def _begin_mindful(init: Callable[[int], None] | None, number: int) -> None:
    _end_with_the_parent()
    if init is not None:
        init(number)


def _end_with_the_parent() -> None:
    """Ends this worker when the process it reads for is gone, whose connections it would hold open."""
    reads_for, starter = multiprocessing.parent_process(), os.getppid()

    def watch() -> None:  # a fork server outlives who asks it for workers; where there is none, the starter is who asks
        while os.getppid() == starter and (reads_for is None or reads_for.is_alive()):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _see_off(processes: list[Any]) -> None:
    """Ends processes that do not end by themselves: one that hangs would keep Python from ending."""
    deadline = time.monotonic() + _PATIENCE
    left = {process.sentinel: process for process in processes}
    while left and time.monotonic() < deadline:
        for ended in multiprocessing.connection.wait(list(left), max(0.0, deadline - time.monotonic())):
            del left[ended]
    for process in left.values():
        process.terminate()


def _read_here(indices: Int[np.ndarray, " batch"]) -> np.ndarray:
    try:
        return _at_work[0](indices)
    except BaseException as error:
        raise _sendable(error) from None


def _fail(why: str, indices: Int[np.ndarray, " batch"]) -> np.ndarray:
    raise InvalidArgument(why)


def _sendable(error: BaseException) -> Exception:
    """The error, or its words where another process could not read it or would end by it."""
    words = TorchspotError(f"{type(error).__name__}: {error}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return words
    return error if isinstance(error, Exception) else words
