"""Changes of samples: none for numbers that are 0, known ones for others, the same for the same numbers."""

import pytest
import torch

from torchspot.networks.augmentation import Distortion, Noise, Unchanged

U = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize(("change", "u"), [(Distortion(), U), (Noise(5), U[:, 0, 0, :5]), (Unchanged(), U)])
def test_zeros_change_nothing_and_equal_numbers_change_alike(change, u):
    torch.testing.assert_close(change(u, torch.zeros(len(u), change.dim)), u, atol=1e-5, rtol=0)
    torch.testing.assert_close(change.slight(u, torch.zeros(len(u), change.dim)), u, atol=1e-5, rtol=0)
    numbers = torch.rand(len(u), change.dim) * 2 - 1
    assert change(u, numbers).equal(change(u, numbers))


def numbers_with(place, value):
    numbers = torch.zeros(4, Distortion.dim)
    numbers[:, place] = value
    return numbers


def test_a_shift_moves_whole_pixels():
    moved = Distortion(shift=0.125)(U, numbers_with(5, 1.0))
    torch.testing.assert_close(moved[..., :-2], U[..., 2:], atol=1e-5, rtol=0)


def test_negatives_gains_and_levels():
    change = Distortion(gain=0.5, level=0.25)
    torch.testing.assert_close(change(U, numbers_with(6, -1.0)), -U, atol=1e-5, rtol=0)
    torch.testing.assert_close(change(U, numbers_with(8, 1.0))[:, 1], 1.5 * U[:, 1], atol=1e-5, rtol=0)
    torch.testing.assert_close(change(U, numbers_with(12, -1.0))[:, 2], U[:, 2] - 0.25, atol=1e-5, rtol=0)
    plain = Distortion(gain=0, level=0, negative=False)
    torch.testing.assert_close(plain(U, numbers_with(6, -1.0)), U, atol=1e-5, rtol=0)


def test_a_quarter_turn():
    turned = Distortion(turn=torch.pi / 2)(U, numbers_with(0, 1.0))
    torch.testing.assert_close(turned, U.rot90(1, (2, 3)), atol=1e-4, rtol=0)


def test_a_slight_change_is_less_of_it():
    numbers = torch.rand(4, Distortion.dim, generator=torch.Generator().manual_seed(1)) * 2 - 1
    assert (Distortion().slight(U, numbers) - U).abs().mean() < (Distortion()(U, numbers) - U).abs().mean()
    far, near = Noise(5, 1.0)(U[:, 0, 0, :5], numbers[:, :5]), Noise(5, 1.0).slight(U[:, 0, 0, :5], numbers[:, :5])
    torch.testing.assert_close(4 * (near - U[:, 0, 0, :5]), far - U[:, 0, 0, :5])
