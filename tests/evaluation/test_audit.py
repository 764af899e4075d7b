"""The audit sees what is wrong with a plan and is calm about what is not."""

import json

import numpy as np
import pytest
import torch

from torchspot import costs, latents
from torchspot.errors import InvalidArgument
from torchspot.evaluation import audit
from torchspot.evaluation.audit import _w1_plain
from torchspot.networks.generators import InDataUnits, Units
from torchspot.plans import PushforwardPlan


class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, z):
        return z, z * self.factor


class Modes(torch.nn.Module):
    """The normal law, and a mixture of normal laws about some of the centres."""

    def __init__(self, centres):
        super().__init__()
        self.centres = centres

    def forward(self, z):
        chosen = (torch.special.ndtr(z[:, -1]) * len(self.centres)).long().clamp(max=len(self.centres) - 1)
        return z[:, :-1], z[:, :-1] + self.centres[chosen]


def plan(dim: int, factor: float = 1.0, shift: float = 0.0) -> PushforwardPlan:
    units = Units((torch.zeros(dim), torch.full((dim,), shift)), 1.0)
    return PushforwardPlan(InDataUnits(Scaled(factor), units), latents.normal(dim), costs.euclidean)


def plan_of_modes(centres: torch.Tensor) -> PushforwardPlan:
    dim = centres.shape[1]
    units = Units((torch.zeros(dim), torch.zeros(dim)), 1.0)
    return PushforwardPlan(InDataUnits(Modes(centres), units), latents.normal(dim + 1), costs.euclidean)


def data(dim: int) -> list[np.ndarray]:
    return [np.random.default_rng(k).normal(size=(8000, dim)) for k in range(2)]


@pytest.mark.parametrize("dim", [2, 16, 64])
def test_a_right_plan_sits_at_the_noise_floor_and_a_shrunk_one_is_caught(dim):
    right = audit(plan(dim), *data(dim))
    for marginal in right.marginals:
        assert marginal.at_noise_floor
        assert marginal.verdict.startswith("right")
        assert marginal.ratio < 1.4
        assert marginal.spread_ratio == pytest.approx(1, abs=0.03)
    shrunk = audit(plan(dim, factor=0.85), *data(dim)).marginals[1]
    assert shrunk.verdict.startswith("wrong")
    assert f"its spread is {shrunk.spread_ratio:.2f} of the data's" in shrunk.verdict
    assert shrunk.spread_ratio == pytest.approx(0.85, abs=0.03)
    assert shrunk.energy_distance.excess > 5
    assert shrunk.sliced_w2.excess > 5
    assert shrunk.covariance_error.excess > 5


@pytest.mark.parametrize("dim", [2, 16, 64])
def test_a_dropped_mode_is_caught(dim):
    centres = 5 * torch.nn.functional.normalize(torch.randn(4, dim, generator=torch.Generator().manual_seed(1)), dim=1)
    x, y = (part.numpy() for part in plan_of_modes(centres).sample(8000, seed=5))
    assert all(marginal.verdict.startswith("right") for marginal in audit(plan_of_modes(centres), x, y).marginals)
    first, second = audit(plan_of_modes(centres[:3]), x, y).marginals
    assert first.verdict.startswith("right")
    assert second.verdict.startswith("wrong")
    assert second.energy_distance.excess > 5


def test_a_moved_mean_is_named():
    judged = audit(plan(4, shift=1.0), *data(4)).marginals[1]
    assert judged.mean_error.value == pytest.approx(2.0, rel=0.1)
    assert "its mean is off by" in judged.verdict
    text = str(audit(plan(4, shift=1.0), *data(4)))
    assert "marginal 1 is right" in text
    assert "marginal 2 is wrong" in text


def test_plain_w1_rewards_collapse_and_the_debiased_estimate_does_not():
    g, x, other = (torch.randn(512, 16, generator=torch.Generator().manual_seed(k)).double() for k in range(3))
    assert _w1_plain(0.85 * g, x) < _w1_plain(other, x)
    right, shrunk = (audit(plan(16, factor=f), *data(16)).marginals[1].w1_estimate for f in (1.0, 0.85))
    assert abs(right.excess) < 4
    assert shrunk.excess > 2


def test_the_debiased_w1_estimates_a_known_distance():
    moved = audit(plan(2, shift=1.0), *data(2)).marginals[1].w1_estimate
    assert 1.2 < moved.value < 2**0.5


def test_other_data_is_judged_with_all_rows_and_streams_with_fresh_draws():
    judged = audit(plan(2), data(2)[0], torch.distributions.Normal(torch.zeros(2), 1.0))
    assert [(m.rows, m.held_out) for m in judged.marginals] == [(8000, False), (20_000, True)]


def test_audits_are_plain_numbers_for_json():
    numbers = json.loads(json.dumps(audit(plan(2), *data(2)).as_dict()))
    assert {"cost", "marginals"} == set(numbers)
    assert {"value", "floor", "spread"} == set(numbers["marginals"][0]["energy_distance"])
    assert numbers["marginals"][0]["verdict"].startswith("right")


def test_data_that_does_not_fit_is_named():
    with pytest.raises(InvalidArgument, match="2 marginals, and 1 data sets"):
        audit(plan(2), data(2)[0])
    with pytest.raises(InvalidArgument, match=r"data set 2 has samples of shape \(3,\)"):
        audit(plan(2), data(2)[0], data(3)[1])
    with pytest.raises(InvalidArgument, match="2 data sets and 1 weights"):
        audit(plan(2), *data(2), weights=[None])


def test_heavy_tails_raise_no_false_alarm():
    class Heavy:
        cost = costs.euclidean

        def sample(self, n, seed=None):
            rng = np.random.default_rng(seed)
            return tuple(torch.from_numpy(rng.standard_t(3, size=(n, 2))) for _ in range(2))

        def expected_cost(self, n=1000):
            return plan(2).expected_cost(n)

    verdicts = []
    for seed in range(8):
        x, y = (part.numpy() for part in Heavy().sample(800, 100 + seed))
        verdicts += [marginal.verdict for marginal in audit(Heavy(), x, y, seed=seed).marginals]
    assert sum(verdict.startswith("right") for verdict in verdicts) >= 15


def test_a_single_point_is_told_from_a_cloud():
    judged = audit(plan(2, shift=9.0), data(2)[0], np.full((500, 2), 3.0))
    assert judged.marginals[1].verdict.startswith("wrong: the data is a single point")
    json.dumps(judged.as_dict(), allow_nan=False)


def test_far_from_the_origin_the_energy_distance_still_sees():
    far = [x + 1e6 for x in data(2)]
    units = Units((torch.full((2,), 1e6, dtype=torch.float64),) * 2, 1.0, dtype=torch.float64)
    shrunk = PushforwardPlan(InDataUnits(Scaled(0.85), units), latents.normal(2), costs.euclidean)
    judged = audit(shrunk, *far)
    assert judged.marginals[0].at_noise_floor
    assert judged.marginals[1].energy_distance.excess > 5
