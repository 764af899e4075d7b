"""What critics are asked, against formulas on laws with few values."""

import math

import pytest
import torch

from torchspot.errors import InvalidArgument
from torchspot.objectives.adversarial import Logistic, Wasserstein


def repeated(values, counts):
    return torch.repeat_interleave(torch.tensor(values, dtype=torch.float64), torch.tensor(counts))[None]


def test_wasserstein_is_the_difference_of_means():
    real, fake = torch.tensor([[1.0, 3.0]]), torch.tensor([[5.0, 6.0]])
    game = Wasserstein()
    assert game.critic_loss(real, fake) == -3.5
    assert game.apart(real, fake) == 3.5
    assert game.pull(fake) == 5.5


@pytest.mark.parametrize("kappa", [0.5, 1.0, 4.0])
def test_the_best_logistic_critic_measures_jensen_shannon(kappa):
    """λ = log(q / p) / κ for data p and generated q, on two points."""
    p, q = (3, 1), (1, 3)
    best = [math.log(b / a) / kappa for a, b in zip(p, q, strict=True)]
    game = Logistic(kappa)
    apart = float(game.apart(repeated(best, p), repeated(best, q)))
    middle = [(a + b) / 8 for a, b in zip(p, q, strict=True)]
    js = sum(w / 4 * math.log(w / 4 / m) for law in (p, q) for w, m in zip(law, middle, strict=True)) / 2
    assert apart == pytest.approx(2 * js)
    for wrong in ([0.9 * b for b in best], [1.1 * b for b in best]):
        assert float(game.apart(repeated(wrong, p), repeated(wrong, q))) < apart
    assert float(game.critic_loss(repeated(best, p), repeated(best, q))) == pytest.approx(2 * math.log(2) - apart)


def test_equal_laws_are_not_apart():
    values = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    assert Wasserstein().apart(values, values).abs().max() < 1e-6
    assert (Logistic(3.0).apart(values, values) <= 0).all()


def test_the_generator_pays_less_where_samples_look_real():
    assert Logistic().pull(torch.tensor([[-1.0]])) < Logistic().pull(torch.tensor([[1.0]]))


def test_sharpness_must_be_positive():
    with pytest.raises(InvalidArgument, match="sharpness above 0"):
        Logistic(0.0)
