"""The contour costs against their formula, written out with torch's own convolution, and their steepness."""

import math

import pytest
import torch
from torch.nn import functional

from torchspot import costs
from torchspot.costs import known_lipschitz
from torchspot.errors import InvalidArgument

SOBEL = torch.tensor([[[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]], [[1, 2, 1], [0, 0, 0], [-1, -2, -1]]]).double()


def pictures(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filtered(x, i, j):
    """C_i * x_j, where the filter fits; the sign of a convolution does not matter for its absolute value."""
    channel = x[:, j if x.shape[1] == 3 else 0][:, None]
    return functional.conv2d(channel, SOBEL[i][None, None])


@pytest.mark.parametrize(("first", "second"), [(3, 3), (1, 3), (1, 1)])
def test_contour_is_the_printed_formula(first, second):
    x, y = pictures(0, 5, first, 9, 7), pictures(1, 5, second, 9, 7)
    expected = sum(
        (filtered(x, i, j).abs() - filtered(y, i, j).abs()).flatten(1).norm(dim=1) for i in (0, 1) for j in (0, 1, 2)
    )
    assert torch.allclose(costs.contour(x, y), expected)


def test_the_authors_variant_sums_colours_and_keeps_signs():
    x, y = pictures(0, 5, 3, 9, 7), pictures(1, 5, 3, 9, 7)
    summed = [sum(filtered(x, i, j) - filtered(y, i, j) for j in (0, 1, 2)) for i in (0, 1)]
    assert torch.allclose(costs.signed_contour(x, y), sum(s.flatten(1).norm(dim=1) for s in summed))


def test_outlines_do_not_see_colours_inverted():
    """What section 5.3 wants of the absolute value: a digit and its negative have the same contours."""
    x = pictures(0, 4, 3, 8, 8)
    assert costs.contour(x, 1 - x).abs().max() < 1e-12
    assert costs.signed_contour(x, 1 - x).min() > 1


@pytest.mark.parametrize("cost", [costs.contour, costs.signed_contour], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_stated_constant_bounds_the_slope_and_is_nearly_reached(cost, channels):
    """Along the frequency that the filters stretch most, in a picture large enough."""
    bound = cost.lipschitz_on((channels, 48, 48))
    assert known_lipschitz(cost, (channels, 48, 48), 2) == bound
    assert known_lipschitz(costs.sum_over_pairs(cost), (channels, 48, 48), 3) == 2 * bound
    rng = torch.Generator().manual_seed(0)
    steepest = 0.0
    for _ in range(20):
        x = torch.rand(2, channels, 48, 48, generator=rng, dtype=torch.float64)
        d = 1e-6 * torch.randn(2, channels, 48, 48, generator=rng, dtype=torch.float64)
        y = torch.rand(2, 3, 48, 48, generator=rng, dtype=torch.float64)
        slope = (cost(x + d, y) - cost(x, y)).abs() / d.flatten(1).norm(dim=1)
        steepest = max(steepest, float(slope.max()))
    assert steepest <= bound
    a, b = torch.meshgrid(torch.arange(48.0), torch.arange(48.0), indexing="ij")
    wave = torch.cos(math.pi / 3 * (a + b)) + torch.cos(math.pi / 3 * (a - b))
    wave = wave.double().expand(1, channels, 48, 48)
    slope = float(cost(1e-3 * wave, torch.zeros_like(wave)) / (1e-3 * wave).flatten().norm())
    assert 0.6 * bound < slope <= bound


def test_strengths_bound_the_cost_from_below():
    x, y = pictures(0, 40, 1, 9, 9), pictures(1, 40, 3, 9, 9)
    apart = (costs.contour.strengths(x) - costs.contour.strengths(y)).abs().sum(1)
    assert (apart <= costs.contour(x, y) + 1e-9).all()
    assert torch.allclose(costs.contour.strengths(x).sum(1), costs.contour(x, torch.zeros_like(x)))


def test_errors_say_what_pictures_are():
    x = pictures(0, 2, 3, 8, 8)
    for other in (pictures(0, 2, 3, 8, 7), pictures(0, 2, 2, 8, 8), pictures(0, 2, 64), pictures(0, 2, 3, 2, 2)):
        with pytest.raises(InvalidArgument, match=r"pictures of shape \(1 or 3, height, width\)"):
            costs.contour(x, other)
    with pytest.raises(InvalidArgument, match=r"sum_over_pairs\(costs.contour\)"):
        costs.contour(x, x, x)
