"""The noise z that a generator starts from."""

__all__ = ["Normal", "Uniform", "from_spec", "normal", "to_spec", "uniform"]

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.errors import InvalidArgument


class Latent(Protocol):
    """A distribution of z that is easy to draw from."""

    @property
    def dim(self) -> int: ...

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch latent"]: ...


@dataclass(frozen=True)
class Normal:
    """z ~ N(0, I)."""

    dim: int

    def __post_init__(self) -> None:
        _check(self)

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch latent"]:
        return torch.randn(size, self.dim, generator=generator, device=generator.device)


@dataclass(frozen=True)
class Uniform:
    """z uniform on the cube [−1, 1]^dim."""

    dim: int

    def __post_init__(self) -> None:
        _check(self)

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch latent"]:
        return torch.rand(size, self.dim, generator=generator, device=generator.device) * 2 - 1


def normal(dim: int) -> Normal:
    """Standard Gaussian noise of this dimension."""
    return Normal(dim)


def uniform(dim: int) -> Uniform:
    """Uniform noise on [−1, 1]^dim."""
    return Uniform(dim)


def to_spec(latent: Latent) -> dict[str, Any] | None:
    """Name and arguments of a library latent; None for one of the user's own."""
    for name, kind in _KINDS.items():
        if isinstance(latent, kind):
            return {"name": name, "dim": latent.dim}
    return None


def from_spec(spec: dict[str, Any]) -> Latent:
    """The latent that `to_spec` described; raises KeyError or ValueError for anything else."""
    return _KINDS[spec["name"]](spec["dim"])


def _check(latent: Latent) -> None:
    if not (isinstance(latent.dim, int) and latent.dim >= 1):
        raise InvalidArgument(f"a latent needs a whole dimension of at least 1, and got dim={latent.dim!r}.")


_KINDS: dict[str, Any] = {"normal": Normal, "uniform": Uniform}
