"""Torch datasets: map-style ones as rows, iterable ones as a stream."""

__all__ = ["Items", "IterableSampler"]

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from torchspot.data.workers import Readers, Workers, ending_with_this_process
from torchspot.errors import InvalidArgument, naming_dead_workers
from torchspot.types import Shape

_EMPTY = 10_000
"""Batches without a sample that a stream may give one after the other."""
_TIMES = 5
"""That an item is read to see whether it is always the same."""


class Items:
    """A map-style dataset as an array of rows, collated as its DataLoader would; what it gives may be random.

    With workers a batch is split among them: each collates the part that it has read, and no other process or thread
    touches the dataset. Without them it is read by who asks.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        name: str,
        collate: Callable[[list[Any]], Any] = default_collate,
        workers: Workers | None = None,
    ) -> None:
        if not hasattr(dataset, "__len__"):
            raise InvalidArgument(
                f"{name} is a Dataset without a length. Give it __len__, or make it an IterableDataset if it has none."
            )
        self.dataset = dataset
        read = functools.partial(_read, collate, name)
        self.name, self.random = name, False
        """Whether an item is another one when it is asked for again."""
        self.readers = None if workers is None else Readers(workers, dataset, read, name)
        self._take = self.readers.read if self.readers is not None else lambda indices: [read(dataset, indices)]
        self.shape: Shape = (len(dataset),)
        if len(dataset):
            first = np.concatenate(self._take(np.zeros(_TIMES, dtype=np.int64)))
            self.shape = (len(dataset), *first.shape[1:])
            self.random = bool((first != first[0]).any())

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, indices: Int[np.ndarray, " batch"]) -> np.ndarray:
        """The items with these numbers, one a row."""
        parts = self._take(indices)
        for part in parts:
            if part.shape[1:] != self.shape[1:]:
                raise _other_shape(self.name, self.shape[1:], part.shape[1:])
        return np.concatenate(parts)


def _read(
    collate: Callable[[list[Any]], Any], name: str, dataset: Any, indices: Int[np.ndarray, " batch"]
) -> np.ndarray:
    """The items with these numbers, one a row."""
    items = [dataset[int(i)] for i in indices]
    try:
        collated = collate(items)
    except (RuntimeError, ValueError) as error:
        raise InvalidArgument(
            f"{len(items)} items of {name} could not be put together ({error}). All must be tensors of one shape; if "
            "they are not, give the DataLoader a collate_fn that makes them so."
        ) from error
    rows = _batch_rows(collated, name)
    if len(rows) != len(indices):
        raise InvalidArgument(
            f"the collate_fn of {name} made {len(rows)} rows of {len(indices)} items. It must give one row an item: "
            "leave items out with torch.utils.data.Subset(dataset, indices) instead."
        )
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()


class IterableSampler:
    """Samples in the order in which an iterable gives them, from the start again when it ends."""

    def __init__(self, batches: Iterable[Any], *, name: str) -> None:
        self.batches = ending_with_this_process(batches) if isinstance(batches, DataLoader) else batches
        self._batched = not isinstance(batches, DataLoader) or batches.batch_sampler is not None
        self.name = name
        self._iterator: Iterator[Any] = iter(())
        self._given = 0
        self.device = torch.device("cpu")
        self._left = self._next()
        self.shape: Shape = tuple(self._left.shape[1:])

    @property
    def repeatable(self) -> bool:
        return False

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """The next `size` samples; the generator is not used."""
        parts, count = [self._left], len(self._left)
        while count < size:
            parts.append(self._next())
            count += len(parts[-1])
            if parts[-1].shape[1:] != self.shape:
                raise _other_shape(self.name, self.shape, parts[-1].shape[1:])
        joined = torch.cat(parts) if len(parts) > 1 else self._left  # what is left of a large batch is not copied
        self._left = joined[size:]
        return joined[:size]

    def once(self, most: int) -> Float[Tensor, "batch *shape"]:
        """At most so many samples of one new pass: no sample twice."""
        parts: list[Tensor] = []
        for batch in self.batches:
            parts.append(_batch_rows(batch, self.name))
            if sum(map(len, parts)) >= most:
                break
        return torch.cat(parts)[:most]

    def _next(self) -> Tensor:
        """The next batch that has samples, of this pass or of a new one."""
        for _ in range(2):
            for rows in itertools.islice(self._batches(), _EMPTY):
                if len(rows):
                    self._given += len(rows)
                    return rows
            self._iterator = iter(self.batches)
        if self._given:
            raise InvalidArgument(
                f"{self.name} ended after {self._given} samples and gives no more. Pass an iterable that can be begun "
                "again: one whose __iter__ makes a new iterator each time."
            )
        raise InvalidArgument(f"{self.name} gives no samples. Pass an iterable with at least one batch.")

    def _batches(self) -> Iterator[Tensor]:
        """What is left of this pass."""
        with naming_dead_workers(self.name):
            for batch in self._iterator:
                if not self._batched:
                    _check_many(batch, self.name)
                yield _batch_rows(batch, self.name)


def _other_shape(name: str, usual: Sequence[int], other: Sequence[int]) -> InvalidArgument:
    return InvalidArgument(
        f"{name} gave samples of shape {tuple(usual)} and now {tuple(other)}. All must have one shape."
    )


def _check_many(batch: Any, name: str) -> None:
    """What a loader without batches gives must show that it is many samples."""
    if isinstance(batch, Tensor) and batch.ndim < 2:
        raise InvalidArgument(
            f"{name} has batch_size=None and gives tensors of shape {tuple(batch.shape)}: one sample or many? Give the "
            "DataLoader a batch_size for single samples, or let its dataset yield tensors (samples, columns)."
        )


def _check_columns(batch: Sequence[Any], name: str) -> None:
    """Items that are lists of numbers are collated into columns, of which the first would be taken for the samples."""
    alike = len({part.dtype for part in batch if isinstance(part, Tensor) and part.ndim == 1}) == 1
    if len(batch) > 1 and alike and all(isinstance(part, Tensor) and part.ndim == 1 for part in batch):
        raise InvalidArgument(
            f"{name} gives items that are lists of {len(batch)} numbers. Let it return one tensor an item: "
            "torch.tensor(item); of a number with its label, torch.tensor([number])."
        )


def _batch_rows(batch: Any, name: str) -> Tensor:
    """The samples of a collated batch, one a row; labels that come with them are left aside."""
    samples = batch
    if isinstance(batch, Sequence) and not isinstance(batch, Tensor):
        _check_columns(batch, name)
        samples = batch[0]
    if not isinstance(samples, Tensor):
        raise InvalidArgument(
            f"{name} gives items of type {type(samples).__name__}; tensors (or tuples that begin with one) are needed. "
            "Pass a dataset that returns tensors, or a function n -> samples."
        )
    if samples.device.type == "cpu" and samples.is_floating_point() and not torch.isfinite(samples).all():
        raise InvalidArgument(f"{name} gave a sample with a number that is not finite. Drop or fill such items first.")
    return samples.detach().unsqueeze(-1) if samples.ndim == 1 else samples.detach()
