"""Lower bounds of transport: potentials that never sum to more than the cost, fitted to samples.

Any functions u_i with Σ_i u_i(x_i) ≤ c(x_1, …, x_m) for all points give Σ_i E u_i(X_i) ≤ the optimal cost, however they
were found. Everything here holds that inequality by construction; how tight it is depends on the fit.
"""

__all__ = ["Potentials", "fit_potentials"]

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot import costs
from torchspot.costs.multimarginal import Pairs
from torchspot.costs.pointwise import PNorm, SquaredEuclidean
from torchspot.evaluation.fitted import learned_cones, orthogonal_network, strongly_convex_network
from torchspot.exact import Coupling, by_pot, c_transform, couple, matched
from torchspot.objectives.gaussian import barycentric_maps, invertible_covariance
from torchspot.types import Cost, Samples, Values

Points = Float[Tensor, "batch dim"]

_NEIGHBOURS_LOW, _NEIGHBOURS_HIGH, _LOW_DIM = 4096, 2048, 4
_CHUNK = 1 << 22
_ENOUGH_TO_TRAIN = 1000
_DENSE_DIM = 512
"""Up to this dimension whole matrices (covariances and the like) are used."""
_ENOUGH, _NEAR, _NEAR_OF_MANY = 1024, 0.003, 0.02
"""The search ends within so much (two marginals; more) of what so many rows allow."""
_CONVEXITIES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
"""Of the interpolated potentials, in units in which a coordinate has variance 1."""


@dataclass(frozen=True)
class Potentials:
    """Functions u_i, one for each marginal, with Σ_i u_i(x_i) ≤ c(x_1, …, x_m) for all points."""

    name: str
    """In words, how they were found."""
    values: Callable[[Samples], tuple[Values, ...]]
    """(u_1(x_1), …, u_m(x_m)) for a sample of each marginal."""
    opposite: bool = False
    """Whether u_2 = −u_1 (metric costs): then u_1 may be clamped, and the inequality still holds."""

    def mean(self, xs: Samples) -> float:
        """Σ_i mean u_i(x_i)."""
        return math.fsum(float(u.mean()) for u in self.values(xs))


def fit_potentials(cost: Cost, fit: Samples, choose: Samples, *, seed: int = 0) -> Potentials | None:
    """The best potentials for this cost that were found on one part of the data, as judged by another.

    Candidates are tried from the cheapest on, until one is as good as exact transport of the judging part itself
    allows. None for a cost of which no potentials are known.
    """
    few = tuple(x[: min(_ENOUGH, *(len(x) for x in choose))] for x in choose)
    found: list[tuple[float, Potentials]] = []
    ceiling = math.inf
    for candidate in _candidates(cost, fit, choose, seed):
        mean = candidate.mean(choose)
        if not math.isfinite(mean):
            continue
        found.append((mean, candidate))
        ceiling = _ceiling(cost, few) if ceiling == math.inf else ceiling
        if candidate.mean(few) > ceiling - (_NEAR if len(fit) == 2 else _NEAR_OF_MANY) * abs(ceiling):
            break
    return max(found, key=lambda entry: entry[0])[1] if found else None


def _ceiling(cost: Cost, few: Samples) -> float:
    """About what the best potentials reach on these rows: exact transport, less what so few rows make it too large.

    The excess is taken to halve as rows double, so it is what two halves cost more than the whole. Only how long the
    search goes on depends on this.
    """
    half = len(few[0]) // 2

    def least(xs: Samples) -> float:
        return float(cost(*matched(cost, xs, assign=by_pot)).double().mean())

    parts = (tuple(x[:half] for x in few), tuple(x[half : 2 * half] for x in few))
    return 2 * least(few) - sum(map(least, parts)) / 2


def _candidates(cost: Cost, fit: Samples, choose: Samples, seed: int) -> Iterator[Potentials]:
    """From the cheapest to the dearest."""
    embed = _features(cost)
    pairs = None if costs.is_metric(cost) else costs.pairs_of(cost, len(fit))
    if pairs is not None and pairs.pair is not cost:
        yield from _of_pairs(pairs, fit, choose, seed)
    elif costs.is_metric(cost):
        yield from _of_metric(cost, fit, seed)
    elif embed is not None:
        yield from _of_squares(embed, fit, choose, seed)


def _of_pairs(pairs: Pairs, fit: Samples, choose: Samples, seed: int) -> Iterator[Potentials]:
    """Σ_{i<j} w_i w_j c(x_i, x_j): sums of those of the pairs; for squared distances quadratic ones of all together."""
    embed = _features(pairs.pair)
    if embed is not None and embed(fit[0][:1]).shape[1] <= _DENSE_DIM:
        yield quadratic(embed, fit, pairs)
    places = list(combinations(range(len(fit)), 2))
    found = [fit_potentials(pairs.pair, (fit[i], fit[j]), (choose[i], choose[j]), seed=seed) for i, j in places]
    known = [one for one in found if one is not None]
    if len(known) == len(places):
        yield _summed(known, pairs)


def _of_metric(cost: Cost, fit: Samples, seed: int) -> Iterator[Potentials]:
    if isinstance(cost, PNorm):
        yield linear(cost, fit)
    yield _extended(cost, fit)
    if isinstance(cost, PNorm) and _enough(fit):
        yield _cones(cost, fit, seed)
        yield _swapped(_cones(cost, fit[::-1], seed))
        yield _network(cost, fit, seed)


def _of_squares(embed: Callable[[Tensor], Points], fit: Samples, choose: Samples, seed: int) -> Iterator[Potentials]:
    features, judges = (tuple(map(embed, xs)) for xs in (fit, choose))
    dim = features[0].shape[1]
    if dim <= _DENSE_DIM:
        yield quadratic(embed, fit, Pairs(SquaredEuclidean(), (0.5, 0.5), 4.0))
    else:
        yield _from_distance(linear(costs.euclidean, features), judges, embed)
    if dim <= _LOW_DIM:
        yield from (_embedded(one, embed) for one in _interpolated(features))
    if not _enough(fit):
        return
    if dim > _LOW_DIM:
        yield _from_distance(_cones(costs.euclidean, features, seed), judges, embed)
        yield _from_distance(_swapped(_cones(costs.euclidean, features[::-1], seed)), judges, embed)
    if dim <= _DENSE_DIM:
        yield _embedded(_convex_network(features, seed), embed)
        yield _embedded(_swapped(_convex_network(features[::-1], seed)), embed)


def _features(cost: Cost) -> Callable[[Tensor], Points] | None:
    """The embedding in which the cost is a squared distance, brought to the host in float64."""
    embed = costs.squared_embedding(cost)
    return None if embed is None else lambda x: embed(x).detach().double().cpu()


def _enough(xs: Samples) -> bool:
    """Whether there is enough to train a network on."""
    return min(map(len, xs)) >= _ENOUGH_TO_TRAIN


def linear(norm: Cost, xs: Samples) -> Potentials:
    """u(x) = ⟨a, x⟩ and −u(y) with a of dual norm 1: the distance of the means, ‖E x − E y‖.

    a is the gradient of the norm at the difference of the means.
    """
    shift = (xs[0].double().mean(0) - xs[1].double().mean(0)).flatten()[None].requires_grad_()
    (a,) = torch.autograd.grad(norm(shift, torch.zeros_like(shift)).sum(), shift)

    def values(points: Samples) -> tuple[Values, ...]:
        x, y = points
        return x.flatten(1).double() @ a[0], -(y.flatten(1).double() @ a[0])

    return Potentials("the difference of the means", values, opposite=True)


def _extended(metric: Cost, xs: Samples) -> Potentials:
    """u(x) = min_j c(x, y_j) − g_j and −u(y), with g from exact transport of some of the samples (McShane).

    u(x) − u(y) ≤ c(x, y) by the triangle inequality, whatever g is.
    """
    x, y = _some(xs)
    g = couple(metric, x, y).g

    def values(points: Samples) -> tuple[Values, ...]:
        return c_transform(metric, points[0], y, g), -c_transform(metric, points[1], y, g)

    return Potentials("exact transport of a subsample, extended", values, opposite=True)


def _cones(norm: PNorm, xs: Samples, seed: int) -> Potentials:
    """u = a rounded minimum of learned cones, and −u."""
    u = learned_cones(xs, p=norm.p, seed=seed)
    return Potentials("learned cones", lambda p: (u(p[0]), -u(p[1])), opposite=True)


def _network(norm: PNorm, xs: Samples, seed: int) -> Potentials:
    """u = a network, 1-Lipschitz for the Euclidean distance, times κ with κ‖x − y‖₂ ≤ ‖x − y‖_p."""
    dim = xs[0][0].numel()
    kappa = 1.0 if norm.p <= 2 else dim ** (1 / norm.p - 1 / 2)
    u = orthogonal_network(xs, seed=seed)
    return Potentials("an orthogonal network", lambda p: (kappa * u(p[0]), -kappa * u(p[1])), opposite=True)


def _from_distance(of_distance: Potentials, judges: Samples, embed: Callable[[Tensor], Points]) -> Potentials:
    """From potentials of the distance to those of its square: ‖x − y‖² ≥ 2t‖x − y‖ − t² ≥ 2t (u(x) + v(y)) − t².

    The best t is the distance itself, here as the judging part shows it.
    """
    t = max(of_distance.mean(judges), 0.0)

    def values(points: Samples) -> tuple[Values, ...]:
        u, v = of_distance.values(points)
        return 2 * t * u - t * t, 2 * t * v

    return _embedded(Potentials(f"the square of a bound of the distance ({of_distance.name})", values), embed)


def quadratic(embed: Callable[[Tensor], Points], xs: Samples, pairs: Pairs) -> Potentials:
    """For s Σ_{i<j} w_i w_j ‖x_i − x_j‖², quadratic functions: exact for Gaussians, a bound for any laws.

    With a_i the means, ā = Σ w_i a_i, S the barycenter of the covariances, T_i the maps from S to them (so that
    Σ w_i T_i = I), and x_i = a_i + u_i:

        u_i(x_i) = s w_i (‖a_i − ā‖² + 2 ⟨a_i − ā, u_i⟩ + ‖u_i‖² − u_iᵀT_i⁻¹u_i).

    Reference: "Barycenters in the Wasserstein space", M. Agueh and G. Carlier, 2011; for two marginals "On a formula
    for the L2 Wasserstein metric between measures on Euclidean and Hilbert spaces", M. Gelbrich, 1990.
    """
    features = list(map(embed, xs))
    means = torch.stack([x.mean(0) for x in features])
    maps = barycentric_maps([invertible_covariance(x) for x in features], pairs.weights)
    inverses = [torch.linalg.inv(t) for t in maps]
    shifts = means - torch.tensor(pairs.weights, dtype=means.dtype) @ means

    def values(points: Samples) -> tuple[Values, ...]:
        us = [embed(x) - mean for x, mean in zip(points, means, strict=True)]
        return tuple(
            pairs.scale * w * ((u + shift).square().sum(1) - ((u @ inverse) * u).sum(1))
            for w, u, shift, inverse in zip(pairs.weights, us, shifts, inverses, strict=True)
        )

    return Potentials("means and covariances", values)


def _interpolated(features: Samples) -> Iterator[Potentials]:
    """Exact transport of a subsample, extended by strongly convex functions: one candidate for each convexity."""
    units = Standardised.of(features)
    x, y = units(_some(features))
    coupling = couple(SquaredEuclidean(), x, y)
    back = Coupling(coupling.cost, torch.argsort(coupling.partner), coupling.g, coupling.f)
    for alpha in _CONVEXITIES:
        yield units.undone(_between(x, y, coupling, alpha))
        yield units.undone(_swapped(_between(y, x, back, alpha)))


def _between(x: Points, y: Points, coupling: Coupling, alpha: float) -> Potentials:
    """With pairs (x_j, y_j) and φ_j = (‖x_j‖² − f_j) / 2 of an exact coupling:

        φ(x) = max_j φ_j + ⟨y_j, x − x_j⟩ + α/2 ‖x − x_j‖²,   φ*(y) ≤ min_j ⟨x_j, y⟩ − φ_j + ‖y − y_j‖² / (2α),

    the latter as φ is at least each of its quadratics; u(x) = ‖x‖² − 2φ(x), v(y) = ‖y‖² − 2·(that bound of φ*).
    """
    y = y[coupling.partner]
    heights = (x.square().sum(1) - coupling.f) / 2
    size = max(1, _CHUNK // len(x))

    def phi(points: Points) -> Values:
        constant = heights - (x * y).sum(1) + alpha / 2 * x.square().sum(1)
        return (points @ (y - alpha * x).mT + constant).amax(1) + alpha / 2 * points.square().sum(1)

    def conjugate(points: Points) -> Values:
        constant = y.square().sum(1) / (2 * alpha) - heights
        return (points @ (x - y / alpha).mT + constant).amin(1) + points.square().sum(1) / (2 * alpha)

    def values(points: Samples) -> tuple[Values, ...]:
        a = torch.cat([part.square().sum(1) - 2 * phi(part) for part in torch.split(points[0], size)])
        b = torch.cat([part.square().sum(1) - 2 * conjugate(part) for part in torch.split(points[1], size)])
        return a, b

    return Potentials("exact transport of a subsample, extended", values)


def _convex_network(features: Samples, seed: int) -> Potentials:
    """u(x) = ‖x‖² − 2φ(x) and v(y) = ‖y‖² − 2·(bound of φ*(y)), φ a strongly convex network."""
    units = Standardised.of(features)
    phi, conjugate = strongly_convex_network(units(features), seed=seed)

    def values(points: Samples) -> tuple[Values, ...]:
        x, y = points
        return x.square().sum(1) - 2 * phi(x), y.square().sum(1) - 2 * conjugate(y)

    return units.undone(Potentials("a strongly convex network", values))


@dataclass(frozen=True)
class Standardised:
    """x ↦ (x − mean) / s, each side about its own mean, s common: squared distances come back by an identity."""

    means: tuple[Tensor, Tensor]
    scale: float

    @classmethod
    def of(cls, xs: Samples) -> "Standardised":
        """Coordinates of variance 1, on average over both sides."""
        x, y = (x.double() for x in xs)
        scale = math.sqrt((float(x.var(0).mean()) + float(y.var(0).mean())) / 2)
        return cls((x.mean(0), y.mean(0)), scale or 1.0)

    def __call__(self, xs: Samples) -> tuple[Points, Points]:
        x, y = ((x.double() - mean) / self.scale for x, mean in zip(xs, self.means, strict=True))
        return x, y

    def undone(self, inside: Potentials) -> Potentials:
        """With a, b the means, x = a + su and y = b + sv: ‖x − y‖² = ‖a − b‖² + 2s⟨a − b, u − v⟩ + s²‖u − v‖²."""
        shift, s = self.means[0] - self.means[1], self.scale

        def values(points: Samples) -> tuple[Values, ...]:
            u, v = self(points)
            in_u, in_v = inside.values((u, v))
            return shift @ shift + 2 * s * (u @ shift) + s * s * in_u, s * s * in_v - 2 * s * (v @ shift)

        return Potentials(inside.name, values)


def _embedded(inside: Potentials, embed: Callable[[Tensor], Points]) -> Potentials:
    return Potentials(inside.name, lambda points: inside.values(tuple(map(embed, points))))


def _swapped(inside: Potentials) -> Potentials:
    return Potentials(inside.name, lambda points: inside.values(points[::-1])[::-1], inside.opposite)


def _summed(found: Sequence[Potentials], pairs: Pairs) -> Potentials:
    """s Σ_{i<j} w_i w_j c(x_i, x_j) ≥ Σ_i Σ_{j≠i} s w_i w_j u_ij(x_i)."""
    w = pairs.weights
    places = list(combinations(range(len(w)), 2))

    def values(points: Samples) -> tuple[Values, ...]:
        sums = [torch.zeros(len(x), dtype=torch.float64) for x in points]
        for (i, j), pair in zip(places, found, strict=True):
            u, v = pair.values((points[i], points[j]))
            weight = pairs.scale * w[i] * w[j]
            sums[i], sums[j] = sums[i] + weight * u, sums[j] + weight * v
        return tuple(sums)

    return Potentials("each pair by itself: " + "; ".join(sorted({pair.name for pair in found})), values)


def _some(xs: Samples) -> Samples:
    """The first few thousand of each, as many as exact transport takes in seconds."""
    most = _NEIGHBOURS_LOW if xs[0][0].numel() <= _LOW_DIM else _NEIGHBOURS_HIGH
    size = min(most, *(len(x) for x in xs))
    return tuple(x[:size] for x in xs)
