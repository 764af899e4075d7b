"""Torch datasets: map-style ones as rows, iterable ones as a stream."""

__all__ = ["Items", "IterableSampler", "Workers"]

import functools
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from torchspot.errors import InvalidArgument, TorchspotError
from torchspot.types import Shape


@dataclass(frozen=True)
class Workers:
    """Processes that read the items of a dataset."""

    count: int
    init: Callable[[int], None] | None = None
    """Called in each with its number."""
    context: Any = None
    """How they are started; None: as this system does."""

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> "Workers | None":
        """Those that a DataLoader asks for."""
        if loader.num_workers == 0:
            return None
        return cls(loader.num_workers, loader.worker_init_fn, loader.multiprocessing_context)


class Items:
    """A map-style dataset as an array of rows, collated as its DataLoader would; what it gives may be random.

    With workers a batch is split among them: each collates the part that it has read.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        name: str,
        collate: Callable[[list[Any]], Any] = default_collate,
        workers: Workers | None = None,
    ) -> None:
        self.dataset, self.name, self.collate, self.workers = dataset, name, collate, workers
        self._read = functools.partial(_read, dataset, collate, name)
        self._pool: ProcessPoolExecutor | None = None
        self._starting = threading.Lock()
        first = self._read(np.zeros(1, dtype=np.int64)) if len(dataset) else np.empty((0,))
        self.shape = (len(dataset), *first.shape[1:])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, indices: Int[np.ndarray, " batch"]) -> np.ndarray:
        """The items with these numbers, one a row."""
        if self.workers is None:
            return self._read(indices)
        shares = [part for part in np.array_split(indices, self.workers.count) if len(part)]
        try:
            return np.concatenate(list(self._running(self.workers).map(_read_here, shares)))
        except BrokenProcessPool as error:
            raise TorchspotError(
                f"a worker process that reads {self.name} has died, often because memory ran out. Give the DataLoader "
                "fewer workers, or 0 to see an error of the dataset itself. Checkpoints are intact: fit with the same "
                "resume= goes on from the last."
            ) from error

    def begin(self) -> None:
        """Starts the workers, if there are to be any: from a thread that is not about to read."""
        if self.workers is not None and self._pool is None:
            self._running(self.workers).submit(os.getpid)

    def close(self) -> None:
        """Ends the workers; the next batch starts new ones."""
        with self._starting:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
                self._pool = None

    def _running(self, workers: Workers) -> ProcessPoolExecutor:
        with self._starting:
            if self._pool is None:
                context = workers.context or multiprocessing.get_context()
                numbers = context.SimpleQueue()
                for number in range(workers.count):
                    numbers.put(number)
                self._pool = ProcessPoolExecutor(
                    workers.count,
                    mp_context=context,
                    initializer=_begin_work,
                    initargs=(self._read, workers.init, numbers, torch.initial_seed()),
                )
            return self._pool


_at_work: list[Callable[[np.ndarray], np.ndarray]] = []
"""In a worker process: what reads items."""


def _begin_work(read: Callable[[np.ndarray], np.ndarray], init: Any, numbers: Any, seed: int) -> None:
    """Makes this process a worker: one thread, random numbers of its own, and the dataset at hand."""
    number = numbers.get()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(1)
    torch.manual_seed(seed + number)
    random.seed(seed + number)
    np.random.seed((seed + number) % 2**32)
    if init is not None:
        init(number)
    _at_work.append(read)


def _end_with(parent: int) -> None:
    """Ends this worker when the process it reads for is gone, whose connections it would hold open."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _read_here(indices: Int[np.ndarray, " batch"]) -> np.ndarray:
    return _at_work[0](indices)


def _read(
    dataset: Any, collate: Callable[[list[Any]], Any], name: str, indices: Int[np.ndarray, " batch"]
) -> np.ndarray:
    """The items with these numbers, one a row."""
    return _batch_rows(collate([dataset[int(i)] for i in indices]), name).numpy()


class IterableSampler:
    """Samples in the order in which an iterable gives them, from the start again when it ends."""

    def __init__(self, batches: Iterable[Any], *, name: str) -> None:
        self.batches, self.name = batches, name
        self.slow = True
        self._iterator: Iterator[Any] = iter(())
        self._one_at_a_time = threading.Lock()
        self.device = torch.device("cpu")
        self._left = self._next()
        self.shape: Shape = tuple(self._left.shape[1:])

    @property
    def repeatable(self) -> bool:
        return False

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """The next `size` samples; the generator is not used."""
        with self._one_at_a_time:
            parts, count = [self._left], len(self._left)
            while count < size:
                parts.append(self._next())
                count += len(parts[-1])
            joined = torch.cat(parts)
            self._left = joined[size:]
            return joined[:size]

    def later(self, size: int, generator: torch.Generator) -> Callable[[], Float[Tensor, "batch *shape"]]:
        """What gives the next samples: another thread may do that."""
        return functools.partial(self.draw, size, generator)

    def once(self, most: int) -> Float[Tensor, "batch *shape"]:
        """At most so many samples of one new pass: no sample twice."""
        parts: list[Tensor] = []
        for batch in self.batches:
            parts.append(_batch_rows(batch, self.name))
            if sum(map(len, parts)) >= most:
                break
        return torch.cat(parts)[:most]

    def _next(self) -> Tensor:
        for _ in range(2):
            try:
                for batch in self._iterator:
                    return _batch_rows(batch, self.name)
            except RuntimeError as error:
                if "worker" not in str(error):
                    raise
                raise TorchspotError(f"a worker process that reads {self.name} has died: {error}.") from error
            self._iterator = iter(self.batches)
        raise InvalidArgument(f"{self.name} gives no samples. Pass an iterable with at least one batch.")


def _batch_rows(batch: Any, name: str) -> Tensor:
    """The samples of a collated batch, one a row; labels that come with them are left aside."""
    samples = batch[0] if isinstance(batch, Sequence) and not isinstance(batch, Tensor) else batch
    if not isinstance(samples, Tensor):
        raise InvalidArgument(
            f"{name} gives items of type {type(samples).__name__}; tensors (or tuples that begin with one) are needed. "
            "Pass a dataset that returns tensors, or a function n -> samples."
        )
    return samples.detach().unsqueeze(-1) if samples.ndim == 1 else samples.detach()
