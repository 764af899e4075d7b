"""DensityPlan: densities in data units, quadrature, files and clear errors."""

import math

import numpy as np
import pytest
import torch
from torch.func import jacrev, vmap

import torchspot
from torchspot import costs, latents
from torchspot.errors import InvalidArgument
from torchspot.networks.generators import InDataUnits, Shapes, Units
from torchspot.networks.ode import flow
from torchspot.networks.solvers import RK4
from torchspot.plans import DensityPlan


def plan(*sizes, scale=3.0, wild=0.5, depth=2):
    """A flow of made-up weights around correlated Gaussians, far from the origin."""
    dim, rng = sum(sizes), torch.Generator().manual_seed(1)
    start = torch.eye(dim)
    start[-1, 0] = 0.8
    network = flow(16, depth, start=start)(Shapes(dim, tuple((size,) for size in sizes)), rng)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=wild, generator=rng)
    units = Units(tuple(torch.full((size,), 10.0 + k) for k, size in enumerate(sizes)), scale)
    return DensityPlan.of_flow(
        InDataUnits(network, units), latents.normal(dim), costs.squared_euclidean, (), {"epsilon": 1.0}
    )


def test_log_density_is_the_change_of_variables_of_samples():
    """By an autograd Jacobian of the generator in data units, in float32 as it samples."""
    made = plan(1, 2)
    z = torch.randn(10, 3, generator=torch.Generator().manual_seed(2))
    xs = made.generator(z)
    jacobians = vmap(jacrev(lambda one: torch.cat([x[0] for x in _fine(made)(one[None])])))(z)
    expected = -0.5 * z.square().sum(1) - 1.5 * math.log(2 * math.pi) - torch.linalg.slogdet(jacobians)[1]
    assert torch.allclose(made.log_density(*xs), expected.double(), atol=1e-4)
    assert torch.allclose(made.inverse(*xs), z.double(), atol=1e-4)


def _fine(made):
    """With steps that autograd can go through row by row."""
    return InDataUnits(made.generator.generator.solved_by(RK4(60)), made.generator.units)


def test_density_integrates_to_one_and_marginals_are_its_integrals():
    made = plan(1, 1)
    x, y = (part.double().numpy() for part in made.sample(20_000, seed=0))
    lines = [np.linspace(part.min() - 5, part.max() + 5, 250) for part in (x, y)]
    points = [part.ravel() for part in np.meshgrid(*lines, indexing="ij")]
    density = made.log_density(*points).exp().numpy().reshape(250, 250)
    steps = [line[1] - line[0] for line in lines]
    assert density.sum() * steps[0] * steps[1] == pytest.approx(1, abs=1e-3)
    for i, (along, step) in enumerate(((1, steps[1]), (0, steps[0]))):
        ours = made.marginal_density(i, lines[i][::25]).numpy()
        assert np.allclose(ours, (density.sum(along) * step)[::25], atol=1e-4)
    histogram, edges = np.histogram(x, bins=20, density=True)
    middles = (edges[1:] + edges[:-1]) / 2
    assert np.abs(made.marginal_density(0, middles).numpy() - histogram).max() < 0.1 * histogram.max()
    assert torch.equal(made.marginal_density(-1, [11.0]), made.marginal_density(1, [11.0]))


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6])
def test_marginals_are_right_far_from_0(offset):
    """A flow at its start: a Gaussian of deviation 3 around the offset."""
    network = flow(8)(Shapes(2, ((1,), (1,))), torch.Generator().manual_seed(0))
    units = Units((torch.tensor([offset], dtype=torch.float64),) * 2, 3.0)
    made = DensityPlan(InDataUnits(network, units), latents.normal(2), costs.squared_euclidean)
    expected = torch.distributions.Normal(0.0, 3.0).log_prob(torch.tensor([0.0, 3.0], dtype=torch.float64)).exp()
    assert torch.allclose(made.marginal_density(0, [offset, offset + 3.0]), expected, rtol=1e-5)


def test_entropy_is_that_of_the_density_on_a_grid():
    made = plan(1, 1)
    lines = [np.linspace(float(part.min()) - 5, float(part.max()) + 5, 200) for part in made.sample(20_000, seed=0)]
    points = [part.ravel() for part in np.meshgrid(*lines, indexing="ij")]
    log_p = made.log_density(*points).numpy()
    cell = math.prod(line[1] - line[0] for line in lines)
    exact = -(np.exp(log_p) * log_p).sum() * cell
    estimate = made.entropy(20_000)
    assert abs(estimate.value - exact) < 4 * estimate.monte_carlo_error
    assert estimate.monte_carlo_error < 0.02


@pytest.mark.parametrize("depth", [2, 3])
def test_hutchinsons_estimate_is_near_the_exact_trace(depth):
    made = plan(3, 3, depth=depth, wild=0.3)
    xs = made.sample(200, seed=0)
    exact, few, many = (made.log_density(*xs, probes=probes) for probes in (None, 1, 400))
    assert float((many - exact).abs().mean()) < 0.3 * float((few - exact).abs().mean())
    assert float((few - exact).abs().mean()) > 0


def test_a_density_plan_survives_a_file(tmp_path):
    made = plan(1, 2)
    again = torchspot.load(made.save(tmp_path))
    assert isinstance(again, DensityPlan)
    xs = made.sample(50, seed=3)
    assert torch.equal(torch.cat(again.sample(50, seed=3), 1), torch.cat(xs, 1))
    assert torch.equal(again.log_density(*xs), made.log_density(*xs))
    assert again.facts == made.facts


def test_points_may_be_lists_arrays_and_tensors():
    made = plan(1, 1)
    x, y = [10.0, 11.0], [11.0, 9.0]
    expected = made.log_density(torch.tensor(x)[:, None], torch.tensor(y)[:, None])
    assert expected.dtype == torch.float64
    assert torch.equal(made.log_density(x, np.array(y)), expected)


BAD = {
    "too few arguments": (([1.0],), "2 marginals, and points of 1"),
    "another length": (([1.0, 2.0], [1.0]), r"\[2, 1\] rows"),
    "another shape": ((np.zeros((2, 3)), [1.0, 2.0]), r"argument 1 must have shape \(rows, 1\), and has \(2, 3\)"),
    "nan": (([1.0], [math.nan]), "row 0 of argument 2 has a number that is not finite"),
    "words": ((["a"], [1.0]), "argument 1 is no array of numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_points_are_named(name):
    points, words = BAD[name]
    with pytest.raises(InvalidArgument, match=words):
        plan(1, 1).log_density(*points)


def test_bad_marginals_are_named():
    with pytest.raises(InvalidArgument, match="n >= 2, and got 1"):
        plan(1, 1).entropy(1)
    with pytest.raises(InvalidArgument, match="marginals 0 to 1, and 2 was asked for"):
        plan(1, 1).marginal_density(2, [0.0])
    with pytest.raises(InvalidArgument, match="3 numbers together, and can do so over at most 2"):
        plan(1, 3).marginal_density(0, [0.0])
