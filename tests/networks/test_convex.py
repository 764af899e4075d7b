"""Convex networks are strongly convex, know their gradient, and bound their conjugate; cones are Lipschitz."""

import pytest
import torch

from torchspot.networks.cones import Cones
from torchspot.networks.convex import InverseMap, StronglyConvex

DIM = 3


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(seed: int, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(200, DIM, generator=rng(seed), dtype=torch.float64)


@pytest.fixture
def phi() -> StronglyConvex:
    start = torch.diag(torch.tensor([0.5, 1.0, 2.0]))
    network = StronglyConvex(start, width=16, rng=rng()).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng(1)))
    return network


def test_the_gradient_is_that_of_the_value(phi):
    x = points(0).requires_grad_()
    value, gradient = phi(x)
    (expected,) = torch.autograd.grad(value.sum(), x)
    assert torch.allclose(gradient, expected, atol=1e-10)


def test_it_is_alpha_strongly_convex(phi):
    x, y = points(1), points(2)
    value, gradient = phi(x)
    tangent = value + (gradient * (y - x)).sum(1) + phi.alpha / 2 * (y - x).square().sum(1)
    assert bool((phi(y)[0] >= tangent - 1e-9).all())


def test_the_bound_of_the_conjugate_is_above_it_and_touches_at_the_gradient(phi):
    y, anywhere = points(3), points(4)
    x = torch.zeros_like(y, requires_grad=True)
    optimizer = torch.optim.LBFGS([x], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure():
        optimizer.zero_grad()
        loss = (phi(x)[0] - (x * y).sum(1)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    conjugate = ((x * y).sum(1) - phi(x)[0]).detach()
    assert bool((phi.conjugate_bound(y, anywhere) >= conjugate - 1e-9).all())
    assert torch.allclose(phi.conjugate_bound(y, x), conjugate, atol=1e-6)


def test_it_starts_near_the_quadratic_and_every_parameter_learns():
    start = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, 0.0], [0.0, 0.0, 0.7]])
    phi = StronglyConvex(start, width=32, rng=rng())
    inverse = InverseMap(torch.linalg.inv(start), width=32, rng=rng())
    x = points(5, 1.0).float()
    gradient = phi(x)[1].detach()
    assert float((gradient - x @ start).norm(dim=1).mean()) < 0.5 * float((x @ start).norm(dim=1).mean())
    loss = phi(x)[0].mean() + phi.conjugate_bound(x, inverse(x)).mean()
    for name, parameter in [*phi.named_parameters(), *inverse.named_parameters()]:
        (g,) = torch.autograd.grad(loss, parameter, retain_graph=True)
        assert float(g.abs().sum()) > 0, name


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_cones_are_lipschitz_for_their_norm_and_reach_slope_one(p):
    cones = Cones(points(6), count=32, p=p, rng=rng()).double()
    x, y = points(7, 20.0), points(8, 20.0)
    cones.requires_grad_(False)
    slopes = (cones(x) - cones(y)).abs() / (x - y).norm(p=p, dim=1)
    assert float(slopes.max()) <= 1 + 1e-9
    tip = cones.tips[:1]
    far = tip + 100 * (points(9)[:1] - tip)
    assert float((cones(far + (far - tip)) - cones(far)) / (far - tip).norm(p=p)) > 0.95
