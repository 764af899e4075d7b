"""A sampler over an iterable of batches, taken as they come."""

__all__ = ["IterableSampler"]

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.data.arrays import batch_rows
from torchspot.errors import InvalidArgument
from torchspot.types import Shape


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

    def _next(self) -> Tensor:
        for _ in range(2):
            for batch in self._iterator:
                return batch_rows(batch, self.name)
            self._iterator = iter(self.batches)
        raise InvalidArgument(f"{self.name} gives no samples. Pass an iterable with at least one batch.")
