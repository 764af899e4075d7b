"""Generators: networks that map noise z to one sample of each marginal, and the layer to data units."""

__all__ = [
    "AroundAffine",
    "InDataUnits",
    "SeparateGenerator",
    "Shapes",
    "SharedTrunkGenerator",
    "Units",
    "around_affine",
    "separate",
    "shared_trunk",
]

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.networks.mlp import filled_up, leaky, linear, mlp, parallel
from torchspot.types import Samples, Shape, Values

_FAR = 100.0
"""So many scales from 0 a mean costs float32 digits of the spread."""


@dataclass(frozen=True)
class Shapes:
    """What a builder must know: the size of z and the shape of one sample of each marginal."""

    latent: int
    marginals: tuple[Shape, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in one sample of each marginal."""
        return tuple(math.prod(shape) for shape in self.marginals)

    def beside(self, anchor: int, noise: int) -> "Shapes":
        """Those of a network from a sample of one marginal, and noise, to the other marginals."""
        others = self.marginals[:anchor] + self.marginals[anchor + 1 :]
        return Shapes(self.sizes[anchor] + noise, others)

    def parted(self, rows: Sequence[Float[Tensor, "batch numbers"]]) -> Samples:
        """Rows of numbers as samples of each marginal; numbers that fill up a row are left out."""
        return tuple(
            row[:, :size].reshape(-1, *shape) for row, size, shape in zip(rows, self.sizes, self.marginals, strict=True)
        )


class SeparateGenerator(nn.Module):
    """G_i(z): one network for each marginal, sharing nothing but z (section 5.1 of the paper).

    The networks are computed together, layer by layer. Aligned ones start with equal weights, so that the marginals
    start out coupled point by point and not each turned its own way: training may not find back from that.
    """

    def __init__(self, shapes: Shapes, *, width: int, depth: int, aligned: bool, rng: torch.Generator) -> None:
        super().__init__()
        self.shapes, self.width, self.depth = shapes, width, depth
        m = len(shapes.sizes)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise([[shapes.latent] * m, *[[width] * m] * depth, shapes.sizes]):
            layers += [parallel(inputs, outputs, rng, aligned=aligned), leaky()]
        self.networks = nn.Sequential(*layers[:-1])

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        together = self.networks(z.mT.expand(len(self.shapes.marginals), -1, -1))  # (marginals, largest size, batch)
        return self.shapes.parted(together.mT.contiguous().unbind())


class AroundAffine(nn.Module):
    """G_i(z) = A_i z + what one network for each marginal adds, at first nothing.

    Started at the optimal plan of Gaussians with the data's moments, training only has to learn in what the data are
    not Gaussian. The matrices stay as they are: see docs/architecture.md.
    """

    matrices: Tensor

    def __init__(self, rest: SeparateGenerator, matrices: Float[Tensor, "marginals size latent"]) -> None:
        super().__init__()
        self.shapes, self.width, self.depth = rest.shapes, rest.width, rest.depth
        self.rest = rest
        self.register_buffer("matrices", matrices)
        for parameter in rest.networks[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        straight = self.shapes.parted((z @ self.matrices.mT).unbind())
        return tuple(a + b for a, b in zip(straight, self.rest(z), strict=True))


class SharedTrunkGenerator(nn.Module):
    """G(z): one trunk for all marginals, then one linear head for each."""

    def __init__(self, shapes: Shapes, *, width: int, depth: int, rng: torch.Generator) -> None:
        super().__init__()
        self.shapes, self.width, self.depth = shapes, width, depth
        self.trunk = nn.Sequential(mlp([shapes.latent, *[width] * depth], rng), leaky())
        self.heads = linear(width, sum(shapes.sizes), rng)

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        return self.shapes.parted(self.heads(self.trunk(z)).split(self.shapes.sizes, dim=-1))


@dataclass(frozen=True)
class separate:  # noqa: N801
    """Builder of a generator with one network for each marginal."""

    width: int = 64
    depth: int = 2
    aligned: bool = False
    """Whether all networks start with equal weights; the paper's start apart."""

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> SeparateGenerator:
        return SeparateGenerator(shapes, width=self.width, depth=self.depth, aligned=self.aligned, rng=rng)


@dataclass(frozen=True)
class around_affine:  # noqa: N801
    """Builder of a generator that starts at A_i z and adds one network for each marginal."""

    width: int = 64
    depth: int = 2
    start: tuple[Float[Tensor, "size latent"], ...] | None = None
    """A_i; None starts at 0."""

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> AroundAffine:
        rest = separate(self.width, self.depth)(shapes, rng)
        largest = (max(shapes.sizes), shapes.latent)
        start = [torch.zeros(largest)] * len(shapes.sizes) if self.start is None else self.start
        return AroundAffine(rest, torch.stack([filled_up(a, *largest) for a in start]))


@dataclass(frozen=True)
class shared_trunk:  # noqa: N801
    """Builder of a generator with a trunk that all marginals share."""

    width: int = 64
    depth: int = 2

    def __call__(self, shapes: Shapes, rng: torch.Generator) -> SharedTrunkGenerator:
        return SharedTrunkGenerator(shapes, width=self.width, depth=self.depth, rng=rng)


class Units(nn.Module):
    """Where the data lies: a mean for each marginal and one scale s for all, fixed before training.

    s is one number, or one for each coordinate. Networks work on (x − mean) / s; costs and reports are in data units.
    When a mean is so far from 0 that float32 would lose digits of the spread, data units are float64; the networks stay
    as they are.
    """

    scale: Tensor

    def __init__(self, means: tuple[Tensor, ...], scale: float | Tensor, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype, self._count = dtype, len(means)
        for k, mean in enumerate(means):
            self.register_buffer(f"mean_{k}", mean.detach().clone())
        self.register_buffer("scale", torch.as_tensor(scale, dtype=means[0].dtype).clone())

    @classmethod
    def of(cls, xs: Samples, dtype: torch.dtype) -> "Units":
        """Mean of each marginal and the root mean square deviation of a coordinate over all of them."""
        means = tuple(x.mean(dim=0) for x in xs)
        scale = math.sqrt(sum(float((x - m).square().mean()) for x, m in zip(xs, means, strict=True)) / len(xs))
        if scale == 0:
            scale = max(float(m.abs().max()) for m in means) or 1.0
        far = max(float(m.abs().max()) for m in means) / scale > _FAR
        return cls(tuple(m.to(torch.float64 if far else dtype) for m in means), scale, dtype=dtype)

    @classmethod
    def by_column(cls, xs: Samples, dtype: torch.dtype) -> "Units":
        """Mean of each marginal, and of each coordinate the root mean square deviation over all of them."""
        means = tuple(x.mean(dim=0) for x in xs)
        squares = [(x - mean).square().mean(dim=0) for x, mean in zip(xs, means, strict=True)]
        scale = torch.stack(squares).mean(dim=0).sqrt()
        largest = torch.stack(means).abs().amax(dim=0)
        scale = torch.where(scale > 0, scale, largest.clamp(min=1.0))
        far = bool((largest > _FAR * scale).any())
        return cls(tuple(mean.to(torch.float64 if far else dtype) for mean in means), scale, dtype=dtype)

    @classmethod
    def plain(cls, xs: Samples, dtype: torch.dtype) -> "Units":
        """The data as it is."""
        return cls(tuple(torch.zeros_like(x[0], dtype=dtype) for x in xs), 1.0, dtype=dtype)

    @classmethod
    def spanning(cls, xs: Samples, dtype: torch.dtype) -> "Units":
        """The middle between the smallest and the largest value, and half of what lies between: u is within ±1."""
        low, high = min(float(x.min()) for x in xs), max(float(x.max()) for x in xs)
        middle = [torch.full_like(x[0], (low + high) / 2, dtype=dtype) for x in xs]
        return cls(tuple(middle), (high - low) / 2 or 1.0, dtype=dtype)

    @property
    def means(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, f"mean_{k}") for k in range(self._count))

    @property
    def data_dtype(self) -> torch.dtype:
        """Of samples in data units."""
        return self.scale.dtype

    def to_data(self, us: Samples) -> Samples:
        """x_i = mean_i + s u_i."""
        data = self.data_dtype
        return tuple(torch.addcmul(mean, u.to(data), self.scale) for mean, u in zip(self.means, us, strict=True))

    def from_data(self, xs: Samples, marginals: Sequence[int] | None = None) -> Samples:
        """u_i = (x_i − mean_i) / s, in the dtype of the networks; of all marginals, or of those with these numbers."""
        means = self.means if marginals is None else [self.means[k] for k in marginals]
        return tuple(((x - mean) / self.scale).to(self.dtype) for mean, x in zip(means, xs, strict=True))

    def log_density(self, log_p: Values) -> Values:
        """Of joint samples in data units, from that of standardised ones: log p(x) = log p(u) − dim log s."""
        return log_p - self.scale.log() * sum(mean.numel() for mean in self.means)


class InDataUnits(nn.Module):
    """A generator whose last layer is the fixed map to data units."""

    def __init__(self, generator: nn.Module, units: Units) -> None:
        super().__init__()
        self.generator, self.units = generator, units

    def forward(self, z: Float[Tensor, "batch latent"]) -> Samples:
        return self.units.to_data(self.standardised(z))

    def standardised(self, z: Float[Tensor, "batch latent"]) -> Samples:
        """The samples before the map to data units."""
        return self.generator(z)
