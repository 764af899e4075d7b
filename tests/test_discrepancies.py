"""Discrepancies against closed forms, and zero for equal laws."""

import math

import pytest
import torch

from torchspot.discrepancies import (
    covariance_error,
    energy_distance,
    energy_of_halves,
    halves,
    mean_error,
    sliced_w2,
)


def normal(n: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dim", [1, 3, 10])
def test_sliced_w2_of_a_translation_is_its_length_over_root_dim(dim):
    x = normal(2000, dim)
    shift = torch.full((dim,), 2.0, dtype=torch.float64)
    expected = float(shift.norm()) / math.sqrt(dim)
    assert sliced_w2(x, x + shift, projections=4000) == pytest.approx(expected, rel=0.03)
    assert sliced_w2(x, x[torch.randperm(2000)]) == 0


def test_sliced_w2_in_one_dimension_is_w2():
    x, y = normal(500, 1), 2 * normal(500, 1, seed=1) + 1
    expected = math.sqrt(float((x.sort(0).values - y.sort(0).values).square().mean()))
    assert sliced_w2(x, y) == pytest.approx(expected)


def test_energy_distance_is_unbiased_and_sees_a_difference():
    equal = [energy_distance(normal(200, 2, seed=k), normal(200, 2, seed=1000 + k)) for k in range(200)]
    spread = torch.tensor(equal).std() / math.sqrt(200)
    assert abs(torch.tensor(equal).mean()) < 4 * spread
    assert min(equal) < 0
    assert energy_distance(normal(500, 2), 0.5 * normal(500, 2, seed=1)) > 10 * torch.tensor(equal).std()


def test_energy_distance_of_two_points_is_the_formula():
    x = torch.tensor([[0.0], [1.0]])
    y = torch.tensor([[3.0], [5.0]])
    assert energy_distance(x, y) == pytest.approx(2 * (3 + 5 + 2 + 4) / 4 - 1 - 2)


def test_moments():
    x = normal(1000, 3)
    assert mean_error(x + torch.tensor([3.0, 4.0, 0.0]), x) == pytest.approx(5)
    assert covariance_error(x * 0.9, x) == pytest.approx(0.19)
    assert covariance_error(x, torch.ones_like(x)) == 1


def test_halves_show_what_equal_laws_show():
    floor = sum(sliced_w2(*pair) for pair in halves(normal(4000, 2), 8)) / 8
    fresh = [sliced_w2(normal(2000, 2, seed=2 * k + 1), normal(2000, 2, seed=2 * k + 2)) for k in range(10)]
    assert floor == pytest.approx(sum(fresh) / 10, rel=0.35)


def test_energy_of_halves_is_the_energy_distance_of_halves():
    x = normal(101, 3)
    expected = [energy_distance(*pair) for pair in halves(x, 3, seed=4)]
    assert energy_of_halves(x, 3, seed=4) == pytest.approx(expected)
