"""Every problem's plan is optimal, and its stated value is right."""

import numpy as np
import pytest
import torch

from torchspot import costs
from torchspot.exact import emd
from torchspot_paper.problems import dimension_problems, gaussians, sine

NAMES = list(dimension_problems(2))


@pytest.mark.parametrize("dim", [2, 16])
@pytest.mark.parametrize("name", NAMES)
def test_no_other_pairing_of_the_plans_samples_is_cheaper(name, dim):
    """What makes a plan optimal: its samples are matched to each other at the least cost."""
    problem = dimension_problems(dim)[name]
    x, y = map(torch.from_numpy, problem.pairs(400, 0))
    paired = float(problem.cost(x, y).mean())
    assert emd(problem.cost, x, y) == pytest.approx(paired, rel=1e-9)
    shuffled = float(problem.cost(x, y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]).mean())
    assert shuffled > 1.01 * paired


@pytest.mark.parametrize("dim", [2, 16])
@pytest.mark.parametrize("name", NAMES)
def test_the_stated_value_is_the_mean_cost(name, dim):
    problem = dimension_problems(dim)[name]
    assert problem.value == pytest.approx(problem.mean_cost(4), rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_unpaired_and_of_the_law_of_the_pairs(name):
    problem = dimension_problems(2)[name]
    (x, y), (_, paired) = problem.sample(4000, 1), problem.pairs(4000, 1)
    assert np.allclose(y.mean(0), paired.mean(0), atol=0.15)
    assert np.allclose(np.cov(y.T), np.cov(paired.T), atol=0.1 * np.cov(paired.T).max() + 0.1)
    assert abs(np.corrcoef(x[:, 0], y[:, 0])[0, 1]) < 0.1


def test_the_problems_of_the_paper():
    assert gaussians().value == 5
    assert gaussians(cost=costs.squared_euclidean).value == 25
    x, y = sine(50_000, 0)
    assert np.allclose(x.mean(0), [-2.5, 0], atol=0.02)
    assert np.allclose(np.cov(x.T), 0.5 * np.eye(2), atol=0.02)
    assert y[:, 1].min() >= -3
    assert y[:, 1].max() <= 3
    rest = y[:, 0] - np.sin((y[:, 1] + 3) / 2)
    assert rest.mean() == pytest.approx(2, abs=0.01)
    assert rest.var() == pytest.approx(0.1, rel=0.03)
