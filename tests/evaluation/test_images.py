"""Measures of pictures against closed forms and laws made for them."""

import math

import pytest
import torch

from torchspot import costs
from torchspot.errors import InvalidArgument
from torchspot.evaluation import images
from torchspot.evaluation.images import pairing_of


def normal(seed, n, mean, spread):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, len(mean), generator=rng, dtype=torch.float64) * torch.tensor(spread) + torch.tensor(mean)


def test_frechet_distance_of_gaussians():
    """With independent coordinates: Σ (m_a − m_b)² + (s_a − s_b)²."""
    a, b = normal(0, 200_000, [0.0, 1.0, 2.0], [1.0, 2.0, 0.5]), normal(1, 200_000, [1.0, 1.0, 0.0], [1.0, 1.0, 1.0])
    assert images.frechet_distance(a, b) == pytest.approx(1 + 4 + 0 + 1 + 0.25, rel=0.01)
    assert images.frechet_distance(a, a) == pytest.approx(0, abs=1e-9)


def test_frechet_distance_sees_correlations():
    a = normal(0, 100_000, [0.0, 0.0], [1.0, 1.0])
    turned = a @ torch.tensor([[0.8, 0.6], [0.6, 0.8]], dtype=torch.float64)
    exact = 2 + 2 - 2 * (1.4 + 0.2)  # the roots of the second covariance are .8 ± .6 along the diagonals
    assert images.frechet_distance(a, turned) == pytest.approx(exact, abs=0.02)


def test_kernel_distance_is_unbiased_and_sees_differences():
    same = [
        images.kernel_distance(normal(k, 500, [0.0] * 4, [1.0] * 4), normal(k + 50, 500, [0.0] * 4, [1.0] * 4))
        for k in range(20)
    ]
    assert abs(sum(same) / 20) < 0.02
    assert images.kernel_distance(normal(0, 500, [0.5] * 4, [1.0] * 4), normal(1, 500, [0.0] * 4, [1.0] * 4)) > 0.2


def test_precision_and_recall_of_halves():
    real = torch.cat((normal(0, 400, [0.0, 0.0], [0.1, 0.1]), normal(1, 400, [5.0, 0.0], [0.1, 0.1])))
    one_mode = normal(2, 400, [0.0, 0.0], [0.1, 0.1])
    precision, recall = images.precision_recall(real, one_mode)
    assert precision > 0.9
    assert recall == pytest.approx(0.5, abs=0.05)
    half_astray = torch.cat((normal(3, 400, [0.0, 0.0], [0.1, 0.1]), normal(4, 400, [9.0, 9.0], [0.1, 0.1])))
    assert images.precision_recall(real, half_astray)[0] == pytest.approx(0.5, abs=0.05)


def test_pairing_of_what_belongs_together_and_what_does_not():
    rng = torch.Generator().manual_seed(0)
    x, noise = torch.randn(500, 8, generator=rng), torch.randn(500, 8, generator=rng)
    together = pairing_of((x, x + 0.01 * noise), costs.euclidean)
    apart = pairing_of((x, noise), costs.euclidean)
    assert together.ratio < 0.02 and together.deviations > 50
    assert apart.ratio == pytest.approx(1, abs=0.05) and abs(apart.deviations) < 4


def test_label_agreement_counts_equal_classes():
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert images.label_agreement((x, y), (lambda a: a, lambda a: a)) == 0.5
    said = images.labels((x, 5 * y), (lambda a: a, lambda a: a))
    assert said.agree.tolist() == [True, True, False, False]
    assert said.certainty[0].tolist() == pytest.approx([1 / (1 + math.exp(-1))] * 4)
    assert said.certainty[1].min() > 0.99
    with pytest.raises(InvalidArgument, match="2 marginals and 1 classifiers"):
        images.label_agreement((x, y), (lambda a: a,))


def test_colour_spread_is_that_of_the_mean_colour():
    colours = torch.rand(2000, 3, 1, 1, generator=torch.Generator().manual_seed(0))
    assert images.colour_spread(colours.expand(-1, -1, 5, 5)) == pytest.approx((3 / 12) ** 0.5, rel=0.05)
    assert images.colour_spread(torch.full((4, 3, 5, 5), 0.3)) == pytest.approx(0, abs=1e-7)


def test_random_features_are_fixed_and_tell_textures_apart():
    rng = torch.Generator().manual_seed(0)
    smooth = torch.rand(1200, 3, 4, 4, generator=rng).repeat_interleave(4, 2).repeat_interleave(4, 3)
    rough = torch.rand(600, 3, 16, 16, generator=rng)
    look = images.random_features(3)
    assert torch.equal(look(rough), images.random_features(3)(rough))
    halves = images.frechet_distance(look(smooth[:600]), look(smooth[600:]))
    assert images.frechet_distance(look(smooth[:600]), look(rough)) > 3 * halves


def test_features_must_be_rows():
    with pytest.raises(InvalidArgument, match=r"random_features\(3\)"):
        images.frechet_distance(torch.rand(4, 3, 8, 8), torch.rand(4, 3, 8, 8))
