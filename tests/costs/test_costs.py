"""Costs against their formulas, and the Lipschitz constants they state."""

import math

import pytest
import torch

from torchspot import costs
from torchspot.costs import from_spec, known_lipschitz, to_spec
from torchspot.errors import InvalidArgument

PAIRS = [
    costs.euclidean,
    costs.squared_euclidean,
    costs.cosine,
    costs.p_norm(1),
    costs.p_norm(1.5),
    costs.p_norm(math.inf),
]
ALL = [
    *PAIRS,
    costs.sum_over_pairs(costs.squared_euclidean),
    costs.sum_over_pairs(costs.p_norm(1)),
    costs.barycentric(),
    costs.barycentric([3, 1]),
]


@pytest.fixture
def points() -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    return tuple(torch.randn(64, 5, generator=rng, dtype=torch.float64) + 1 for _ in range(2))


@pytest.mark.parametrize("cost", ALL, ids=str)
def test_every_cost_gives_one_differentiable_number_a_row(cost, points):
    xs = [x.requires_grad_() for x in points]
    values = cost(*xs)
    assert values.shape == (64,)
    for gradient in torch.autograd.grad(values.sum(), xs):
        assert torch.isfinite(gradient).all()
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize("cost", ALL, ids=str)
def test_every_cost_survives_a_file(cost, points):
    assert torch.equal(from_spec(to_spec(cost))(*points), cost(*points))


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, math.inf])
def test_p_norm_is_the_formula(p, points):
    x, y = points
    apart = (x - y).abs()
    expected = apart.amax(1) if p == math.inf else (apart**p).sum(1) ** (1 / p)
    assert torch.allclose(costs.p_norm(p)(x, y), expected)


def test_squared_and_cosine_are_their_formulas(points):
    x, y = points
    assert torch.allclose(costs.squared_euclidean(x, y), costs.euclidean(x, y) ** 2)
    angles = torch.stack([a @ b / (a.norm() * b.norm()) for a, b in zip(x, y, strict=True)])
    assert torch.allclose(costs.cosine(x, y), 1 - angles)


@pytest.mark.parametrize("p", [1, 1.5, 2, 4])
def test_stated_lipschitz_constant_bounds_the_gradient_and_is_reached(p):
    rng = torch.Generator().manual_seed(1)
    steep = 0.0
    for dim in (1, 3, 7):
        x = torch.randn(4096, dim, generator=rng).sign().double().requires_grad_()
        gradient = torch.autograd.grad(costs.p_norm(p)(x, torch.zeros_like(x)).sum(), x)[0].norm(dim=1)
        bound = costs.p_norm(p).lipschitz(dim)
        assert gradient.max() <= bound * (1 + 1e-9)
        steep = max(steep, float(gradient.max()) / bound)
    assert steep > 0.99


def test_sum_over_pairs_is_steeper_by_the_other_marginals(points):
    x, y = points
    lifted = costs.sum_over_pairs(costs.euclidean)
    assert torch.allclose(lifted(x, y, x), 2 * costs.euclidean(x, y))
    assert known_lipschitz(lifted, (5,), 4) == 3
    assert known_lipschitz(costs.sum_over_pairs(costs.squared_euclidean), (5,), 4) is None


def test_barycentric_is_the_weighted_distance_to_the_mean_and_a_sum_over_pairs(points):
    x, y = points
    w = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    xs = torch.stack((x, y, x * y))
    mean = (w[:, None, None] * xs).sum(0)
    cost = costs.barycentric([5, 3, 2])
    assert torch.allclose(cost(*xs), (w[:, None] * (xs - mean).square().sum(2)).sum(0))
    pairs = costs.pairs_of(cost, 3)
    both = [(i, j) for i in range(3) for j in range(i)]
    summed = sum(pairs.weights[i] * pairs.weights[j] * pairs.pair(xs[i], xs[j]) for i, j in both)
    assert torch.allclose(cost(*xs), pairs.scale * summed)
    equal = costs.sum_over_pairs(costs.squared_euclidean)
    assert torch.allclose(9 * costs.barycentric()(*xs), equal(*xs))
    pairs = costs.pairs_of(equal, 3)
    assert pairs.scale * pairs.weights[0] * pairs.weights[1] == pytest.approx(1)


def test_weights_of_a_barycenter_are_those_of_squared_costs():
    assert costs.barycenter_weights(costs.barycentric([2, 1, 1]), 3) == (0.5, 0.25, 0.25)
    assert costs.barycenter_weights(costs.sum_over_pairs(costs.squared_euclidean), 4) == (0.25,) * 4
    assert costs.barycenter_weights(costs.squared_euclidean, 2) == (0.5, 0.5)
    assert costs.barycenter_weights(costs.sum_over_pairs(costs.euclidean), 3) is None
    assert costs.barycenter_weights(lambda x, y, z: x[:, 0], 3) is None


def test_a_cost_of_the_users_own_may_state_its_constant():
    class Capped:
        def __call__(self, x, y):
            return (x - y).norm(dim=1).clamp(max=1)

        def lipschitz(self, dim):
            return 1.0

    assert known_lipschitz(Capped(), (3,), 2) == 1
    assert known_lipschitz(lambda x, y: (x - y).norm(dim=1), (3,), 2) is None
    assert to_spec(Capped()) is None


def test_errors_name_the_fix(points):
    x, y = points
    with pytest.raises(InvalidArgument, match=r"sum_over_pairs\(costs.euclidean\)"):
        costs.euclidean(x, y, x)
    with pytest.raises(InvalidArgument, match=r"shapes \(5,\) and \(3,\)"):
        costs.squared_euclidean(x, y[:, :3])
    with pytest.raises(InvalidArgument, match="p >= 1"):
        costs.p_norm(0.5)
    with pytest.raises(InvalidArgument, match="2 weights and got 3 marginals"):
        costs.barycentric([1, 1])(x, y, x)
    with pytest.raises(InvalidArgument, match=r"shapes \(5,\), \(3,\)"):
        costs.barycentric()(x, y[:, :3])
    for bad in ([1, 0], [1, -1], [1, math.nan], [1]):
        with pytest.raises(InvalidArgument, match="one number above 0"):
            costs.barycentric(bad)
    with pytest.raises(KeyError, match="no library cost"):
        from_spec({"name": "os.system"})
