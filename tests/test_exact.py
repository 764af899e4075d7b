"""Exact transport against sorting, and one against the other."""

import numpy as np
import pytest
import torch

from torchspot import costs, exact
from torchspot.errors import TorchspotError


def points(seed: int, dim: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(60, dim)))


def test_in_one_dimension_both_are_sorting():
    x, y = points(0), 2 * points(1) + 1
    sorted_cost = float((x.sort(0).values - y.sort(0).values).square().mean())
    assert exact.emd(costs.squared_euclidean, x, y) == pytest.approx(sorted_cost)
    _, matched = exact.matched(costs.squared_euclidean, (x, y))
    assert float((x - matched).square().mean()) == pytest.approx(sorted_cost)


def test_matching_and_emd_agree_in_the_plane():
    x, y = points(0, 2), points(1, 2) + 3
    _, matched = exact.matched(costs.euclidean, (x, y))
    assert exact.emd(costs.euclidean, x, y) == pytest.approx(float(costs.euclidean(x, matched).mean()))


def test_more_marginals_in_one_dimension_are_matched_by_sorting():
    xs = (points(0), 2 * points(1) + 1, points(2) - 3)
    cost = costs.sum_over_pairs(costs.squared_euclidean)
    best = float(cost(*(x.sort(0).values for x in xs)).mean())
    assert float(cost(*exact.matched(cost, xs)).mean()) == pytest.approx(best, rel=0.02)
    assert float(cost(*xs).mean()) > 1.1 * best


def test_without_pot_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ot", None)
    with pytest.raises(TorchspotError, match=r"pip install 'torchspot\[exact\]'"):
        exact.emd(costs.euclidean, points(0), points(1))


@pytest.mark.parametrize("cost", [costs.euclidean, costs.squared_euclidean, costs.p_norm(1), costs.p_norm(3)])
def test_a_coupling_has_feasible_potentials_that_sum_to_its_cost(cost):
    x, y = points(0, 3), points(1, 3) + 1
    coupling = exact.couple(cost, x, y)
    matrix = exact.cost_matrix(cost, x, y)
    assert torch.allclose(matrix, torch.stack([cost(x, row.expand_as(x)) for row in y], dim=1))
    assert float((coupling.f[:, None] + coupling.g - matrix).max()) < 1e-9
    assert coupling.cost == pytest.approx(float(coupling.f.mean() + coupling.g.mean()))
    assert coupling.cost == pytest.approx(float(cost(x, y[coupling.partner]).mean()))
    assert coupling.cost == pytest.approx(exact.emd(cost, x, y))


def test_a_cost_without_pairwise_gives_the_same_matrix():
    x, y = points(0, 3), points(1, 3)[:20]
    same = exact.cost_matrix(lambda a, b: (a - b).square().sum(1), x, y)
    assert torch.allclose(same, exact.cost_matrix(costs.squared_euclidean, x, y))


def test_far_from_the_origin_no_digits_are_lost():
    x, y = points(0, 2), points(1, 2)
    near, far = (exact.cost_matrix(costs.squared_euclidean, x + b, y + b) for b in (0, 1e6))
    assert torch.allclose(near, far, rtol=1e-6, atol=1e-8)


def test_both_solvers_of_assignments_agree():
    xs = (points(0, 2), points(1, 2), points(2, 2))
    cost = costs.sum_over_pairs(costs.euclidean)
    first, second = (cost(*exact.matched(cost, xs, assign=assign)).mean() for assign in (None, exact.by_pot))
    assert float(first) == pytest.approx(float(second))


def test_sinkhorn_of_two_marginals_is_that_of_many():
    x, y = points(0, 2), points(1, 2)[:40] + 1
    many = exact.multimarginal_sinkhorn(costs.squared_euclidean, (x, y), epsilon=0.5)
    assert many == pytest.approx(exact.sinkhorn(costs.squared_euclidean, x, y, epsilon=0.5), rel=1e-4)


def test_sinkhorn_of_three_marginals_nears_the_least_cost():
    """In one dimension that of sorting; with much entropy that of independent samples."""
    xs = tuple(x[:20] for x in (points(0), 2 * points(1) + 1, points(2) - 3))
    cost = costs.sum_over_pairs(costs.squared_euclidean)
    best = float(cost(*(x.sort(0).values for x in xs)).mean())
    assert exact.multimarginal_sinkhorn(cost, xs, epsilon=0.05) == pytest.approx(best, rel=0.01)
    alone = sum(
        float(exact.cost_matrix(costs.squared_euclidean, xs[i], xs[j]).mean()) for i in range(3) for j in range(i)
    )
    assert exact.multimarginal_sinkhorn(cost, xs, epsilon=1e5) == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["plain", "in logarithms"])
def test_sinkhorn_lies_between_exact_transport_and_independence(scale, dtype):
    """A small ε gives nearly the exact cost, a large one that of independent samples; far apart, nothing underflows."""
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randn(60, 2, generator=rng).to(dtype) for _ in range(2))
    y = scale * (y + 3)
    least = exact.emd(costs.euclidean, x, y)
    independent = float(torch.cdist(x, y).mean())
    near, far = (
        exact.sinkhorn(costs.euclidean, x, y, epsilon=part * least) for part in (1e-3 if scale > 1 else 0.01, 100)
    )
    assert least * (1 - 1e-6) <= near <= least * 1.02
    assert far == pytest.approx(independent, rel=1e-2)
