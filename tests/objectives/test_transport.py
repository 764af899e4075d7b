"""The two losses against the formula, and η from the cost."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from torchspot import costs
from torchspot.errors import InvalidArgument
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import InDataUnits, Shapes, Units, separate
from torchspot.objectives import Transport, marginal_weights


def game(cost=costs.squared_euclidean, m: int = 2) -> tuple[Transport, tuple[torch.Tensor, ...]]:
    rng = torch.Generator().manual_seed(0)
    shapes = Shapes(2, ((2,),) * m)
    units = Units(tuple(torch.randn(2, generator=rng) for _ in range(m)), 1.7)
    objective = Transport(
        InDataUnits(separate(8, 2)(shapes, rng), units),
        mlp_critics(8, 2)(shapes, rng),
        cost,
        torch.tensor([2.0 + k for k in range(m)]),
        tuple(range(m)),
    )
    return objective, tuple(torch.randn(50, 2, generator=rng) for _ in range(m + 1))


@pytest.mark.parametrize("m", [2, 3])
def test_the_losses_are_the_two_sides_of_the_objective(m):
    objective, batch = game(costs.sum_over_pairs(costs.squared_euclidean), m)
    z, *xs = batch
    generated = objective.generator(z)
    scale, standardise = objective.generator.units.scale, objective.generator.units.from_data
    fake, real = ([scale * v for v in objective.critics(standardise(s))] for s in (generated, tuple(xs)))
    gaps = [f.mean() - r.mean() for f, r in zip(fake, real, strict=True)]
    assert torch.allclose(scale * objective.critic_loss(batch), -sum(gaps), atol=1e-5)
    pull = sum(eta * f.mean() for eta, f in zip(objective.eta, fake, strict=True))
    cost = objective.cost(*generated).mean()
    unit = scale * objective.eta.sum()
    assert torch.allclose(unit * objective.generator_loss((z,)), cost + pull, atol=1e-5)
    expected = sum(eta * gap for eta, gap in zip(objective.eta, gaps, strict=True))
    assert torch.allclose(objective.gap(standardise(generated), standardise(tuple(xs))), expected, atol=1e-5)


def test_a_zoomed_critic_is_the_network_at_another_scale():
    """λ_k(u) = r_k net_k(u / r_k): in what the generator pays, in the gap and, up to a factor, in the critics' loss."""
    objective, (z, *xs) = game()
    zoomed = replace(objective, zoom=(0.25, 4.0))
    fake = objective.generator.standardised(z)
    real = objective.generator.units.from_data(tuple(xs))
    scale = objective.generator.units.scale

    def values(us):
        seen = zoomed.critics(tuple(u / r for u, r in zip(us, zoomed.zoom, strict=True)))
        return [r * v.mean() for v, r in zip(seen, zoomed.zoom, strict=True)]

    on_fake, on_real = values(fake), values(real)
    pull = sum(eta * v for eta, v in zip(objective.eta, on_fake, strict=True))
    cost = objective.cost(*objective.generator.units.to_data(fake)).mean()
    assert torch.allclose(zoomed.price(fake), cost + scale * pull, atol=1e-5)
    apart = [eta * (f - r) for eta, f, r in zip(objective.eta, on_fake, on_real, strict=True)]
    assert torch.allclose(zoomed.gap(fake, real), scale * sum(apart), atol=1e-5)
    nets = sum((r - f) / z for r, f, z in zip(on_real, on_fake, zoomed.zoom, strict=True))
    assert torch.allclose(zoomed.critic_loss((z, *xs)), nets, atol=1e-5)
    assert not torch.allclose(zoomed.price(fake), objective.price(fake), atol=1e-4)


def test_losses_are_deterministic_and_each_player_gets_a_gradient():
    objective, batch = game()
    assert torch.equal(objective.critic_loss(batch), objective.critic_loss(batch))
    for loss, module in (
        (objective.critic_loss(batch), objective.critics),
        (objective.generator_loss(batch[:1]), objective.generator),
    ):
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        for (name, _), gradient in zip(module.named_parameters(), gradients, strict=True):
            assert gradient.abs().sum() > 1e-6, name


def normal(n: int, mean: float, seed: int) -> torch.Tensor:
    return torch.randn(n, 2, generator=torch.Generator().manual_seed(seed)) + torch.tensor([mean, 0.0])


def test_a_known_constant_is_used():
    weights = marginal_weights(costs.p_norm(1), (normal(100, 0, 0), normal(100, 5, 1)))
    assert weights.source == "known"
    assert weights.eta == pytest.approx((3 * 2**0.5,) * 2)
    three = marginal_weights(costs.sum_over_pairs(costs.euclidean), tuple(normal(100, 0, k) for k in range(3)))
    assert three.lipschitz == (2, 2, 2)


def test_an_unknown_constant_is_estimated_over_an_optimal_matching():
    """Squared cost between Gaussians 5 apart: the optimal displacement is 5 everywhere, so ‖∇c‖ is near 10."""
    weights = marginal_weights(costs.squared_euclidean, (normal(2000, 0, 0), normal(2000, 5, 1)))
    assert weights.source == "estimated"
    assert weights.lipschitz == pytest.approx((10, 10), rel=0.2)
    assert weights.eta == pytest.approx(tuple(3 * value for value in weights.lipschitz))
    apart = np.quantile((2 * (normal(2000, 0, 0) - normal(2000, 5, 1))).norm(dim=1), 0.99)
    assert weights.lipschitz[0] < 0.9 * apart


@pytest.mark.parametrize("cost", [lambda x, y: 0 * x.sum(1), lambda x, y: (0 * x).sum(1).sqrt()], ids=["flat", "nan"])
def test_a_cost_without_a_usable_gradient_asks_for_the_weight(cost):
    with pytest.raises(InvalidArgument, match=r"marginal_weight=…"):
        marginal_weights(cost, (normal(50, 0, 0), normal(50, 5, 1)))


def test_more_marginals_are_estimated_over_matched_tuples():
    """Equal Gaussians 3 apart: at the optimum ∇_i is 2 Σ_j (x_i − x_j), (−18, 0), (0, 0) and (18, 0) everywhere."""
    xs = (normal(500, 0, 0), normal(500, 3, 1), normal(500, 6, 2))
    weights = marginal_weights(costs.sum_over_pairs(costs.squared_euclidean), xs)
    assert weights.lipschitz[0] == pytest.approx(18, rel=0.15)
    assert weights.lipschitz[2] == pytest.approx(18, rel=0.15)
    assert weights.lipschitz[1] < 6


def test_in_high_dimension_a_plan_near_the_optimal_one_gives_the_smaller_constant():
    """A shift of 5 in 64 dimensions has ‖∇c‖ = 10; 1024 matched points are further apart than the shift."""
    x, y = (torch.randn(2000, 64, generator=torch.Generator().manual_seed(k)) for k in range(2))
    y[:, 0] += 5
    shifted = x.clone()
    shifted[:, 0] += 5
    matched_only = marginal_weights(costs.squared_euclidean, (x, y)).lipschitz
    assert min(matched_only) > 15
    assert marginal_weights(costs.squared_euclidean, (x, y), plan=(x, shifted)).lipschitz == pytest.approx((10, 10))
    far = (x, shifted * 100)
    assert marginal_weights(costs.squared_euclidean, (x, y), plan=far).lipschitz == matched_only
