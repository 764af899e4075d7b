"""The entropic losses against the formula, and η from the slopes."""

import math

import pytest
import torch

from torchspot import costs
from torchspot.errors import InvalidArgument
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import InDataUnits, Shapes, Units
from torchspot.networks.ode import Probes, flow
from torchspot.objectives import Transport
from torchspot.objectives.entropic import Entropic, entropic_weights


def game(epsilon, depth=2):
    rng = torch.Generator().manual_seed(0)
    shapes = Shapes(3, ((1,), (2,)))
    network = flow(8, depth)(shapes, rng)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=rng)
    units = Units((torch.randn(1, generator=rng), torch.randn(2, generator=rng)), 1.7)
    transport = Transport(
        InDataUnits(network, units),
        mlp_critics(8, 2)(shapes, rng),
        lambda x, y: (x - y).square().sum(1),
        torch.tensor([2.0, 3.0]),
        (0, 1),
    )
    return Entropic(transport, epsilon), torch.randn(40, 3, generator=rng)


def test_the_loss_is_that_of_transport_plus_epsilon_times_log_p():
    plain, z = game(0.5)
    more, _ = game(1.5)
    log_p = plain.generator.generator.with_log_density(z)[1].mean()
    unit = plain.transport.unit
    assert torch.allclose(
        unit * plain.generator_loss((z,)), plain.transport.price(plain.generator.standardised(z)) + 0.5 * log_p
    )
    assert torch.allclose(unit * (more.generator_loss((z,)) - plain.generator_loss((z,))), log_p, atol=1e-5)


@torch.no_grad()
def test_what_is_judged_is_in_data_units():
    objective, z = game(0.5)
    real = tuple(torch.randn(40, size, generator=torch.Generator().manual_seed(3)) for size in (1, 2))
    us, (cost, value, entropy) = objective.judged(objective.generator, (z,), real)
    _, log_u = objective.generator.generator.with_log_density(z)
    assert float(entropy) == pytest.approx(float(-(log_u.mean() - 3 * math.log(1.7))), rel=1e-5)
    assert float(value) == pytest.approx(float(cost - 0.5 * entropy + objective.transport.gap(us, real)), rel=1e-5)
    assert objective.names == ("cost", "objective", "entropy")


@pytest.mark.parametrize("depth", [2, 3])
def test_every_parameter_gets_a_gradient(depth):
    objective, z = game(0.5, depth)
    loss = objective.generator_loss((z, Probes(3).draw(len(z), torch.Generator().manual_seed(1))))
    gradients = torch.autograd.grad(loss, list(objective.generator.parameters()))
    for (name, _), gradient in zip(objective.generator.named_parameters(), gradients, strict=True):
        assert gradient.abs().sum() > 1e-7, name


def test_weights_are_slopes_of_cost_and_of_a_gaussian():
    """N(0, 1) and N(2, .5), independent: q‖2(x − y)‖ with x − y ~ N(2, 1.5), and q|x|/σ² = 3.29/σ."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(200_000, 1, generator=rng), math.sqrt(0.5) * torch.randn(200_000, 1, generator=rng) + 2
    found = entropic_weights(costs.squared_euclidean, (x, y), coupled=(x, y), epsilon=2.0)
    steep = 2 * (2 + 3.09 * math.sqrt(1.5))
    assert found.lipschitz[0] == pytest.approx(steep + 2 * 3.29, rel=0.03)
    assert found.lipschitz[1] == pytest.approx(steep + 2 * 3.29 / math.sqrt(0.5), rel=0.03)
    assert found.eta == pytest.approx(tuple(1.5 * value for value in found.lipschitz))


def test_a_cost_without_a_usable_gradient_asks_for_the_weights():
    xs = torch.randn(100, 1), torch.randn(100, 1)
    with pytest.raises(InvalidArgument, match=r"EntropicSPOT\(marginal_weight=…\)"):
        entropic_weights(lambda x, y: (0 * x).sum(1).sqrt(), xs, coupled=xs, epsilon=1.0)
