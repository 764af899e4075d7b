"""Fits that start from real samples: how much noise they need, what they draw, and the networks they train."""

__all__ = ["anchored_networks", "bound"]

from dataclasses import replace

import torch

from torchspot.data.arrays import Rows
from torchspot.errors import InvalidArgument
from torchspot.estimators.networks import Builder
from torchspot.estimators.presets import Preset
from torchspot.estimators.problem import Problem
from torchspot.latents import Anchored, AnchoredDraws
from torchspot.networks.anchored import anchored
from torchspot.networks.generators import around_affine, separate
from torchspot.objectives.gaussian import AffinePlan

_LARGEST, _MOST_NOISE = 1024, 32
_FAR_FEWER, _MANY = 4, 16_384
_REPEATED = 0.9


def bound(kind: Anchored, problem: Problem) -> AnchoredDraws:
    """The latent with this data to draw from, and the noise decided."""
    m = len(problem.shapes)
    if max(kind.at) >= m:
        raise InvalidArgument(f"there are {m} marginals, and anchored(at={kind.at}) names marginal {max(kind.at)}.")
    if kind.noise_dim is None:
        kind = replace(kind, noise_dim=_noise(kind, problem))
    units = problem.units
    means = tuple(units.means[a] for a in kind.at)
    return AnchoredDraws(kind, means, units.scale, units.dtype, tuple(problem.samplers[a] for a in kind.at))


def anchored_networks(
    kind: Anchored, given: Builder | None, preset: Preset, start: AffinePlan | None, width: int
) -> anchored:
    """For each anchor the user's network, or the preset's around the affine map (the identity without a start)."""

    def network(anchor: int) -> Builder:
        if given is not None:
            return given
        if start is not None:
            matrices = tuple(t.float() for t in start.maps_from(anchor))
            return around_affine(width, preset.generator_depth, matrices)
        return lambda shapes, rng: _around_identity(shapes, rng, preset, width)

    return anchored(kind.at, network)


def _around_identity(shapes, rng, preset, width):
    if len(set(shapes.sizes)) == 1 and shapes.sizes[0] <= min(_LARGEST, shapes.latent):
        eye = torch.eye(shapes.sizes[0])
        return around_affine(width, preset.generator_depth, (eye,) * len(shapes.sizes))(shapes, rng)
    return separate(width, preset.generator_depth)(shapes, rng)


def _noise(kind: Anchored, problem: Problem) -> int:
    """None where a map can do: a map needs as many different rows at the anchor as elsewhere, roughly."""
    counts = [_different(sampler) for sampler in problem.samplers]
    most = max(counts)
    if all(counts[a] * _FAR_FEWER > min(most, _MANY) and not _repeats(problem.samplers[a]) for a in kind.at):
        return 0
    return min(_MOST_NOISE, problem.dim)


def _different(sampler):
    return len(sampler) if isinstance(sampler, Rows) else _MANY * _FAR_FEWER


def _repeats(sampler):
    if not isinstance(sampler, Rows):
        return False
    rows = sampler.chosen(torch.empty(0).long().numpy(), _MANY, torch.Generator().manual_seed(0)).flatten(1)
    return len(torch.unique(rows, dim=0)) < _REPEATED * len(rows)
