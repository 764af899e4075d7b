"""Barycenters from plans that are known, and for no other weights than theirs."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torchspot import SPOT, costs
from torchspot.errors import InvalidArgument
from torchspot.evaluation import barycenter
from torchspot.types import Cost
from torchspot_paper import tuples


@dataclass
class Shifted:
    """x + k of marginal k: a plan whose barycenter is x + Σ w_k k."""

    cost: Cost
    marginals: int = 3

    def sample(self, n, seed=None):
        x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed or 0))
        return tuple(x + k for k in range(self.marginals))


def test_the_barycenter_is_the_weighted_mean_of_the_tuples():
    x = Shifted(costs.squared_euclidean).sample(100, 3)[0]
    equal = barycenter(Shifted(costs.sum_over_pairs(costs.squared_euclidean)), 100, seed=3)
    assert torch.allclose(equal, x + 1)
    weighted = barycenter(Shifted(costs.barycentric([2, 1, 1])), 100, seed=3)
    assert torch.allclose(weighted, x + 0.75)
    assert torch.allclose(barycenter(Shifted(costs.barycentric([2, 1, 1])), 100, weights=[4, 2, 2], seed=3), weighted)


def test_between_two_marginals_any_weights_interpolate():
    plan = Shifted(costs.squared_euclidean, 2)
    assert torch.allclose(barycenter(plan, 10, weights=[0.9, 0.1], seed=1), plan.sample(10, 1)[0] + 0.1)


def test_other_weights_and_other_costs_say_what_to_fit():
    squared = Shifted(costs.sum_over_pairs(costs.squared_euclidean))
    with pytest.raises(InvalidArgument, match=r"costs\.barycentric\(\[2, 1, 1\]\)"):
        barycenter(squared, weights=[2, 1, 1])
    with pytest.raises(InvalidArgument, match=r"costs\.barycentric\(\[0\.3333, "):
        barycenter(Shifted(costs.sum_over_pairs(costs.euclidean)))
    for bad in ([1, 1], [1, 1, -1], [0, 0, 0]):
        with pytest.raises(InvalidArgument, match="3 marginals: give one weight"):
            barycenter(squared, weights=bad)


def test_weights_may_be_an_array_and_entropic_plans_have_none():
    squared = Shifted(costs.sum_over_pairs(costs.squared_euclidean))
    with pytest.raises(InvalidArgument, match=r"barycentric\(\[0\.2, 0\.3, 0\.5\]\)"):
        barycenter(squared, weights=np.array([0.2, 0.3, 0.5]))
    squared.facts = {"epsilon": 1.0}
    with pytest.raises(InvalidArgument, match="entropic"):
        barycenter(squared)


def test_the_barycenter_of_fitted_gaussians_is_that_of_the_fixed_point():
    problem = tuples.gaussians(3, 2, (0.5, 0.3, 0.2))
    fitted = SPOT(cost=problem.cost, steps=300).fit(*problem.sample(10_000, 0))
    mean, covariance = problem.barycenter()
    found = barycenter(fitted.plan_, 50_000, seed=0).double().numpy()
    assert np.linalg.norm(found.mean(0) - mean) < 0.03 * np.sqrt(np.trace(covariance))
    assert np.linalg.norm(np.cov(found.T) - covariance) < 0.06 * np.linalg.norm(covariance)
