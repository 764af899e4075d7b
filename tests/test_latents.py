"""Noise: its law, and that a plan's file keeps it."""

import pytest
import torch

from torchspot import latents
from torchspot.errors import InvalidArgument


def test_pieces_switch_between_two_values_and_are_normal_elsewhere():
    z = latents.pieces(7, 3).draw(20_000, torch.Generator().manual_seed(0))
    assert z.shape == (20_000, 7)
    assert set(z[:, :3].unique().tolist()) == {-2.0, 2.0}
    codes = ((z[:, :3] > 0) * torch.tensor([1, 2, 4])).sum(1).bincount()
    assert codes.min() > 2500 - 5 * 50 and codes.max() < 2500 + 5 * 50
    assert z[:, 3:].mean(0).abs().max() < 0.04 and (z[:, 3:].std(0) - 1).abs().max() < 0.03
    assert torch.corrcoef(z.mT).fill_diagonal_(0).abs().max() < 0.04


@pytest.mark.parametrize("latent", [latents.normal(3), latents.uniform(2), latents.pieces(8, 2)])
def test_a_latent_comes_back_from_what_is_saved_of_it(latent):
    assert latents.from_spec(latents.to_spec(latent)) == latent


@pytest.mark.parametrize("switches", [0, 9, 1.5])
def test_pieces_need_some_switches_and_no_more_than_numbers(switches):
    with pytest.raises(InvalidArgument, match="from 1 to dim = 8 switches"):
        latents.pieces(8, switches)
