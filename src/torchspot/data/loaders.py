"""Torch datasets: map-style ones as rows, iterable ones as a stream."""

__all__ = ["Items", "IterableSampler"]

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import default_collate

from torchspot.errors import InvalidArgument
from torchspot.types import Shape


class Items:
    """A map-style dataset as an array of rows, collated as its DataLoader would; what it gives may be random."""

    def __init__(self, dataset: Any, *, name: str, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self.dataset, self.name, self.collate = dataset, name, collate
        self.shape = (len(dataset), *(self[np.zeros(1, dtype=np.int64)].shape[1:] if len(dataset) else ()))

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, indices: Int[np.ndarray, " batch"]) -> np.ndarray:
        """The items with these numbers, one a row."""
        batch = self.collate([self.dataset[int(i)] for i in indices])
        return _batch_rows(batch, self.name).numpy()


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
            for batch in self._iterator:
                return _batch_rows(batch, self.name)
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
