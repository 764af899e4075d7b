"""Samplers over distributions and functions that make samples on demand."""

__all__ = ["CallableSampler", "DistributionSampler"]

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.errors import InvalidArgument
from torchspot.types import Shape


class DistributionSampler:
    """Draws from a torch.distributions object; the global generator is left as it was."""

    def __init__(self, distribution: torch.distributions.Distribution, *, name: str) -> None:
        self.distribution, self.name = distribution, name
        first = self.draw(2, torch.Generator().manual_seed(0))
        self.shape: Shape = tuple(first.shape[1:])
        self.device = torch.device("cpu")

    @property
    def repeatable(self) -> bool:
        return True

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """Samples drawn under a fork of the global generator that is seeded from `generator`."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            samples = self.distribution.sample((size,))
        return samples.unsqueeze(-1) if samples.ndim == 1 else samples


def _takes_generator(function: Callable[..., Any]) -> bool:
    try:
        return "generator" in inspect.signature(function).parameters
    except ValueError:
        return False


class CallableSampler:
    """Draws by calling `function(n)`, or `function(n, generator=…)` where it takes a generator."""

    def __init__(self, function: Callable[..., Any], *, name: str) -> None:
        self.function, self.name = function, name
        self._seeded = _takes_generator(function)
        first = self.draw(2, torch.Generator().manual_seed(0))
        self.shape: Shape = tuple(first.shape[1:])
        self.device = torch.device("cpu")

    @property
    def repeatable(self) -> bool:
        return self._seeded

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch *shape"]:
        """What the function gives, checked for its number of rows."""
        made = self.function(size, generator=generator) if self._seeded else self.function(size)
        samples = torch.as_tensor(made)
        if samples.ndim == 0 or samples.shape[0] != size:
            raise InvalidArgument(
                f"{self.name} was asked for {size} samples and gave shape {tuple(samples.shape)}. "
                "A function n -> samples must return an array with n rows."
            )
        return samples.unsqueeze(-1) if samples.ndim == 1 else samples
