"""Plans that answer where a given point goes: with networks whose answer is known, and from files."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import torchspot
from torchspot import SPOT, costs, evaluation, latents, presets
from torchspot.data.arrays import Rows
from torchspot.errors import InvalidArgument
from torchspot.latents import AnchoredDraws
from torchspot.networks.anchored import AnchoredGenerator
from torchspot.networks.generators import InDataUnits, Shapes, Units
from torchspot.plans import ConditionalPlan, PooledPlan
from torchspot.plans.support import Support

COLD = replace(presets.anchored(), warm_start=False)
X = np.random.default_rng(0).normal(size=(500, 2)) * 2 + 5
Y = np.random.default_rng(1).normal(size=(700, 2)) - 3


class Doubled(nn.Module):
    """(u, noise) ↦ 2u + noise, for each of so many marginals."""

    def __init__(self, marginals: int = 1, noise: int = 0) -> None:
        super().__init__()
        self.factor, self.marginals, self.noise = nn.Parameter(torch.tensor(2.0)), marginals, noise

    def forward(self, z):
        u = z[:, :2]
        more = z[:, 2:].sum(1, keepdim=True) if self.noise else 0
        return tuple((k + 1) * self.factor * u + more for k in range(self.marginals))


def plan(*, noise=0, at=(0,), m=2, sources=True, network=None) -> ConditionalPlan:
    units = Units(tuple(torch.full((2,), 5.0 - 8 * k) for k in range(m)), 2.0)
    shapes = Shapes(2 * len(at) + noise, ((2,),) * m)
    generator = AnchoredGenerator([network or Doubled(m - 1, noise) for _ in at], shapes, at)
    kind = latents.anchored(noise, at=at)
    data = tuple(Rows(torch.from_numpy((X, Y)[a]).float()) for a in at) if sources else ()
    draws = AnchoredDraws(kind, tuple(units.means[a] for a in at), units.scale, torch.float32, data)
    support = tuple(Support.of(units.from_data((torch.from_numpy((X, Y)[a]),), (a,))[0], torch.zeros(1, 2)) for a in at)
    cost = costs.squared_euclidean if m == 2 else costs.sum_over_pairs(costs.squared_euclidean)
    return ConditionalPlan(InDataUnits(generator, units), draws, cost, (None,) * m, {}, support)


def doubled(x):
    """What the network does, in data units: about the means 5 and −3."""
    return -3 + 2 * (x - 5)


def test_points_go_where_the_network_sends_them_in_data_units():
    moved = plan().transport(X[:10])
    assert moved.shape == (10, 2)
    assert np.allclose(moved, doubled(X[:10]), atol=1e-5)
    assert np.allclose(plan().barycentric_map(X[:10]), moved)


def test_joint_samples_start_from_the_data_itself():
    x, y = plan().sample(200, seed=3)
    apart = torch.cdist(x.double(), torch.from_numpy(X)).amin(1)
    assert apart.max() < 1e-5
    assert torch.allclose(y, doubled(x), atol=1e-4)


def test_several_partners_have_the_law_of_the_noise():
    noisy = plan(noise=1)
    drawn = noisy.transport(X[:3], 20_000, seed=0)
    assert drawn.shape == (3, 20_000, 2)
    assert np.allclose(drawn.mean(1), doubled(X[:3]), atol=0.1)
    assert torch.allclose(drawn.std(1), torch.full((3, 2), 2.0), atol=0.05)  # noise of deviation 1, times the scale
    assert np.allclose(noisy.barycentric_map(X[:3], 4096), doubled(X[:3]), atol=0.2)
    assert torch.equal(noisy.transport(X[:3], 5, seed=1), noisy.transport(X[:3], 5, seed=1))
    assert not torch.equal(noisy.transport(X[:3], 5), noisy.transport(X[:3], 5))


def test_of_three_marginals_there_are_two_partners():
    first, second = plan(m=3).transport(X[:4])
    assert np.allclose(first, doubled(X[:4]), atol=1e-5)
    assert np.allclose(second, -11 + 4 * (X[:4] - 5), atol=1e-5)


def test_both_directions_and_rows_that_take_turns():
    both = plan(at=(0, 1))
    assert np.allclose(both.inverse(Y[:5]), 5 + 2 * (Y[:5] + 3), atol=1e-4)
    x, y = both.sample(101, seed=0)
    assert torch.allclose(y[0::2], doubled(x[0::2]), atol=1e-4)
    assert torch.allclose(x[1::2], 5 + 2 * (y[1::2] + 3), atol=1e-4)
    assert torch.cdist(y[1::2].double(), torch.from_numpy(Y)).amin(1).max() < 1e-5


def test_a_plan_of_the_other_direction_says_how_to_fit_it():
    with pytest.raises(InvalidArgument, match=r"anchored\(at=1\)"):
        plan().inverse(Y[:3])
    with pytest.raises(InvalidArgument, match=r"anchored\(at=0\)"):
        plan(at=(1,)).transport(X[:3])
    with pytest.raises(InvalidArgument, match="n >= 1"):
        plan().transport(X[:3], 0)
    with pytest.raises(InvalidArgument, match=r"shape \(rows, 2\)"):
        plan().transport(X[0])
    with pytest.raises(InvalidArgument, match="not finite"):
        plan().transport([[np.nan, 0]])


def test_points_outside_the_data_are_warned_of_with_a_number():
    fitted = SPOT(cost=costs.squared_euclidean, latent=latents.anchored(), steps=2).fit(X, Y).plan_
    inside, outside = fitted.outside(X[:50]), fitted.outside([[40.0, 5.0], [5.0, 8.0]])
    assert inside.max() <= 1.5
    assert outside[0] > 5
    assert outside[1] < 1.5
    with pytest.warns(UserWarning, match=r"1 of 2 points lie outside .* times as far"):
        fitted.transport([[40.0, 5.0], [5.0, 8.0]])
    assert fitted.transport(X).shape == X.shape  # no warning, or the test would fail


@pytest.mark.parametrize("dim", [1, 2, 8])
def test_points_of_the_same_law_are_seldom_called_outside(dim):
    def drawn(n, seed):
        return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))

    alarms = 0
    for seed in range(8):
        far = Support.of(drawn(1800, seed), drawn(200, seed + 100)).distance(drawn(5000, seed + 200))
        alarms += int(((far > 1.5).double().mean() > 1e-3) or (far.max() > 3))
    assert alarms <= 2


def test_outside_counts_distances_over_the_largest_in_the_data():
    support = Support.of(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0.5], [4.0]]))
    assert support.reach == 2.0  # from 3 to 1
    assert support.distance(torch.tensor([[-2.0], [3.5], [9.0]])).tolist() == [1.0, 0.25, 3.0]
    assert Support.of(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0.5], [6.0]])).reach == 3.0  # an unseen row
    atoms = Support.of(torch.tensor([[0.0], [2.0], [0.0]]), torch.tensor([[2.0]]))
    assert atoms.reach == 2.0
    assert Support.of(torch.zeros(5, 1), torch.zeros(3, 1)).reach == 1.0


@pytest.mark.parametrize("at", [0, 1, (0, 1)])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_file_keeps_the_map_and_draws_again_with_its_data(at, replicas, tmp_path):
    fitted = SPOT(cost=costs.squared_euclidean, latent=latents.anchored(at=at), steps=3, replicas=replicas).fit(X, Y)
    fitted.plan_.save(tmp_path)
    loaded = torchspot.load(tmp_path)
    start = at if isinstance(at, int) else 1
    points = (X, Y)[start][:7]
    assert torch.equal(
        loaded.transport(points, start=start, seed=0), fitted.plan_.transport(points, start=start, seed=0)
    )
    assert torch.equal(loaded.outside(points, start=start), fitted.plan_.outside(points, start=start))
    with pytest.raises(InvalidArgument, match=r"source=\(?X"):
        loaded.sample(3)
    source = (X, Y)[at] if isinstance(at, int) else (X, Y)
    again = torchspot.load(tmp_path, source=source).sample(9, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(again, fitted.sample(9, seed=2), strict=True))


def test_a_source_that_does_not_fit_is_refused(tmp_path):
    SPOT(cost=costs.squared_euclidean, latent=latents.anchored(), steps=2).fit(X, Y).plan_.save(tmp_path / "map")
    SPOT(cost=costs.squared_euclidean, steps=2).fit(X, Y).plan_.save(tmp_path / "pairs")
    with pytest.raises(InvalidArgument, match=r"samples of shape \(3,\)"):
        torchspot.load(tmp_path / "map", source=np.zeros((5, 3)))
    with pytest.raises(InvalidArgument, match="1 data sets, and source= has 2"):
        torchspot.load(tmp_path / "map", source=(X, Y))
    with pytest.raises(InvalidArgument, match=r"this one draws noise"):
        torchspot.load(tmp_path / "pairs", source=X)


def test_pooled_maps_take_turns_and_average():
    one, other = plan(), plan(network=Doubled())
    with torch.no_grad():
        other.generator.generator.networks[0].factor.fill_(3.0)
    pool = PooledPlan((one, other))
    drawn = pool.transport(X[:2], 4000, seed=0)
    ways = torch.stack([one.transport(X[:2]), other.transport(X[:2])])
    near = (drawn[None] - ways[:, :, None]).norm(dim=-1)  # (plans, rows, draws)
    assert near.amin(0).max() < 1e-4
    assert 0.45 < (near[0] < near[1]).double().mean() < 0.55
    assert torch.allclose(pool.barycentric_map(X[:2]), ways.mean(0), atol=1e-5)
    with pytest.raises(InvalidArgument, match=r"latents\.anchored\(\)"):
        SPOT(steps=2, replicas=2).fit(X, Y).plan_.transport(X)


def test_anchored_plans_are_audited_and_certified_like_others():
    fitted = SPOT(cost=costs.squared_euclidean, latent=latents.anchored(), steps=300).fit(X, Y)
    judged = evaluation.audit(fitted.plan_, X, Y)
    assert judged.marginals[0].at_noise_floor
    certified = evaluation.certify(fitted.plan_, X, Y)
    assert certified.lower < certified.upper
    assert "moves rows of data set 1, and" in certified.covers
    pairs = SPOT(cost=costs.squared_euclidean, steps=2).fit(X, Y)
    assert "moves" not in evaluation.certify(pairs.plan_, X, Y).covers


@pytest.mark.parametrize("pooled", [False, True])
def test_of_both_directions_each_marginal_is_judged_by_what_the_other_makes(pooled):
    """The network doubles, so what it makes is too wide; half of the joint samples are data and would hide that."""
    both = plan(at=(0, 1))
    judged = PooledPlan((both, plan(at=(0, 1)))) if pooled else both
    x, y = X - X.mean(0) + 5, Y - Y.mean(0) - 3
    ratios = [marginal.spread_ratio for marginal in evaluation.audit(judged, x, y).marginals]
    made = [2 * y.std() / x.std(), 2 * x.std() / y.std()]
    assert ratios == pytest.approx(made, rel=0.15)
    assert len(judged.made(0, 31, seed=0)) == 31


def test_what_a_latent_cannot_be():
    with pytest.raises(InvalidArgument, match="noise_dim"):
        latents.anchored(-1)
    with pytest.raises(InvalidArgument, match="at=…"):
        latents.anchored(at=(0, 0))
    with pytest.raises(InvalidArgument, match="names marginal 2"):
        SPOT(latent=latents.anchored(at=2), steps=2).fit(X, Y)


def test_two_directions_of_different_dimensions_are_saved(tmp_path):
    y = np.random.default_rng(2).normal(size=(400, 3))

    def cost(x, y):
        return (x - y[:, :2]).square().sum(1)

    fitted = SPOT(cost=cost, latent=latents.anchored(0, at=(0, 1)), steps=2).fit(X, y)
    loaded = torchspot.load(fitted.plan_.save(tmp_path), cost=cost)
    assert torch.equal(loaded.transport(X[:5]), fitted.plan_.transport(X[:5]))
    assert torch.equal(loaded.inverse(y[:5]), fitted.plan_.inverse(y[:5]))


def test_a_network_of_ones_own_is_loaded_as_it_was_given(tmp_path):
    fitted = SPOT(cost=costs.squared_euclidean, latent=latents.anchored(), generator=Doubled(), steps=2).fit(X, Y)
    fitted.plan_.save(tmp_path)
    loaded = torchspot.load(tmp_path, generator=Doubled())
    assert torch.equal(loaded.transport(X[:5]), fitted.plan_.transport(X[:5]))


def test_three_anchors_fill_up_few_rows():
    xs = (X, Y, Y + 1)
    cost = costs.sum_over_pairs(costs.squared_euclidean)
    fitted = SPOT(cost=cost, latent=latents.anchored(at=[0, 1, 2]), steps=2).fit(*xs)
    for n in (1, 2, 4):
        assert [x.shape for x in fitted.sample(n)] == [(n, 2)] * 3


def test_a_smaller_dimension_needs_noise():
    line = X[:, :1] * [[1.0, 2.0]]
    for first in (X[:, :1], line):
        fitted = SPOT(cost=lambda x, y: (x[:, :1] - y[:, :1]).square().sum(1), latent=latents.anchored(), steps=2)
        assert fitted.fit(first, Y).plan_.latent.noise_dim == 2


def test_a_mean_partner_does_not_depend_on_the_other_points():
    noisy = plan(noise=1)
    assert torch.equal(noisy.barycentric_map(X[:6])[5], noisy.barycentric_map(X[5:6])[0])
    with pytest.raises(InvalidArgument, match="n >= 1"):
        noisy.barycentric_map(X[:3], 0)
    with pytest.raises(InvalidArgument, match="no rows"):
        noisy.transport(np.zeros((0, 2)))
    with pytest.raises(InvalidArgument, match="2 marginals, counted from 0, and start is 7"):
        noisy.transport(X[:3], start=7)


def test_both_directions_are_judged_by_what_they_make_while_they_train():
    both = SPOT(cost=costs.squared_euclidean, latent=latents.anchored(0, at=(0, 1)), steps=1, preset=COLD).fit(X, Y)
    one = SPOT(cost=costs.squared_euclidean, latent=latents.anchored(0), steps=1, preset=COLD).fit(X, Y)
    assert both.history_[0]["marginal_error_2"] == pytest.approx(one.history_[0]["marginal_error_2"], rel=0.2)
    assert one.history_[0]["marginal_error_1"] < 0.5 * both.history_[0]["marginal_error_1"]


def test_data_may_be_left_out_of_the_file(tmp_path):
    fitted = SPOT(cost=costs.squared_euclidean, latent=latents.anchored(), steps=2, replicas=2).fit(X, Y)
    loaded = torchspot.load(fitted.plan_.without_support().save(tmp_path))
    assert torch.equal(
        loaded.transport([[40.0, 5.0]], seed=0), fitted.plan_.without_support().transport([[40, 5]], seed=0)
    )
    with pytest.raises(InvalidArgument, match="stripped of its support"):
        loaded.outside(X)


def test_other_data_than_that_of_the_fit_is_noticed(tmp_path):
    SPOT(cost=costs.squared_euclidean, latent=latents.anchored(), steps=2).fit(X, Y).plan_.save(tmp_path)
    with pytest.warns(UserWarning, match="not the data that the plan was fitted with"):
        torchspot.load(tmp_path, source=X[::-1].copy())


def test_integers_of_all_kinds_and_lists_name_marginals():
    assert latents.anchored(np.int64(2), at=[0, np.int64(1)]) == latents.anchored(2, at=(0, 1))
    with pytest.raises(InvalidArgument, match="noise_dim"):
        latents.anchored(True)
    with pytest.raises(InvalidArgument, match=r"latents\.anchored\(\) with its brackets"):
        SPOT(latent=latents.anchored, steps=2).fit(X, Y)


def test_a_plan_that_cannot_move_points_says_what_can():
    with pytest.raises(InvalidArgument, match=r"latents\.anchored\(\)"):
        SPOT(steps=2).fit(X, Y).plan_.transport(X)
