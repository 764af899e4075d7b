"""Potentials never sum to more than the cost, wherever they are evaluated; and reach closed forms where they can."""

import math

import numpy as np
import pytest
import torch

import problems
from torchspot import costs
from torchspot.costs.multimarginal import Pairs
from torchspot.evaluation import fitted, potentials
from torchspot.evaluation.potentials import fit_potentials, linear, quadratic
from torchspot.objectives.gaussian import AffinePlan

TWO = Pairs(costs.squared_euclidean, (0.5, 0.5), 4.0)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(fitted, "_STEPS", 60)
    monkeypatch.setattr(potentials, "_NEIGHBOURS_LOW", 200)
    monkeypatch.setattr(potentials, "_ENOUGH_TO_TRAIN", 10)


def samples(dim: int, count: int = 2, n: int = 400) -> tuple[torch.Tensor, ...]:
    rngs = [np.random.default_rng(k) for k in range(count)]
    return tuple(torch.from_numpy((1 + k) * r.normal(size=(n, dim)) + 2 * k) for k, r in enumerate(rngs))


def everywhere(xs):
    """Tuples of many kinds: data, far away, near each other, the same."""
    rng = torch.Generator().manual_seed(0)
    noise = [torch.randn(x.shape, generator=rng, dtype=torch.float64) for x in xs]
    yield xs
    yield tuple(20 * e for e in noise)
    yield tuple(xs[0] + 0.01 * e for e in noise)
    yield (xs[0],) * len(xs)
    yield (xs[1],) * len(xs)


class OwnMetric:
    """A metric of the user's own: the Euclidean distance, capped."""

    metric = True

    def __call__(self, x, y):
        return (x - y).norm(dim=1).clamp(max=4.0)


COSTS = {
    "euclidean": costs.euclidean,
    "p_norm(1)": costs.p_norm(1),
    "p_norm(3)": costs.p_norm(3),
    "p_norm(inf)": costs.p_norm(math.inf),
    "squared": costs.squared_euclidean,
    "cosine": costs.cosine,
    "own metric": OwnMetric(),
}


@pytest.mark.parametrize("dim", [2, 6])
@pytest.mark.parametrize("name", COSTS)
def test_every_candidate_stays_below_the_cost(name, dim):
    cost, xs = COSTS[name], samples(dim)
    candidates = list(potentials._candidates(cost, xs, xs, 0))
    assert len(candidates) >= (1 if name == "own metric" else 4)
    for candidate in candidates:
        for tuples in everywhere(xs):
            excess = sum(candidate.values(tuples)) - cost(*tuples)
            assert float(excess.max()) <= 1e-6 * float(1 + cost(*tuples).max()), candidate.name


MANY = [
    costs.sum_over_pairs(costs.euclidean),
    costs.sum_over_pairs(costs.squared_euclidean),
    costs.barycentric(),
    costs.barycentric([5, 3, 2]),
]


@pytest.mark.parametrize("cost", MANY, ids=str)
def test_for_many_marginals_too(cost):
    xs = samples(2, count=3)
    candidates = list(potentials._candidates(cost, xs, xs, 0))
    assert candidates
    for candidate in candidates:
        for tuples in everywhere(xs):
            excess = sum(candidate.values(tuples)) - cost(*tuples)
            assert float(excess.max()) <= 1e-6 * float(1 + cost(*tuples).max()), candidate.name


def test_an_unknown_cost_has_none():
    assert fit_potentials(lambda x, y: (x * y).sum(1), samples(2), samples(2)) is None
    assert fit_potentials(lambda x, y, z: (x * y * z).sum(1), samples(2, 3), samples(2, 3)) is None


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 4.0, math.inf])
def test_linear_potentials_give_the_distance_of_the_means(p):
    x, y = samples(3)
    shift = float((x.mean(0) - y.mean(0)).norm(p=p))
    assert linear(costs.p_norm(p), (x, y)).mean((x, y)) == pytest.approx(shift)


def test_quadratic_potentials_give_the_closed_form_of_gaussians():
    xs = tuple(torch.from_numpy(x) for x in problems.three_gaussians(3000).xs)
    means = [x.mean(0).numpy() for x in xs]
    covariances = [np.cov(x.numpy().T, bias=True) for x in xs]
    pairs = costs.pairs_of(costs.sum_over_pairs(costs.squared_euclidean), 3)
    found = quadratic(costs.squared_euclidean.embedding, xs, pairs).mean(xs)
    assert found == pytest.approx(problems.multi_bures(means, covariances), rel=1e-4)


@pytest.mark.parametrize("count", [2, 3])
def test_weighted_quadratic_potentials_give_the_cost_of_the_affine_plan(count):
    """Between Gaussians both are optimal; of samples, only the covariances count for both."""
    weights = (5, 3, 2)[:count]
    cost = costs.barycentric(weights)
    xs = samples(3, count)
    centred = [x - x.mean(0) for x in xs]
    matrices = AffinePlan.between(centred, costs.pairs_of(cost, count).weights).matrices
    means = float(cost(*(x.mean(0)[None] for x in xs)))
    apart = means + float(cost(*(a.mT for a in matrices)).sum())
    found = quadratic(costs.squared_euclidean.embedding, xs, costs.pairs_of(cost, count)).mean(xs)
    assert found == pytest.approx(apart, rel=1e-3)


def test_cosine_is_a_squared_distance():
    x, y = samples(5)
    apart = (costs.cosine.embedding(x) - costs.cosine.embedding(y)).square().sum(1)
    assert torch.allclose(apart, costs.cosine(x, y))


def test_learned_cones_find_what_linear_potentials_cannot(monkeypatch):
    monkeypatch.setattr(fitted, "_STEPS", 400)
    x, y = (torch.from_numpy(a) for a in problems.stretch(4000, dim=8).xs)
    assert linear(costs.euclidean, (x, y)).mean((x, y)) < 0.2
    cones = potentials._swapped(potentials._cones(costs.euclidean, (y[:3000], x[:3000]), 0))
    assert cones.mean((x[3000:], y[3000:])) > 1.8


def test_convex_networks_find_what_quadratics_cannot(monkeypatch):
    monkeypatch.setattr(fitted, "_STEPS", 400)
    rng = np.random.default_rng(0)
    x, base = (torch.from_numpy(rng.normal(size=(4000, 6))) for _ in range(2))
    y = base + 2 * torch.sign(base[:, :1]) * torch.eye(6, dtype=torch.float64)[0]  # the truth is 4
    assert quadratic(costs.squared_euclidean.embedding, (x, y), TWO).mean((x, y)) < 3.5
    found = potentials._convex_network((x[:3000], y[:3000]), 0)
    assert 3.7 < found.mean((x[3000:], y[3000:])) < 4.1
