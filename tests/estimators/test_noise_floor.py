"""Runs that an audit ends, and η that it doubles: recorded, kept over a stop, and seen by the losses."""

import json

import pytest
import torch

from problems import two_gaussians
from torchspot import SPOT, callbacks, evaluation
from torchspot.errors import InvalidArgument
from torchspot.evaluation.audit import Audit, MarginalAudit
from torchspot.types import Estimate, Reading

SHORT = {"batch_size": 64, "steps": 100}


def judged(*off: float) -> Audit:
    """An audit of marginals that are off by so much in W1; exactly at the noise floor where that is 0."""

    def marginal(w1: float) -> MarginalAudit:
        same = Reading(0.1, 0.1, 0.01)
        apart = Reading(0.1 + w1, 0.1, 0.005)
        return MarginalAudit(1000, True, apart, apart, same, same, Reading(w1, 0.0, 0.01), 1.0, 1.0)

    return Audit(Estimate(5.0, 0.0), tuple(map(marginal, off)))


class Script:
    """Gives one audit after the other."""

    def __init__(self, *audits: Audit) -> None:
        self.audits, self.plans = list(audits), []

    def __call__(self, plan):
        self.plans.append(plan)
        return self.audits.pop(0) if len(self.audits) > 1 else self.audits[0]


def floor(audit, **more) -> callbacks.StopAtNoiseFloor:
    return callbacks.StopAtNoiseFloor(audit, patience=2, tolerance=100.0, **more)


@pytest.fixture(autouse=True)
def _flat(monkeypatch):
    """Every marginal error counts as one that has stopped falling."""
    monkeypatch.setattr("torchspot.training.callbacks._FALLING", 0.0)


def test_it_ends_after_two_audits_at_the_noise_floor_and_the_history_says_why():
    script = Script(judged(0.0, 0.04), judged(0.0, 0.0))
    spot = SPOT(callbacks=[floor(script)], **SHORT).fit(*two_gaussians(300).xs)
    assert len(script.plans) == 3
    assert script.plans[0].sample(2)[0].shape == (2, 2)
    (begun,) = [record for record in spot.history_ if "winding_down" in record]
    assert [words[:48] for words in begun["audit"]] == ["right: not to be told from the data beyond noise"] * 2
    last = spot.history_[-1]
    assert "noise floors" in last["stopped"]
    assert last["step"] == begun["step"] + 10 < 100
    assert spot.plan_.facts["stopped"] == last["stopped"]
    assert spot.plan_.facts["steps"] == last["step"]
    assert not any("stopped" in record for record in spot.history_[:-1])


def test_a_marginal_that_is_off_by_more_than_a_hundredth_of_the_cost_has_its_eta_doubled():
    spot = SPOT(callbacks=[floor(Script(judged(0.01, 0.2)), doublings=2)], **SHORT).fit(*two_gaussians(300).xs)
    changes = [change for record in spot.history_ for change in record.get("eta_changes", [])]
    assert [(change["marginal"], change["eta"]) for change in changes] == [(2, 6.0), (2, 12.0)]
    assert "4.0% of the cost" in changes[0]["why"]
    assert spot.marginal_weights_.eta == (3.0, 12.0)
    assert spot.marginal_weights_.source == "known, doubled"
    assert spot.plan_.facts["eta"] == [3.0, 12.0]


def test_a_doubled_eta_changes_what_is_trained_and_survives_a_stop(tmp_path):
    def callback():
        return floor(Script(judged(0.0, 0.2)), doublings=1)

    data = two_gaussians(300).xs
    plain = SPOT(**SHORT).fit(*data).plan_.sample(5, seed=0)[1]
    whole = SPOT(callbacks=[callback()], **SHORT).fit(*data)
    assert not torch.equal(whole.plan_.sample(5, seed=0)[1], plain)

    class Stop:
        def __call__(self, training, record):
            if record["step"] >= 50:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept = callbacks.Checkpoint(tmp_path, every_seconds=0)
        SPOT(callbacks=[callback(), Stop(), kept], **SHORT).fit(*data, resume=tmp_path)
    resumed = SPOT(callbacks=[callback()], **SHORT).fit(*data, resume=tmp_path)
    assert resumed.marginal_weights_.eta == (3.0, 6.0)
    assert torch.equal(resumed.plan_.sample(5, seed=0)[1], whole.plan_.sample(5, seed=0)[1])
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert sum("eta_changes" in line for line in lines) == 1


def test_a_run_that_winds_down_is_resumed_to_the_same_plan(tmp_path):
    def callback():
        return floor(Script(judged(0.0, 0.0)))

    class Stop:
        def __call__(self, training, record):
            if training.winding_down is not None and record["step"] > training.steps - 6:
                raise KeyboardInterrupt

    data = two_gaussians(300).xs
    whole = SPOT(callbacks=[callback()], **SHORT).fit(*data)
    with pytest.raises(KeyboardInterrupt):
        kept = callbacks.Checkpoint(tmp_path, every_seconds=0)
        SPOT(callbacks=[callback(), Stop(), kept], **SHORT).fit(*data, resume=tmp_path)
    resumed = SPOT(callbacks=[callback()], **SHORT).fit(*data, resume=tmp_path)
    assert resumed.history_[-1]["step"] == whole.history_[-1]["step"] < 100
    assert torch.equal(resumed.plan_.sample(5, seed=0)[1], whole.plan_.sample(5, seed=0)[1])


def test_while_cost_and_objective_move_it_goes_on_and_while_marginals_fall_nothing_is_audited(monkeypatch):
    script = Script(judged(0.0, 0.0))
    moving = callbacks.StopAtNoiseFloor(script, patience=2, tolerance=1e-12)
    spot = SPOT(callbacks=[moving], **SHORT).fit(*two_gaussians(300).xs)
    assert script.plans
    assert spot.history_[-1]["step"] == 100
    monkeypatch.setattr("torchspot.training.callbacks._FALLING", 1e9)
    script.plans.clear()
    SPOT(callbacks=[moving], **SHORT).fit(*two_gaussians(300).xs)
    assert not script.plans


def test_it_works_with_a_real_audit_and_replicas():
    data = two_gaussians(400).xs
    spot = SPOT(callbacks=[floor(lambda plan: evaluation.audit(plan, *data))], replicas=2, **SHORT).fit(*data)
    assert any("audit" in record for record in spot.history_)


def test_bad_settings_are_named():
    with pytest.raises(InvalidArgument, match="patience must be at least 1"):
        callbacks.StopAtNoiseFloor(judged, patience=0)
