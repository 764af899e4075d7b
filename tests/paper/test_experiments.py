"""The experiments from their command line, quickly; and the report."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from torchspot_paper import report
from torchspot_paper.__main__ import app
from torchspot_paper.recipe import Call, Outcome, errors_of, marginals_beside_noise, read, store

FIELDS = {"experiment", "setting", "metric", "value", "seeds", "hardware", "commit", "seconds"}
ERRORS = {"error_of_mean", "mean_run_error", "median_run_error", "worst_run_error"}
METRICS = {
    "fig2": ERRORS,
    "fig3": ERRORS,
    "fig4": {"kl", "l1", "correlation_error", "cost_error", "worst_kl", "kl_at_step_0"},
    "fig5": {"label_agreement", "contour_ratio", "frechet_x", "frechet_y", "frechet_x_real", "critic_norm_largest"},
    "fig6": {"error", "error_at_step_0", "worst_marginal_over_floor", "rank_correlation"},
    "fig7": {"contour_ratio", "pairing_ratio", "frechet_x", "frechet_y_real", "recall_y"},
    "table1": {"accuracy_last", "accuracy_worst_seed", "accuracy_best_on_test"},
    "runtime": {"accuracy_last"},
    "tabular": {"accuracy_last", "accuracy_worst_seed", "conflict"},
    "comparison": {"error", "seconds", "peak_megabytes"},
    "dimension": {"error", "error_at_step_0", "sliced_w2", "noise_floor"},
    "marginals": {"error", "worst_error", "error_at_step_0", "barycenter_mean_error", "peak_megabytes"},
    "maps": {"uvp", "worst_uvp", "uvp_at_step_0", "conditional_w2", "sliced_w2_over_floor"},
    "map_comparison": {"uvp", "signed_error", "seconds", "peak_megabytes"},
}


def call(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("name", METRICS)
def test_quick(name, tmp_path):
    """Rows of the agreed form, a figure, and a section of the report."""
    output = call(name, "--quick", "--out", tmp_path)
    rows = read(tmp_path / f"{name}.jsonl")
    assert all(set(row) >= FIELDS for row in rows)
    assert {row["experiment"] for row in rows} == {name}
    assert METRICS[name] <= {row["metric"] for row in rows}
    assert {"spot", "daspot"} & {row["setting"]["method"] for row in rows}
    assert f"{name}.png" in output
    call("report", "--out", tmp_path, "--docs", tmp_path / "docs")
    page = (tmp_path / "docs" / "results.md").read_text()
    assert f"python -m torchspot_paper {name}" in page
    assert f"images/{name}.png" in page
    assert (tmp_path / "docs" / "images" / f"{name}.png").stat().st_size > 1000


def test_only_some_settings_and_several_at_once(tmp_path):
    call("fig3", "--quick", "--seeds", 1, "--jobs", 2, "--only", "/2/", "--out", tmp_path)
    rows = read(tmp_path / "fig3.jsonl")
    assert {row["setting"]["width"] for row in rows} == {2}
    assert {row["seeds"] for row in rows} == {1}


def test_a_name_that_no_setting_has_is_an_error_that_lists_them(tmp_path):
    result = CliRunner().invoke(app, ["fig3", "--quick", "--only", "/3/", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "/16/" in result.output
    assert not list(tmp_path.iterdir())


def half_of(call, setting):
    """A setting of an experiment that fails on odd numbers."""
    if setting % 2:
        raise ValueError("odd")
    return [Outcome({"half": setting // 2}, {"error": 0.0}, 1, 0.0)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_setting_that_fails_does_not_stop_the_others(jobs, tmp_path):
    call = Call(device="cpu", out=tmp_path, jobs=jobs)
    with pytest.raises(ExceptionGroup) as failed:
        list(call.keep("halves", call.outcomes(half_of, [0, 1, 2, 3, 4])))
    assert len(failed.value.exceptions) == 2
    assert any("setting 3" in note for error in failed.value.exceptions for note in error.__notes__)
    assert sorted(row["setting"]["half"] for row in read(tmp_path / "halves.jsonl")) == [0, 1, 2]


def test_one_seed_is_enough(tmp_path):
    call("fig2", "--quick", "--seeds", 1, "--only", "/spot@", "--out", tmp_path)
    assert {row["seeds"] for row in read(tmp_path / "fig2.jsonl")} == {1}


def test_all_rows_of_the_same_setting_are_replaced(tmp_path):
    file = tmp_path / "rows.jsonl"
    first = {"setting": {"a": 1, "steps": 5}, "metric": "error", "value": 1.0}
    gone = {"setting": {"a": 1, "steps": 5}, "metric": "seconds_to_95", "value": 7.0}
    other = {"setting": {"a": 2}, "metric": "error", "value": 2.0}
    store(file, [first, gone, other])
    again = {"setting": {"a": 1, "steps": 6}, "metric": "error", "value": 3.0}
    store(file, [again])
    assert sorted(json.dumps(row) for row in read(file)) == sorted(map(json.dumps, [other, again]))


def test_a_diverged_or_badly_fitting_control_is_not_the_best(tmp_path):
    def rows(control, error, sliced_w2):
        metrics = {"error": error, "worst_error": error, "sliced_w2": sliced_w2, "noise_floor": 0.1}
        setting = {"problem": "split", "d": 16, "method": "spot", "control": control, "equal": "steps"}
        about = {"experiment": "dimension", "setting": setting, "hardware": "", "commit": ""}
        return [about | {"metric": metric, "value": value} for metric, value in metrics.items()]

    found = [*rows("orthogonal", math.nan, math.nan), *rows("spectral", 0.02, 0.1), *rows("clipping", 0.01, 0.3)]
    store(tmp_path / "dimension.jsonl", found)
    page = report.write(tmp_path, tmp_path / "docs").read_text()
    line = next(line for line in page.splitlines() if line.startswith("| 16 | split"))
    assert line.endswith("| spectral, equal steps |")
    assert "diverged" in line
    assert "1.00 %*" in line


class Mixture:
    """Two parts 6 apart, one half each; a plan that is right, or whose second marginal is shifted."""

    def __init__(self, shift=0.0):
        self.shift = shift

    def sample(self, n, seed):
        rng = np.random.default_rng([seed, int(10 * self.shift)])
        x, y = (6 * rng.integers(2, size=(n, 1)) + rng.normal(size=(n, 1)) for _ in range(2))
        return x, y + self.shift


class Drawn(Mixture):
    def sample(self, n, seed):
        return tuple(map(torch.from_numpy, super().sample(n, seed + 77)))


def test_a_right_plan_is_near_the_noise_floor_and_a_wrong_one_is_not():
    right = marginals_beside_noise([Drawn(), Drawn()], Mixture(), quick=False)
    assert 0.6 < right["sliced_w2"] / right["noise_floor"] < 1.6
    wrong = marginals_beside_noise([Drawn(), Drawn(2.0)], Mixture(), quick=False)
    assert wrong["sliced_w2"] > 4 * wrong["noise_floor"]


def test_errors_of_the_mean_and_of_the_runs():
    found = errors_of([4.0, 6.0, 5.5], 5.0)
    assert found["error_of_mean"] == pytest.approx(0.1 / 3)
    assert found["mean_run_error"] == pytest.approx(0.5 / 3)
    assert found["median_run_error"] == pytest.approx(0.2)
    assert found["worst_run_error"] == pytest.approx(0.2)
