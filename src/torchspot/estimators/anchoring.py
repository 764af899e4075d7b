"""Fits that start from real samples: how much noise they need, what they draw, and the networks they train."""

__all__ = ["anchored_networks", "bound", "conditional_plan", "widths"]

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from torchspot.data.arrays import Rows
from torchspot.errors import InvalidArgument
from torchspot.estimators.networks import Builder
from torchspot.estimators.presets import Preset
from torchspot.estimators.problem import Problem
from torchspot.latents import Anchored, AnchoredDraws
from torchspot.networks.anchored import anchored
from torchspot.networks.generators import Shapes, around_affine, separate
from torchspot.networks.mlp import filled_up
from torchspot.objectives.gaussian import AffinePlan
from torchspot.plans import ConditionalPlan
from torchspot.plans.support import Support
from torchspot.types import Sampler

_LARGEST, _MOST_NOISE = 1024, 32
_FAR_FEWER, _MANY = 4, 16_384
"""So many times fewer rows than elsewhere are far fewer; beyond so many no one counts."""
_REPEATED = 0.9
"""Of the rows, if fewer are different, rows repeat."""
_THIN, _FLAT = 1e-4, 1e-8
"""Directions with less variance than so much of the mean are no base for a linear map; or are no directions at all."""
_SHARE = 0.5
"""Of the variance of the partners that x explains at the start, where there is noise."""
_NUMBERS = 1 << 25
"""At most so many are looked at to see whether rows repeat."""


def bound(kind: Anchored, problem: Problem) -> AnchoredDraws:
    """The latent with this data to draw from, and the noise decided."""
    m = len(problem.shapes)
    if max(kind.at) >= m:
        raise InvalidArgument(
            f"there are {m} marginals, counted from 0, and anchored(at={kind.at}) names marginal {max(kind.at)}."
        )
    if kind.noise_dim is None:
        maps = all(_can_be_mapped(problem, a) for a in kind.at)
        kind = replace(kind, noise_dim=0 if maps else min(_MOST_NOISE, problem.dim))
    units = problem.units
    means = tuple(units.means[a] for a in kind.at)
    return AnchoredDraws(kind, means, units.scale, units.dtype, tuple(problem.samplers[a] for a in kind.at))


def anchored_networks(
    kind: Anchored, given: Builder | nn.Module | None, preset: Preset, start: AffinePlan | None, width: int
) -> anchored:
    """For each anchor the user's network, or the preset's around an affine map: that of the start, or the identity.

    Where there is noise, the map starts with its share of it: noise that begins at 0 is often never taken up.
    """
    noise = kind.noise_dim or 0
    if isinstance(given, nn.Module):
        if len(kind.at) > 1:
            raise InvalidArgument("anchored at several marginals, each needs a network: give generator= as a builder.")
        return anchored(kind.at, lambda anchor: lambda shapes, rng: copy.deepcopy(given))

    def network(anchor: int) -> Builder:
        if given is not None:
            return given
        if start is not None and (matrices := _moments(start, anchor, noise)):
            return around_affine(width, preset.generator_depth, matrices)
        return partial(_around_identity, noise=noise, width=width, depth=preset.generator_depth)

    return anchored(kind.at, network)


def conditional_plan(latent: AnchoredDraws, problem: Problem) -> Callable[..., ConditionalPlan]:
    """Makes plans that know where the data of their anchors lies."""
    seen = problem.units.from_data(problem.probe)
    support = tuple(Support.of(seen[a].flatten(1), problem.judges[a].flatten(1)) for a in latent.kind.at)
    return partial(ConditionalPlan, support=support)


def widths(problem: Problem, held: tuple[int, ...]) -> tuple[float, ...]:
    """Root mean square deviations of these marginals in standardised units; 1 for one that is a point."""
    return tuple(float(problem.judges[k].double().var(0).mean().sqrt()) or 1.0 for k in held)


def _moments(start: AffinePlan, anchor: int, noise: int) -> tuple[Tensor, ...]:
    """For each other marginal the matrix from (x, noise) to it that gives it its covariance; nothing if x is too flat.

    Without noise the optimal map between Gaussians; with noise half of the variance is the noise's, or all for flat x.
    """
    maps = start.maps_from(anchor, _THIN)
    others = [a for k, a in enumerate(start.matrices) if k != anchor]
    if noise == 0:
        return () if maps is None else tuple(t.float() for t in maps)
    size = len(start.matrices[anchor])
    share = 0.0 if maps is None else _SHARE
    moved = [torch.zeros(len(a), size) for a in others] if maps is None else [t.float() for t in maps]
    spread = [_columns(a.float(), noise) for a in others]
    return tuple(
        torch.cat((math.sqrt(share) * t, math.sqrt(1 - share) * r), dim=1) for t, r in zip(moved, spread, strict=True)
    )


def _columns(root: Tensor, count: int) -> Tensor:
    """So many columns R with R Rᵀ as near as it can be to that of this matrix."""
    u, s, _ = torch.linalg.svd(root)
    return filled_up((u * s)[:, :count], len(root), count)


def _around_identity(shapes: Shapes, rng: torch.Generator, *, noise: int, width: int, depth: int) -> nn.Module:
    """x, plus noise, plus what a network adds, at first nothing; just a network where marginals differ in size."""
    size, mine = shapes.sizes[0], shapes.latent - noise
    if len(set(shapes.sizes)) > 1 or size > _LARGEST or (size > mine and not noise):
        return separate(width, depth)(shapes, rng)
    start = torch.cat((torch.eye(size, mine), torch.eye(size, noise)), dim=1)
    return around_affine(width, depth, (start,) * len(shapes.sizes))(shapes, rng)


def _can_be_mapped(problem: Problem, anchor: int) -> bool:
    """Whether the rows of the anchor are different, not far fewer than another marginal's, and of no less dimension."""
    mine, most = _count(problem.samplers[anchor]), max(map(_count, problem.samplers))
    if mine * _FAR_FEWER <= min(most, _MANY * _FAR_FEWER) or _repeats(problem.samplers[anchor]):
        return False
    dimensions = [_dimension(x) for x in problem.probe]
    return dimensions[anchor] == max(dimensions)


def _dimension(x: Tensor) -> int:
    """Directions in which samples vary; where there are very many, simply how many numbers one has."""
    flat = x.flatten(1)
    if flat.shape[1] > min(_LARGEST, len(flat) - 1):
        return flat.shape[1]
    variances = torch.linalg.eigvalsh(torch.cov(flat.double().T).reshape(flat.shape[1], -1))
    return int((variances > _FLAT * variances.mean()).sum())


def _count(sampler: Sampler) -> int:
    return len(sampler) if isinstance(sampler, Rows) else _MANY * _FAR_FEWER


def _repeats(sampler: Sampler) -> bool:
    if not isinstance(sampler, Rows):
        return False
    most = max(1024, min(_MANY, _NUMBERS // math.prod(sampler.shape)))
    some = sampler.chosen(np.empty(0, dtype=np.int64), most, torch.Generator().manual_seed(0)).flatten(1)
    return len(torch.unique(some, dim=0)) < _REPEATED * len(some)
