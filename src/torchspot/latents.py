"""The noise z that a generator starts from."""

__all__ = [
    "Anchored",
    "AnchoredDraws",
    "Latent",
    "Normal",
    "Pieces",
    "Uniform",
    "anchored",
    "from_spec",
    "normal",
    "pieces",
    "to_spec",
    "uniform",
]

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.errors import InvalidArgument
from torchspot.random import on
from torchspot.types import ReadsAhead, Sampler

_APART = 2.0
"""Where the switches of `Pieces` are, on both sides of 0."""


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


@dataclass(frozen=True)
class Pieces:
    """z in 2^switches pieces: so many of its numbers are −2 or 2, the others N(0, 1).

    For data in pieces, such as digits of ten kinds: from a z in one piece a generator, being continuous, also draws
    what lies between them.
    """

    dim: int
    switches: int

    def __post_init__(self) -> None:
        _check(self)
        if not (_whole(self.switches) and 1 <= self.switches <= self.dim):
            raise InvalidArgument(
                f"pieces(dim, switches) takes from 1 to dim = {self.dim} switches, and got {self.switches!r}."
            )

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch latent"]:
        z = torch.randn(size, self.dim, generator=generator, device=generator.device)
        at, rest = z.tensor_split((self.switches,), dim=1)
        return torch.cat((_APART * (2.0 * (at > 0) - 1), rest), dim=1)


@dataclass(frozen=True)
class Anchored:
    """z = (a real sample of a marginal, Gaussian noise): that marginal is exact, and the others are its partners."""

    noise_dim: int | None = None
    """Numbers of noise: 0 makes the partner a function of the sample (a map); None decides by the data."""
    at: tuple[int, ...] = (0,)
    """The marginals that samples start from, counted from 0; of several, each starts its share of the samples."""

    def __post_init__(self) -> None:
        if not (self.at and all(map(_whole, self.at)) and len(set(self.at)) == len(self.at)):
            raise InvalidArgument(
                f"anchored(at=…) takes the number of a marginal, from 0, or different numbers, and got {self.at!r}."
            )
        if self.noise_dim is not None and not _whole(self.noise_dim):
            raise InvalidArgument(
                f"anchored(noise_dim=…) takes a whole number of at least 0, or None, and got {self.noise_dim!r}."
            )


@dataclass(frozen=True)
class AnchoredDraws:
    """Draws of an anchored latent: one row of each anchor's data, standardised as networks see it, then the noise."""

    kind: Anchored
    """With the noise decided."""
    means: tuple[Tensor, ...] = field(compare=False)
    """Of each anchor's marginal."""
    scale: Tensor = field(compare=False)
    dtype: torch.dtype
    sources: tuple[Sampler, ...] = field(compare=False, default=())
    """Of each anchor; none in a plan that was loaded without its data."""

    @property
    def noise_dim(self) -> int:
        """Numbers of noise."""
        return self.kind.noise_dim or 0

    @property
    def dim(self) -> int:
        """Of z."""
        return sum(mean.numel() for mean in self.means) + self.noise_dim

    @property
    def device(self) -> torch.device:
        """Where z is drawn: on the host if any of the data is there."""
        places = [source.device for source in self.sources]
        return next((place for place in places if place.type == "cpu"), self.scale.device)

    @property
    def repeatable(self) -> bool:
        """Whether all of the data is."""
        return all(source.repeatable for source in self.sources)

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch latent"]:
        if not self.sources:
            raise InvalidArgument(
                "this plan starts from real samples, and was loaded without them. Load it with torchspot.load(path, "
                f"source={'X), X' if len(self.means) == 1 else '(X, Y)), X and Y'} the data it is anchored at."
            )
        return self.later(size, generator)()

    @property
    def slow(self) -> bool:
        """Whether rows have to be read from somewhere."""
        return any(isinstance(source, ReadsAhead) and source.slow for source in self.sources)

    def later(self, size: int, generator: torch.Generator) -> Callable[[], Float[Tensor, "batch latent"]]:
        """Draws which rows are taken and the noise, and gives what reads them: another thread may do that."""
        reads = [_later(source, size, on(source.device, generator)) for source in self.sources]
        noise = self.noise(size, generator)
        here = replace(
            self, means=tuple(mean.to(noise.device) for mean in self.means), scale=self.scale.to(noise.device)
        )
        return lambda: here.of(tuple(read().to(noise.device) for read in reads), noise)

    def close(self) -> None:
        """Ends worker processes that read rows."""
        for source in self.sources:
            if isinstance(source, ReadsAhead):
                source.close()

    def of(self, xs: tuple[Tensor, ...], noise: Float[Tensor, "batch noise"]) -> Float[Tensor, "batch latent"]:
        """z from samples of each anchor in data units, and noise."""
        parts = [
            ((x.to(mean.dtype) - mean.to(x.device)) / self.scale.to(x.device)).flatten(1).to(self.dtype)
            for x, mean in zip(xs, self.means, strict=True)
        ]
        return torch.cat((*parts, noise.to(self.dtype)), dim=1)

    def noise(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch noise"]:
        """The part of z that is no data."""
        return torch.randn(size, self.noise_dim, generator=generator, device=generator.device)


def _later(source: Any, size: int, generator: torch.Generator) -> Callable[[], Tensor]:
    if isinstance(source, ReadsAhead) and source.slow:
        return source.later(size, generator)
    drawn = source.draw(size, generator)
    return lambda: drawn


def normal(dim: int) -> Normal:
    """Standard Gaussian noise of this dimension."""
    return Normal(dim)


def uniform(dim: int) -> Uniform:
    """Uniform noise on [−1, 1]^dim."""
    return Uniform(dim)


def pieces(dim: int, switches: int = 16) -> Pieces:
    """Noise of this dimension in 2^switches separate pieces, for data that has such."""
    return Pieces(dim, switches)


def anchored(noise_dim: int | None = None, *, at: int | Sequence[int] = 0) -> Anchored:
    """Real samples of a marginal and noise, so that the plan answers: where does *this* point go?

    Args:
        noise_dim: numbers of noise; 0 for a map. None takes none where a map can do, and some where rows repeat or
            are far fewer than those of another marginal.
        at: the marginal to start from, counted from 0; (0, 1) learns both directions at once.

    Samples of a stream that cannot be drawn again differ each time, whatever the seed.
    """
    several = tuple(at) if isinstance(at, Sequence) else (at,)
    return Anchored(noise_dim, several)


def to_spec(latent: Any) -> dict[str, Any] | None:
    """Name and arguments of a library latent; None for one of the user's own."""
    if isinstance(latent, AnchoredDraws):
        return {"name": "anchored", "noise_dim": int(latent.noise_dim), "at": [int(a) for a in latent.kind.at]}
    for name, kind in _KINDS.items():
        if isinstance(latent, kind):
            return {"name": name} | asdict(latent)
    return None


def from_spec(spec: dict[str, Any]) -> Latent | Anchored:
    """The latent that `to_spec` described; raises KeyError or ValueError for anything else."""
    if spec["name"] == "anchored":
        return Anchored(spec["noise_dim"], tuple(spec["at"]))
    kind = _KINDS[spec["name"]]
    return kind(*(spec[argument.name] for argument in fields(kind)))


def _whole(number: Any) -> bool:
    """Whether this is 0, 1, 2 and so on, of any kind of integer."""
    return isinstance(number, Integral) and not isinstance(number, bool) and int(number) >= 0


def _check(latent: Latent) -> None:
    if not (isinstance(latent.dim, int) and latent.dim >= 1):
        raise InvalidArgument(f"a latent needs a whole dimension of at least 1, and got dim={latent.dim!r}.")


_KINDS: dict[str, Any] = {"normal": Normal, "pieces": Pieces, "uniform": Uniform}
