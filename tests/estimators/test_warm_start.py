"""Where a fit starts: at the affine plan of Gaussians where that is good, and nowhere else."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import torchspot
from problems import three_gaussians
from torchspot import SPOT, costs, engines, latents, presets
from torchspot.errors import InvalidArgument
from torchspot.networks.generators import AroundAffine, SeparateGenerator

SHEAR = np.array([[1.5, 0.8], [0.0, 0.6]])


def sheared(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=(n, 2)) @ SHEAR.T + 1


def started(*xs, **options):
    return SPOT(steps=1, **options).fit(*xs)


def kind(spot):
    return type(spot.plan_.generator.generator)


def test_untrained_it_has_the_moments_of_the_data_and_the_bures_cost():
    x, y = sheared(20_000)
    spot = started(x, y, cost=costs.squared_euclidean)
    for ours, data in zip(spot.sample(100_000, seed=0), (x, y), strict=True):
        assert np.allclose(ours.mean(0), data.mean(0), atol=0.05)
        assert np.allclose(np.cov(ours.T), np.cov(data.T), atol=0.1)
    singular = np.linalg.svd(SHEAR, compute_uv=False)  # between I and S Sᵀ: Bures² = Σ (1 − σ)²
    assert spot.history_[0]["cost"] == pytest.approx(2 + np.sum((1 - singular) ** 2), rel=0.05)


def test_three_marginals_start_at_the_plan_of_their_barycenter():
    problem = three_gaussians(20_000)
    spot = started(*problem.xs, cost=costs.sum_over_pairs(costs.squared_euclidean))
    assert spot.history_[0]["cost"] == pytest.approx(problem.value, rel=0.05)


def test_it_is_left_out_where_it_does_not_fit():
    x, y = sheared(1000)
    reflected = lambda x, y: (x + y).square().sum(1)  # noqa: E731
    assert kind(started(x, y)) is AroundAffine
    assert kind(started(x, y, cost=reflected)) is SeparateGenerator
    assert kind(started(x, y, latent=latents.uniform(2))) is SeparateGenerator
    assert kind(started(x, y, latent=latents.normal(1))) is SeparateGenerator
    assert kind(started(x, y, preset=replace(presets.default(), warm_start=False))) is SeparateGenerator
    first = lambda x, y: (x[:, :1] - y).abs().sum(1)  # noqa: E731
    assert kind(started(x, y[:, :1], cost=first)) is SeparateGenerator


def test_a_larger_latent_and_constant_columns_are_no_hindrance():
    x, y = sheared(1000)
    flat = [np.column_stack([a, np.full(len(a), 3.0)]) for a in (x, y)]
    spot = started(*flat, latent=latents.normal(5))
    assert kind(spot) is AroundAffine
    ours = spot.sample(1000, seed=0)[1]
    assert torch.isfinite(ours).all()
    assert (ours[:, 2] - 3).abs().max() < 0.1


def test_its_plan_is_saved_and_loaded(tmp_path):
    spot = SPOT(steps=20).fit(*sheared(1000))
    loaded = torchspot.load(spot.plan_.save(tmp_path / "plan.safetensors"))
    for ours, theirs in zip(spot.sample(50, seed=3), loaded.sample(50, seed=3), strict=True):
        assert torch.equal(ours, theirs)


def test_laws_with_equal_moments_are_still_told_apart():
    """The affine plan of N(0, I) and ±1 in one coordinate moves nothing; its slope, 0, must not become η's.

    The optimal plan moves a normal number s to its sign, by ||s| − 1|, of which the 99 % quantile is 1.58.
    """
    for dim in (1, 16):
        x, y = (np.random.default_rng(seed).normal(size=(5000, dim)) for seed in (0, 1))
        y[:, 0] = np.sign(y[:, 0])
        spot = started(x, y, cost=costs.squared_euclidean, batch_size=16)
        assert spot.history_[0]["cost"] < 0.1
        assert min(spot.marginal_weights_.eta) > 2 * 1.58 * 1.5


def test_an_engine_in_float64():
    spot = started(*sheared(1000), engine=engines.Eager(dtype=torch.float64))
    assert spot.sample(3)[0].dtype == torch.float64


def test_rates_fall_with_the_width():
    preset = presets.default(1e-3)
    assert preset.rates(8) == preset.rates(64) == (1e-3, 5e-3)  # critics keep the rate of the default
    assert preset.rates(256) == pytest.approx((5e-4, 2.5e-3))
    assert presets.paper(1e-4).rates(1024) == (1e-4, 1e-4)


def test_settings_that_do_not_go_together():
    with pytest.raises(InvalidArgument, match="warm_start needs standardise=True"):
        replace(presets.default(), standardise=False)
    with pytest.raises(InvalidArgument, match="rise must be at least 0 and below 1"):
        replace(presets.default(), rise=1.0)


def test_as_it_is_the_data_is_not_standardised():
    x, y = (a + 100 for a in sheared(1000))
    units = started(x, y, preset=replace(presets.default(), standardise=False, warm_start=False)).plan_.generator.units
    assert float(units.scale) == 1
    assert all(float(mean.abs().max()) == 0 for mean in units.means)
