"""Intervals hold the truth, whatever the plan; and say what they do not know."""

import json
import math
import sys

import numpy as np
import ot
import pytest
import torch

import problems
from random_problems import KINDS, random_problem
from torchspot import costs, latents
from torchspot.errors import InvalidArgument, TorchspotError
from torchspot.evaluation import certify, fitted
from torchspot.exact import emd
from torchspot.networks.generators import InDataUnits, Units
from torchspot.plans import PushforwardPlan
from torchspot.types import Estimate


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(fitted, "_STEPS", 300)


class Same(torch.nn.Module):
    def __init__(self, marginals):
        super().__init__()
        self.marginals = marginals

    def forward(self, z):
        return (z,) * self.marginals


def plan(xs, cost, scale: float = 1.0) -> PushforwardPlan:
    """Normal laws about the means of the data, moved onto each other by translation."""
    units = Units(tuple(torch.from_numpy(x.mean(0)).float() for x in xs), scale)
    return PushforwardPlan(InDataUnits(Same(len(xs)), units), latents.normal(xs[0].shape[1]), cost, facts={})


class Shifted:
    """A plan of the user's own: x, and x moved."""

    cost = costs.euclidean

    def sample(self, n, seed=None):
        x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed or 0)) - torch.tensor([2.5, 0])
        return x, x + torch.tensor([5.0, 0])

    def expected_cost(self, n=1000):
        return Estimate(5.0, 0.0)


@pytest.mark.parametrize("squared", [False, True])
def test_section_5_1(squared):
    problem = problems.two_gaussians(20_000, squared=squared)
    cost = costs.squared_euclidean if squared else costs.euclidean
    found = certify(plan(problem.xs, cost), *problem.xs)
    assert found.lower <= problem.value <= found.upper
    assert found.width < (0.03 if squared else 0.015)
    assert (found.target, found.confidence, found.rows) == ("population", 0.95, 20_000)
    assert found.verdict == "the plan's cost agrees with the interval"
    assert found.rounded_cost >= found.lower
    assert found.gap >= found.rounded_cost - found.lower
    assert "19 blocks of 1024 rows" in found.method
    if squared:
        assert found.lower_for_any_law is None
    else:
        assert 4.8 < found.lower_for_any_law < found.lower


def test_coverage_of_random_problems():
    """27 problems at a confidence of 95 %; the long version is benchmarks/interval_coverage.py."""
    numbers = range(3 * len(KINDS))
    held = []
    for number in numbers:
        problem = random_problem(number, 1200)
        found = certify(plan(problem.xs, problem.cost, scale=0.3 + number % 3), *problem.xs)
        assert found.lower <= found.upper
        held.append(found.lower <= problem.value <= found.upper)
    assert sum(held) >= 25


def test_the_interval_does_not_depend_on_the_plan_and_wrong_plans_are_called_so():
    problem = problems.two_gaussians(6000)
    good, narrow = (certify(plan(problem.xs, costs.euclidean, scale), *problem.xs) for scale in (1.0, 0.1))
    assert (good.lower, good.upper) == (narrow.lower, narrow.upper)
    near = certify(plan([x / 2 for x in problem.xs], costs.euclidean), *problem.xs)
    far = certify(plan([x * 2 for x in problem.xs], costs.euclidean), *problem.xs)
    assert not good.plan_is_wrong
    assert near.plan_is_wrong
    assert "costs less than any true plan" in near.verdict
    assert "costs more than the optimal plan" in far.verdict
    assert near.rounded_cost >= near.lower


def test_a_higher_confidence_widens_the_interval():
    problem = problems.two_gaussians(6000)
    narrow, wide = (certify(plan(problem.xs, costs.euclidean), *problem.xs, confidence=c) for c in (0.5, 0.99))
    assert wide.lower < narrow.lower < narrow.upper < wide.upper


def own_cost(a, b):
    return (a - b).abs().sqrt().sum(1)


def test_of_an_unknown_cost_only_the_samples_are_bounded():
    x, y = problems.two_gaussians(9000).xs
    large = certify(plan((x, y), own_cost), x, y)
    assert (large.target, large.rows, large.judges_plan) == ("samples", 9000, False)
    exact = emd(own_cost, *(torch.from_numpy(part[:3000]) for part in (x, y)))
    assert large.lower < large.upper
    assert large.lower < 1.02 * exact
    assert large.upper > 0.98 * exact
    assert large.width < 0.2


@pytest.mark.parametrize("sizes", [(100, 1500), (700, 700)])
@pytest.mark.parametrize("weighted", [False, True])
def test_between_few_rows_the_problem_of_the_samples_is_solved_exactly(sizes, weighted):
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(n, 2)) for n in sizes)
    weights = [rng.uniform(size=n) if weighted else np.ones(n) for n in sizes]
    found = certify(plan((x, y), own_cost), x, y, weights=weights if weighted else None)
    matrix = np.sqrt(np.abs(x[:, None] - y[None])).sum(2)
    truth = ot.emd2(*(w / w.sum() for w in weights), matrix)
    assert (found.target, found.rows) == ("samples", min(sizes))
    assert found.lower == pytest.approx(truth, rel=1e-5)
    assert found.upper == pytest.approx(truth, rel=1e-5)


def test_a_plan_is_not_called_wrong_by_the_optimum_of_a_few_samples():
    problem = problems.two_gaussians(500)
    found = certify(plan(problem.xs, lambda a, b: (a - b).square().sum(1)), *problem.xs)
    assert not found.plan_is_wrong
    assert "not judged" in found.verdict


def test_a_plan_without_a_finite_cost_is_wrong():
    class Broken(Shifted):
        def expected_cost(self, n=1000):
            return Estimate(math.nan, math.nan)

    x, y = problems.two_gaussians(200).xs
    found = certify(Broken(), x, y)
    assert found.plan_is_wrong
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_stream_that_ends_is_not_read_twice():
    class Finite(torch.utils.data.IterableDataset):
        def __init__(self, rows):
            self.rows = torch.from_numpy(rows)

        def __iter__(self):
            return iter(self.rows)

    xs = problems.two_gaussians(300).xs
    made = PushforwardPlan(**{**vars(plan(xs, costs.euclidean)), "facts": {"eta": [2.0, 2.0]}})
    found = certify(made, *map(Finite, xs))
    assert found.rows == 300
    assert found.objective > 4
    assert found.width > 0.02


def test_inside_no_grad():
    problem = problems.two_gaussians(2600)
    with torch.no_grad():
        found = certify(plan(problem.xs, costs.euclidean), *problem.xs)
    assert found.lower > 4


def test_the_bounds_of_samples_hold_for_those_samples():
    from torchspot.evaluation.samples import sample_bounds

    x, y = (torch.from_numpy(a) for a in problems.two_gaussians(4096, dim=3).xs)

    def own(a, b):
        return (a - b).norm(dim=1).sqrt()

    bounds = sample_bounds(own, x, y, risk=0.025)
    assert bounds.lower <= emd(own, x, y) <= bounds.upper.bound


def test_a_metric_of_the_users_own_that_says_so_is_certified():
    class Metric:
        metric = True

        def __call__(self, a, b):
            return (a - b).norm(dim=1)

    problem = problems.two_gaussians(4000)
    found = certify(plan(problem.xs, Metric()), *problem.xs)
    assert found.target == "population"
    assert found.lower <= 5 <= found.upper
    assert found.width < 0.1


def test_weighted_rows_are_the_law_themselves():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 2)), rng.normal(size=(300, 2)) + 3
    weights = rng.uniform(size=300)
    found = certify(plan((x, y), costs.euclidean), x, y, weights=(weights, None), rows=10_000)
    truth = ot.emd2(weights / weights.sum(), np.full(300, 1 / 300), ot.dist(x, y, metric="euclidean"))
    assert found.target == "samples"
    assert found.lower <= truth <= found.upper


def test_three_marginals():
    problem = problems.three_gaussians(4000)
    cost = costs.sum_over_pairs(costs.squared_euclidean)
    found = certify(plan(problem.xs, cost), *problem.xs)
    assert found.lower <= problem.value <= found.upper
    assert found.width < 0.15
    assert found.upper <= found.rounded_cost * 1.1
    own = certify(plan(problem.xs, lambda a, b, c: (a + b + c).norm(dim=1)), *problem.xs, rows=500)
    assert own.lower == -math.inf
    assert (own.target, own.as_dict()["lower"]) == ("samples", None)


def test_streams_and_plans_of_the_users_own():
    normal = torch.distributions.Normal(torch.tensor([-2.5, 0.0]), 1.0)
    moved = torch.distributions.Normal(torch.tensor([2.5, 0.0]), 1.0)
    shares = []
    found = certify(
        Shifted(), normal, moved, rows=4000, seed=1, progress=lambda what, share: shares.append((what, share))
    )
    assert found.lower <= 5 <= found.upper
    assert found.objective is None
    assert {what for what, _ in shares} == {"lower bound", "upper bound", "the plan itself"}
    json.dumps(found.as_dict(), allow_nan=False)


def test_the_objective_adds_what_the_marginals_are_off_by():
    problem = problems.two_gaussians(4000)
    narrow = PushforwardPlan(**{**vars(plan(problem.xs, costs.euclidean, 0.3)), "facts": {"eta": [2.0, 2.0]}})
    found = certify(narrow, *problem.xs)
    assert found.objective > found.plan_cost.value + 1


def test_bad_input_is_named():
    x, y = problems.two_gaussians(100).xs
    made = plan((x, y), costs.euclidean)
    with pytest.raises(InvalidArgument, match="confidence must lie between 0 and 1"):
        certify(made, x, y, confidence=95)
    with pytest.raises(InvalidArgument, match="at least 20 rows"):
        certify(made, x[:10], y)
    with pytest.raises(InvalidArgument, match="2 marginals, and 1 data sets"):
        certify(made, x)


def test_without_pot_the_message_says_what_to_install_and_what_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    x, y = problems.two_gaussians(100).xs
    with pytest.raises(TorchspotError, match=r"pip install 'torchspot\[exact\]'.*audit work"):
        certify(plan((x, y), costs.euclidean), x, y)


def test_few_rows_give_a_wide_interval():
    problem = problems.two_gaussians(40, seed=3)
    found = certify(plan(problem.xs, costs.euclidean), *problem.xs)
    assert found.lower <= 5 <= found.upper
    assert found.width > 0.05


def test_a_larger_data_set_is_used_to_the_full():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 2)), rng.normal(size=(20_000, 2)) + 3
    found = certify(plan((x, y), costs.euclidean), x, y)
    assert "between 60 and 4096 rows" in found.method
    assert found.lower <= 3 * 2**0.5 <= found.upper


@pytest.mark.parametrize("cost", [costs.euclidean, costs.squared_euclidean])
def test_data_without_any_spread(cost):
    x = np.ones((200, 2))
    found = certify(plan((x, 2 * x), cost), x, 2 * x)
    truth = 2 if cost is costs.squared_euclidean else 2**0.5
    assert "optimal cost" in str(found)
    assert found.lower == pytest.approx(truth, rel=1e-4)
    assert found.upper == pytest.approx(truth)


def test_pictures():
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, most, size=(300, 1, 4, 4), dtype=np.uint8) for most in (255, 200))
    units = Units(tuple(torch.zeros(1, 4, 4) for _ in range(2)), 1.0)
    generator = InDataUnits(torch.nn.Sequential(torch.nn.Unflatten(1, (1, 4, 4)), Same(2)), units)
    found = certify(PushforwardPlan(generator, latents.normal(16), costs.squared_euclidean), x, y)
    assert 0 < found.lower < found.upper
