"""The truths of Figure 4 against the numbers that are known of them."""

import numpy as np
import pytest

from torchspot_paper.densities import gaussian_pair, line_pairs
from torchspot_paper.fig4_density import _monotone

KNOWN = {
    ("gaussians", 0.1): (4.1349, 0.965),
    ("gaussians", 1.0): (4.5, 0.707),
    ("gaussians", 5.0): (5.1277, 0.263),
    ("mixtures", 0.1): (0.9675, 0.9685),
    ("mixtures", 1.0): (1.3322, 0.8983),
    ("mixtures", 5.0): (2.5911, 0.6560),
}


@pytest.mark.parametrize("name", KNOWN, ids=str)
def test_cost_correlation_mass_and_marginals(name):
    problem, epsilon = name
    pair = line_pairs()[problem]
    truth = pair.truth(epsilon, nodes=150)
    cost, correlation = KNOWN[name]
    assert truth.cost == pytest.approx(cost, rel=1e-3)
    assert truth.correlation == pytest.approx(correlation, abs=1e-3)
    assert truth.mass == pytest.approx(1, abs=1e-4)
    assert np.allclose(truth.density.sum(1) * (truth.y[1] - truth.y[0]), pair.first.density(truth.x), atol=1e-4)
    assert truth.kl(truth) == pytest.approx(0, abs=1e-12)
    assert truth.l1(truth) == 0


def test_sinkhorn_finds_the_closed_form_between_gaussians():
    """The same pair, once as one Gaussian and once as a mixture of two equal ones."""
    gaussians = line_pairs()["gaussians"]
    twice = type(gaussians)(type(gaussians.first)((0.0, 0.0), 1.0), type(gaussians.second)((2.0, 2.0), 0.5))
    closed, found = gaussians.truth(1.0, nodes=200), twice.truth(1.0, nodes=200)
    assert closed.kl(found) == pytest.approx(0, abs=1e-5)
    assert closed.l1(found) < 1e-3


@pytest.mark.parametrize(("name", "value"), [("gaussians", 4.0858), ("mixtures", 0.9187)])
def test_the_map_without_entropy_has_the_known_cost(name, value):
    pair = line_pairs()[name]
    nodes = pair.first.nodes()
    weights = pair.first.density(nodes) / pair.first.density(nodes).sum()
    assert float(weights @ (nodes - _monotone(pair)(nodes)) ** 2) == pytest.approx(value, rel=2e-3)


def test_samples_are_those_of_the_densities():
    for pair in line_pairs().values():
        for line, x in zip((pair.first, pair.second), pair.sample(200_000, 0), strict=True):
            heights, edges = np.histogram(x, bins=40, density=True)
            assert np.abs(line.density((edges[1:] + edges[:-1]) / 2) - heights).max() < 0.02


def test_gaussians_of_several_dimensions():
    """The plan keeps its marginals, and its samples cost what it says."""
    pair = gaussian_pair(4)
    law = pair.plan(1.0)
    drawn = law.rvs(size=200_000, random_state=0)
    assert np.square(drawn[:, :4] - drawn[:, 4:]).sum(1).mean() == pytest.approx(pair.cost(1.0), rel=0.01)
    x, y = pair.sample(100_000, 0)
    assert np.allclose(np.cov(x.T), law.cov[:4, :4], atol=0.05)
    assert np.allclose(np.cov(y.T), law.cov[4:, 4:], atol=0.05)
    assert np.allclose(y.mean(0), law.mean[4:], atol=0.03)
