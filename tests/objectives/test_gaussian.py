"""The affine plan of Gaussians against closed forms."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from problems import multi_bures, three_gaussians
from torchspot.objectives.gaussian import AffinePlan, GaussianPlan, barycenter_of, barycentric_maps


def sheared(n, dim, seed):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(n, dim)) @ rng.normal(size=(dim, dim)))


@pytest.mark.parametrize("dim", [1, 2, 7])
def test_two_gaussians_cost_their_bures_distance(dim):
    xs = [x - x.mean(0) for x in (sheared(500, dim, 0), sheared(500, dim, 1))]
    plan = AffinePlan.between(xs)
    a, b = (x.mT.numpy() @ x.numpy() / len(x) for x in xs)
    for matrix, covariance in zip(plan.matrices, (a, b), strict=True):
        assert np.allclose(matrix @ matrix.mT, covariance, rtol=1e-4, atol=1e-4 * covariance.max())
    root = sqrtm(a)
    bures = np.trace(a + b - 2 * np.real(sqrtm(root @ b @ root)))
    assert float((plan.matrices[1] - plan.matrices[0]).square().sum()) == pytest.approx(bures, rel=1e-3)


def test_partners_are_those_of_the_monge_map():
    """The map from the first marginal to the second is symmetric and positive: the gradient of a convex function."""
    xs = [x - x.mean(0) for x in (sheared(500, 3, 2), sheared(500, 3, 3))]
    plan = AffinePlan.between(xs)
    same, moved = plan.partners(xs[0])
    assert torch.allclose(same, xs[0])
    forth = torch.linalg.lstsq(xs[0], moved).solution
    assert torch.allclose(forth, forth.mT, atol=1e-8)
    assert torch.linalg.eigvalsh(forth).min() > 0


def test_three_gaussians_cost_what_the_fixed_point_says():
    xs = [torch.from_numpy(x) for x in three_gaussians(2000).xs]
    centred = [x - x.mean(0) for x in xs]
    matrices = AffinePlan.between(centred).matrices
    cost = sum(float((a - b).square().sum()) for i, a in enumerate(matrices) for b in matrices[i + 1 :])
    covariances = [(x.mT @ x / len(x)).numpy() for x in centred]
    assert cost == pytest.approx(multi_bures([np.zeros(2)] * 3, covariances), rel=1e-4)


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.7, 0.3), (0.2, 0.5, 0.3)])
def test_maps_from_the_weighted_barycenter_average_to_the_identity(weights):
    covariances = [x.mT @ x / len(x) for x in (sheared(500, 3, seed) for seed in range(len(weights)))]
    maps = barycentric_maps(covariances, weights)
    s = barycenter_of(covariances, weights)
    for t, c in zip(maps, covariances, strict=True):
        assert torch.allclose(t @ s @ t, c, rtol=1e-5, atol=1e-6)
    mean = sum(w * t for w, t in zip(weights, maps, strict=True))
    assert torch.allclose(mean, torch.eye(3, dtype=mean.dtype), atol=1e-6)


def test_maps_from_a_marginal_lead_to_the_partners_and_thin_ones_have_none():
    xs = [x - x.mean(0) for x in (sheared(500, 3, seed) for seed in range(3))]
    plan = AffinePlan.between(xs)
    to_first, to_third = plan.maps_from(1)
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second, third = plan([z] * 3)
    assert torch.allclose(second @ to_first.mT, first)
    assert torch.allclose(second @ to_third.mT, third)
    flat = xs[0] * torch.tensor([1, 1, 1e-4])
    assert AffinePlan.between([flat, xs[1]]).maps_from(0, thin=1e-3) is None
    assert AffinePlan.between([xs[1], flat]).maps_from(0, thin=1e-3) is not None


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("dim", [1, 3])
def test_the_entropic_plan_of_gaussians_is_optimal(dim, epsilon):
    """Its marginals are given, and the off-diagonal block of the precision is −(2/ε) I: log p = f(x) + g(y) − c/ε."""
    a, b = (x.mT @ x / len(x) for x in (sheared(500, dim, 4), sheared(500, dim, 5)))
    root = GaussianPlan.entropic(a, b, epsilon).root
    joint = root @ root.mT
    assert torch.allclose(joint[:dim, :dim], a, atol=1e-4)
    assert torch.allclose(joint[dim:, dim:], b, atol=1e-4)
    precision = torch.linalg.inv(joint)
    assert torch.allclose(precision[:dim, dim:], -2 / epsilon * torch.eye(dim, dtype=a.dtype), atol=2e-3 / epsilon)
    assert (root.diagonal() > 0).all()
    assert torch.equal(root, root.tril())


def test_a_gaussian_plan_samples_and_has_the_entropy_of_its_law():
    plan = GaussianPlan.independent([torch.tensor([[4.0]]), torch.tensor([[1.0, 0.5], [0.5, 2.0]])])
    law = torch.distributions.MultivariateNormal(torch.zeros(3), scale_tril=plan.root)
    assert plan.entropy == pytest.approx(float(law.entropy()), rel=1e-6)
    x, y = plan.sample(torch.randn(50_000, 3, generator=torch.Generator().manual_seed(0)), [1, 2])
    assert float(x.var()) == pytest.approx(4, rel=0.03)
    assert torch.allclose(torch.cov(y.mT), torch.tensor([[1.0, 0.5], [0.5, 2.0]]), atol=0.05)
