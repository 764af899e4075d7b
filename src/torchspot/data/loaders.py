"""Samplers over torch datasets: map-style by index, iterable ones as they come."""

__all__ = ["DatasetSampler", "IterableSampler"]

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import default_collate

from torchspot.errors import InvalidArgument
from torchspot.types import Shape


class DatasetSampler:
    """Uniform draws, with replacement, from a map-style dataset, collated as its DataLoader would."""

    def __init__(self, dataset: Any, *, name: str, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        if len(dataset) < 2:
            raise InvalidArgument(f"{name} has {len(dataset)} samples; at least 2 are needed.")
        self.dataset, self.name, self.collate = dataset, name, collate
        self.shape: Shape = tuple(self._rows([0, 1]).shape[1:])
        self.device = torch.device("cpu")

    @property
    def repeatable(self) -> bool:
        return True

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """The items with indices drawn from the generator."""
        return self._rows(torch.randint(len(self.dataset), (size,), generator=generator).tolist())

    def _rows(self, indices: list[int]) -> Tensor:
        return _as_rows(self.collate([self.dataset[i] for i in indices]), self.name)


class IterableSampler:
    """Samples in the order in which an iterable gives them, from the start again when it ends."""

    def __init__(self, batches: Iterable[Any], *, name: str) -> None:
        self.batches, self.name = batches, name
        self._waiting: list[Tensor] = []
        self._iterator: Iterator[Any] = iter(())
        self.device = torch.device("cpu")
        self._waiting.append(self._next())
        self.shape: Shape = tuple(self._waiting[0].shape[1:])

    @property
    def repeatable(self) -> bool:
        return False

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """The next `size` samples; the generator is not used."""
        while sum(map(len, self._waiting)) < size:
            self._waiting.append(self._next())
        joined = torch.cat(self._waiting)
        self._waiting = [joined[size:]]
        return joined[:size]

    def _next(self) -> Tensor:
        for _ in range(2):
            for batch in self._iterator:
                return _as_rows(batch, self.name)
            self._iterator = iter(self.batches)
        raise InvalidArgument(f"{self.name} gives no samples. Pass an iterable with at least one batch.")


def _as_rows(batch: Any, name: str) -> Tensor:
    """The samples of a collated batch; labels that come with them are left aside."""
    samples = batch[0] if isinstance(batch, Sequence) and not isinstance(batch, Tensor) else batch
    if not isinstance(samples, Tensor):
        raise InvalidArgument(
            f"{name} gives items of type {type(samples).__name__}; tensors (or tuples that begin with one) are needed. "
            "Pass a dataset that returns tensors, or a function n -> samples."
        )
    return samples.unsqueeze(-1) if samples.ndim == 1 else samples
