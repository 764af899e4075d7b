"""ROT on the problem of section 5.1."""

import pytest
import torch

from problems import two_gaussians
from torchspot.baselines import ROT
from torchspot.errors import Diverged, InvalidArgument
from torchspot.objectives.regularised import Entropy, Quadratic


def test_it_finds_distance_plan_and_map_for_a_good_epsilon_and_not_for_a_bad_one():
    xs = two_gaussians(5000).xs
    rot = ROT(regularisation=Quadratic(), epsilon=[0.05, 20.0], steps=300, learning_rate=2e-3, seed=0).fit(*xs)
    good, bad = rot.duals_
    assert good == pytest.approx(5.0, rel=0.05)
    assert abs(bad / 5 - 1) > 0.1
    assert rot.plan_costs_[0] == pytest.approx(5.0, rel=0.05)
    x, y = rot.plans_[0].sample(2000, seed=0)
    assert (y - x).mean(0) == pytest.approx([5.0, 0.0], abs=0.3)
    assert rot.plans_[0].expected_cost(2000).value == pytest.approx(5.0, rel=0.1)
    assert abs(rot.history_[0]["cost"] / 5 - 1) > 0.5


def test_replicas_differ_and_the_same_seed_gives_the_same_result():
    xs = two_gaussians(500).xs
    first, second = (ROT(regularisation=Entropy(), epsilon=0.5, steps=5, replicas=2, seed=1).fit(*xs) for _ in range(2))
    assert first.duals_ == second.duals_
    assert len(set(first.duals_)) == 2
    assert torch.equal(first.plans_[0].sample(3, seed=0)[1], second.plans_[0].sample(3, seed=0)[1])


@pytest.mark.parametrize(("wrong", "name"), [({"epsilon": 0.0}, "epsilon > 0"), ({"replicas": 0}, "replicas >= 1")])
def test_what_it_needs(wrong, name):
    with pytest.raises(InvalidArgument, match=name):
        ROT(**wrong).fit(*two_gaussians(100).xs)


def test_divergence_stops_it():
    with pytest.raises(Diverged, match="not finite"):
        ROT(learning_rate=1e18, steps=40).fit(*two_gaussians(100).xs)


def test_pictures_are_refused():
    with pytest.raises(InvalidArgument, match="Flatten each sample"):
        ROT().fit(torch.zeros(20, 1, 4, 4), torch.zeros(20, 1, 4, 4))
