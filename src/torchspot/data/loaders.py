"""Torch datasets: map-style ones as rows, iterable ones as a stream."""

__all__ = ["Items", "IterableSampler"]

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import default_collate

from torchspot.data.workers import Readers, Workers
from torchspot.errors import InvalidArgument, TorchspotError
from torchspot.types import Shape


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
        self.dataset = dataset
        read = functools.partial(_read, collate, name)
        self.readers = None if workers is None else Readers(workers, dataset, read, name)
        self._take = functools.partial(read, dataset) if self.readers is None else self.readers.read
        first = self[np.zeros(1, dtype=np.int64)] if len(dataset) else np.empty((0,))
        self.shape = (len(dataset), *first.shape[1:])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, indices: Int[np.ndarray, " batch"]) -> np.ndarray:
        """The items with these numbers, one a row."""
        return self._take(indices)


def _read(
    collate: Callable[[list[Any]], Any], name: str, dataset: Any, indices: Int[np.ndarray, " batch"]
) -> np.ndarray:
    """The items with these numbers, one a row."""
    rows = _batch_rows(collate([dataset[int(i)] for i in indices]), name)
    if len(rows) != len(indices):
        raise InvalidArgument(
            f"the collate_fn of {name} made {len(rows)} rows of {len(indices)} items. It must give one row an item: "
            "leave items out with torch.utils.data.Subset(dataset, indices) instead."
        )
    return (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()


class IterableSampler:
    """Samples in the order in which an iterable gives them, from the start again when it ends."""

    def __init__(self, batches: Iterable[Any], *, name: str) -> None:
        self.batches, self.name = batches, name
        self._iterator: Iterator[Any] = iter(())
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
        joined = torch.cat(parts)
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
