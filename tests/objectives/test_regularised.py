"""The regularised dual against Sinkhorn, and what its parts claim."""

import ot
import pytest
import torch
from torch import nn

from torchspot import costs
from torchspot.objectives.regularised import Entropy, Potentials, Quadratic, RegularisedDual


class Table(nn.Module):
    """A function known at the rows of a sample, in their order."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def forward(self, x):
        return self.values[:, None]


@pytest.mark.parametrize("regularisation", [Entropy(), Quadratic()])
def test_the_density_is_minus_the_derivative_of_the_penalty(regularisation):
    excess = torch.linspace(-2, 2, 41, dtype=torch.float64, requires_grad=True)
    epsilon = torch.tensor(0.7, dtype=torch.float64)
    (slope,) = torch.autograd.grad(regularisation.penalty(excess, epsilon).sum(), excess)
    assert torch.allclose(regularisation.density(excess, epsilon), -slope)


def test_no_pair_makes_the_exponential_overflow():
    excess = torch.tensor([1e4], requires_grad=True)
    value = Entropy().penalty(excess, torch.tensor(0.01))
    (slope,) = torch.autograd.grad(value.sum(), excess)
    assert torch.isfinite(value).all()
    assert torch.isfinite(slope).all()


def test_at_the_potentials_of_sinkhorn_the_dual_is_the_primal():
    """E hc + ε E h(log h − 1), computed from Sinkhorn's plan, is what the dual gives at Sinkhorn's potentials."""
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randn(40, 2, generator=rng, dtype=torch.float64) + shift for shift in (0, 2))
    n, epsilon = 40, 0.5
    matrix = torch.cdist(x, y)
    uniform = torch.full((n,), 1 / n, dtype=torch.float64)
    plan, log = ot.bregman.sinkhorn_log(uniform, uniform, matrix, epsilon, numItermax=10_000, stopThr=1e-12, log=True)
    h = plan * n * n
    u, v = (epsilon * (log[name] + torch.log(torch.tensor(float(n)))) for name in ("log_u", "log_v"))
    dual = RegularisedDual(Potentials(Table(u), Table(v), epsilon), nn.Identity(), costs.euclidean, Entropy())
    primal = (h * (matrix + epsilon * (h.log() - 1))).mean()
    assert torch.allclose(dual.density(x, y), h, rtol=1e-4)
    assert dual.value(x, y) == pytest.approx(float(primal), rel=1e-6)
    assert dual.plan_cost(x, y) == pytest.approx(float((plan * matrix).sum()), rel=1e-5)


def test_the_map_loss_is_least_at_the_barycenter():
    rng = torch.Generator().manual_seed(1)
    x, y = torch.randn(5, 2, generator=rng), torch.randn(6, 2, generator=rng)
    potentials = Potentials(Table(torch.rand(5, generator=rng)), Table(torch.rand(6, generator=rng) + 2), 1.0)
    still = RegularisedDual(potentials, nn.Identity(), costs.squared_euclidean, Quadratic())
    h = still.density(x, y)
    kept = h.sum(1) > 0
    barycenter = (h @ y)[kept] / h.sum(1, keepdim=True)[kept]
    target = x.clone()
    target[kept] = barycenter
    target.requires_grad_()
    dual = RegularisedDual(potentials, lambda _: target, costs.squared_euclidean, Quadratic())
    (slope,) = torch.autograd.grad(dual.map_loss((x, y)), target)
    assert kept.any()
    assert slope.abs().max() < 1e-6
    assert dual.map_loss((x, y)) < still.map_loss((x, y))
