"""The audit sees what is wrong with a plan and is calm about what is not."""

import numpy as np
import pytest
import torch

from torchspot import costs, latents
from torchspot.errors import InvalidArgument
from torchspot.evaluation import audit
from torchspot.networks.generators import InDataUnits, Units
from torchspot.plans import PushforwardPlan


class Scaled(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, z):
        return z, z * self.factor


def plan(dim: int, factor: float = 1.0, shift: float = 0.0) -> PushforwardPlan:
    units = Units((torch.zeros(dim), torch.full((dim,), shift)), 1.0)
    return PushforwardPlan(InDataUnits(Scaled(factor), units), latents.normal(dim), costs.euclidean)


def data(dim: int) -> list[np.ndarray]:
    return [np.random.default_rng(k).normal(size=(8000, dim)) for k in range(2)]


@pytest.mark.parametrize("dim", [2, 16])
def test_a_right_plan_sits_at_the_noise_floor_and_a_shrunk_one_does_not(dim):
    right = audit(plan(dim), *data(dim))
    assert all(m.ratio < 1.4 and m.spread_error < 0.05 for m in right.marginals)
    shrunk = audit(plan(dim, factor=0.85), *data(dim)).marginals[1]
    assert shrunk.ratio > 2
    assert shrunk.spread_error == pytest.approx(0.15, abs=0.03)
    assert shrunk.energy_distance > 0
    assert audit(plan(dim, shift=1.0), *data(dim)).marginals[1].mean_error == pytest.approx(dim**0.5, rel=0.1)


def test_other_data_is_judged_with_all_rows_and_streams_with_fresh_draws():
    judged = audit(plan(2), data(2)[0], torch.distributions.Normal(torch.zeros(2), 1.0))
    assert [(m.rows, m.held_out) for m in judged.marginals] == [(8000, False), (20_000, True)]


def test_audits_are_plain_numbers_for_json():
    import json

    text = json.dumps(audit(plan(2), *data(2)).as_dict())
    assert {"cost", "marginals"} == set(json.loads(text))


def test_data_that_does_not_fit_is_named():
    with pytest.raises(InvalidArgument, match="2 marginals, and 1 data sets"):
        audit(plan(2), data(2)[0])
    with pytest.raises(InvalidArgument, match=r"data set 2 has samples of shape \(3,\)"):
        audit(plan(2), data(2)[0], data(3)[1])
