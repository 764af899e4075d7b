"""Answers of problems with many marginals, each found in a second way."""

import numpy as np
import pytest
import torch

from problems import multi_bures
from torchspot import costs
from torchspot.exact import matched
from torchspot_paper import tuples


def test_gaussians_cost_what_an_independent_fixed_point_says():
    problem = tuples.gaussians(4, 3)
    xs = problem.sample(400_000, 0)
    found = multi_bures([x.mean(0) for x in xs], [np.cov(x.T) for x in xs])
    assert problem.value == pytest.approx(found, rel=0.01)
    weighted = tuples.gaussians(4, 3, (1, 1, 1, 1))
    assert 16 * weighted.value == pytest.approx(problem.value)


@pytest.mark.parametrize("dim", [2, 5])
def test_no_other_matching_of_a_bent_plan_is_cheaper(dim):
    problem = tuples.bent(dim)
    xs = tuple(map(torch.from_numpy, problem.plan(300, np.random.default_rng(0))))
    cost = float(problem.cost(*xs).mean())
    assert cost == pytest.approx(problem.value, rel=0.1)
    assert float(problem.cost(*matched(problem.cost, xs)).mean()) == pytest.approx(cost, rel=1e-12)
    shuffled = tuple(x[torch.randperm(300, generator=torch.Generator().manual_seed(k))] for k, x in enumerate(xs))
    assert tuples._alternated(shuffled) >= cost * (1 - 1e-12)
    mean, covariance = problem.barycenter()
    centre = sum(problem.plan(50_000, np.random.default_rng(1))) / 3
    assert np.allclose(centre.mean(0), mean, atol=0.05)
    assert np.allclose(np.cov(centre.T), covariance, atol=0.1)


@pytest.mark.parametrize("problem", [tuples.gaussians(3, 2), tuples.mixtures()], ids=lambda p: p.name)
def test_no_coupling_of_points_is_much_cheaper_than_the_answer(problem, monkeypatch):
    monkeypatch.setattr(tuples, "_BLOCKS", 2)
    monkeypatch.setattr(tuples, "_BLOCK", 300)
    xs = tuple(map(torch.from_numpy, problem.sample(300, 3)))
    found = float(problem.cost(*matched(problem.cost, xs, sweeps=10)).mean())
    assert found == pytest.approx(problem.value, rel=0.12)


def test_three_on_a_line_are_matched_by_sorting():
    rng = np.random.default_rng(0)
    atoms = [rng.normal(size=(7, 1)) * k for k in (1, 2, 3)]
    cost = costs.sum_over_pairs(costs.squared_euclidean)
    best = float(cost(*(torch.from_numpy(np.sort(a, 0)) for a in atoms)).mean())
    assert tuples.linear_program(cost, atoms) == pytest.approx(best)


def test_atoms_of_unequal_numbers_split():
    atoms = [np.array([[0.0]]), np.array([[1.0], [-1.0]]), np.array([[2.0], [0.0], [-2.0], [0.0]])]
    cost = costs.sum_over_pairs(costs.squared_euclidean)
    assert tuples.linear_program(cost, atoms) == pytest.approx(1 + 2 + 1)
