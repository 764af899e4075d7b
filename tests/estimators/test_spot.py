"""SPOT on problems with known answers (short versions of benchmarks/accuracy.py), and what it promises besides."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from problems import mixture_of_three, stretch, three_gaussians, two_gaussians
from torchspot import SPOT, callbacks, costs, engines, evaluation, latents, presets
from torchspot.errors import Diverged, InvalidArgument, NotFitted
from torchspot.exact import emd
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import separate, shared_trunk
from torchspot.training.optimizers import Adam

SMALL = replace(presets.default(learning_rate=5e-3), width=32, generator_depth=2, critic_depth=2, warm_start=False)
"""Without the warm start, so that all is learned."""
SHORT = {"preset": SMALL, "batch_size": 256}
STEADY = {"preset": replace(SMALL, averaging=0.998), "batch_size": 512}


def ratios(spot, xs):
    return [marginal.ratio for marginal in evaluation.audit(spot.plan_, *xs).marginals]


def check(spot, xs, truth, *, within):
    """Right value, right marginals; and the untrained plan has not both."""
    fitted = spot.fit(*xs)
    assert fitted.distance_.value == pytest.approx(truth, rel=within)
    assert max(ratios(fitted, xs)) < 2
    untrained = clone(spot).set_params(steps=1).fit(*xs)
    assert max(ratios(untrained, xs)) > 3
    return fitted


def test_section_5_1_value_marginals_and_coupling():
    """An estimator that only fits the marginals couples them independently and shows 5.205."""
    problem = two_gaussians(20_000)
    spot = check(SPOT(steps=1500, **STEADY), problem.xs, 5.0, within=0.015)
    x, y = spot.sample(50_000, seed=0)
    for marginal, mean in ((x, -2.5), (y, 2.5)):
        assert (marginal.mean(0) - torch.tensor([mean, 0.0])).norm() < 0.05
        assert (marginal.std(0) - 1).abs().max() < 0.1
    shuffled = (y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))] - x).norm(dim=1).mean()
    assert shuffled > spot.distance_.value * 1.02
    assert spot.distance_.monte_carlo_error < 0.01
    assert spot.marginal_weights_.eta == (3, 3)
    assert spot.marginal_weights_.source == "known"


def test_squared_cost_finds_the_monge_map():
    problem = two_gaussians(20_000, squared=True, seed=1)
    spot = check(SPOT(cost=costs.squared_euclidean, steps=2500, seed=1, **STEADY), problem.xs, 25.0, within=0.02)
    x, y = spot.sample(20_000, seed=0)
    assert (y - x - torch.tensor([5.0, 0.0])).square().sum(1).mean() < 0.3
    assert spot.marginal_weights_.source == "estimated"
    assert spot.marginal_weights_.lipschitz == pytest.approx((10, 10), rel=0.2)


def test_stretch():
    check(SPOT(steps=1200, **SHORT), stretch(20_000, dim=2).xs, 2.0, within=0.05)


def test_three_marginals():
    problem = three_gaussians(20_000)
    cost = costs.sum_over_pairs(costs.squared_euclidean)
    preset = replace(SMALL, averaging=0.995)
    check(SPOT(cost=cost, steps=1200, preset=preset, batch_size=512), problem.xs, problem.value, within=0.05)


def test_a_mixture_against_exact_transport():
    xs = mixture_of_three(20_000)
    truth = emd(costs.euclidean, *(torch.from_numpy(x[:1500]) for x in xs))
    spot = SPOT(steps=1200, generator=separate(64, 3), **SHORT).fit(*xs)
    assert spot.distance_.value == pytest.approx(truth, rel=0.06)
    assert abs(spot.history_[0]["cost"] / truth - 1) > 0.3


@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
def test_results_scale_with_the_data(scale):
    """Equal at the start to rounding; then rounding drives the games apart, but all end at the truth."""
    x, y = two_gaussians(5000).xs
    base = SPOT(steps=1, **SHORT).fit(x, y)
    moved = SPOT(steps=600, **SHORT).fit(scale * x + 1e4, scale * y + 1e4)
    for name, value in base.history_[0].items():
        if name not in ("step", "seconds"):
            assert moved.history_[0][name] == pytest.approx(scale * value, rel=1e-4)
    assert moved.distance_.value == pytest.approx(scale * 5, rel=0.03)
    assert moved.history_[-1]["marginal_error"] < 0.3 * moved.history_[0]["marginal_error"]
    far = abs(1e4 / scale) > 100
    assert moved.sample(2)[0].dtype == (torch.float64 if far else torch.float32)


def test_same_seed_same_result_bit_for_bit():
    xs = two_gaussians(1000).xs
    first, second, other = (SPOT(steps=30, seed=seed).fit(*xs) for seed in (0, 0, 1))
    assert first.distance_ == second.distance_
    for a, b in zip(first.plan_.generator.parameters(), second.plan_.generator.parameters(), strict=True):
        assert torch.equal(a, b)
    assert first.distance_ != other.distance_


def test_nothing_global_is_touched():
    torch.manual_seed(3)
    np.random.seed(3)
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    threads = torch.get_num_threads()
    SPOT(steps=3).fit(*two_gaussians(200).xs)
    assert torch.equal(torch_state, torch.random.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    assert torch.get_num_threads() == threads


def test_a_fit_that_is_resumed_is_the_same_bit_for_bit(tmp_path):
    xs = two_gaussians(1000).xs
    whole = SPOT(steps=60).fit(*xs)

    class Killed(Exception):
        pass

    def die(training, record):
        if training.step == 30:
            raise Killed

    with pytest.raises(Killed):
        SPOT(steps=60, callbacks=[callbacks.Checkpoint(tmp_path, every_seconds=0), die]).fit(*xs, resume=tmp_path)
    resumed = SPOT(steps=60, callbacks=[lambda training, record: None]).fit(*xs, resume=tmp_path)
    assert resumed.distance_ == whole.distance_
    assert [record["step"] for record in resumed.history_] == [record["step"] for record in whole.history_]
    assert [record["cost"] for record in resumed.history_] == [record["cost"] for record in whole.history_]
    again = SPOT(steps=60).fit(*xs, resume=tmp_path)
    assert again.distance_ == whole.distance_
    with pytest.raises(InvalidArgument, match="begun with other data"):
        SPOT(steps=60).fit(*two_gaussians(1000, seed=5).xs, resume=tmp_path)
    for other in (SPOT(steps=60, seed=1), SPOT(steps=60, batch_size=7), SPOT(steps=60, cost=costs.squared_euclidean)):
        with pytest.raises(InvalidArgument, match="begun with other"):
            other.fit(*xs, resume=tmp_path)


def test_where_a_function_lies_in_memory_is_no_part_of_a_run(tmp_path):
    def own(factor):
        return replace(presets.default(), optimizer=lambda rate, betas, schedule: Adam(factor * rate, betas, schedule))

    xs, kept = two_gaussians(300).xs, [own(1.0), own(1.0)]
    assert repr(kept[0]) != repr(kept[1])
    for preset in kept:
        SPOT(steps=2, preset=preset).fit(*xs, resume=tmp_path)


def test_a_run_may_start_in_a_folder_that_is_not_there_yet(tmp_path):
    SPOT(steps=2).fit(*two_gaussians(300).xs, resume=tmp_path / "new" / "run")
    assert (tmp_path / "new" / "run" / "checkpoint.safetensors").exists()


def test_stopping_early_after_a_resume_is_the_same(tmp_path):
    xs = two_gaussians(300).xs

    def spot(*more):
        return SPOT(steps=60, callbacks=[callbacks.StopOnPlateau(patience=4, tolerance=0.9), *more])

    whole = spot().fit(*xs)
    for moment in (3, 6):

        def die(training, record, moment=moment):
            if training.step == moment:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            spot(callbacks.Checkpoint(tmp_path, every_seconds=0), die).fit(*xs, resume=tmp_path)
    resumed = spot().fit(*xs, resume=tmp_path)
    assert resumed.plan_.facts == whole.plan_.facts
    assert resumed.distance_ == whole.distance_


def test_scikit_learns_conventions():
    spot = SPOT(cost=costs.cosine, steps=5, generator=shared_trunk(4, 1), preset=presets.paper(), seed=3)
    copied = clone(spot)
    assert copied is not spot
    assert copied.get_params() == spot.get_params()
    assert copied.set_params(seed=4).seed == 4
    assert len(spot.get_params()) <= 12
    with pytest.raises(NotFitted, match=r"Call fit\(X, Y\) first"):
        copied.sample(3)
    before = dict(spot.get_params())
    spot.fit(*two_gaussians(200).xs)
    assert spot.get_params() == before
    with pytest.raises(TypeError):
        SPOT(costs.euclidean)


def test_a_second_fit_starts_afresh():
    xs = two_gaussians(500).xs
    spot = SPOT(steps=20, callbacks=[callbacks.StopOnPlateau(patience=1000)])
    assert spot.fit(*xs).distance_ == spot.fit(*xs).distance_


def test_held_out_rows_are_recorded_and_not_trained_on():
    x, y = two_gaussians(2000).xs
    spot = SPOT(steps=5).fit(x, y)
    assert [len(h.rows) for h in spot.plan_.held_out] == [200, 200]
    rows = spot.plan_.held_out[0].rows
    audited = evaluation.audit(spot.plan_, x, y)
    assert all(m.held_out and m.rows == 200 for m in audited.marginals)
    x[rows] = 1e6 * x[rows] / np.abs(x[rows]).max()
    poisoned = SPOT(steps=5).fit(x, y)
    assert poisoned.plan_.generator.units.scale < 2


def test_streams_dimensions_and_shapes(tmp_path):
    normal = torch.distributions.Normal(torch.zeros(3), 1.0)
    spot = SPOT(cost=lambda x, y: (x[:, :2] - y).norm(dim=1), steps=4).fit(normal, lambda n: torch.rand(n, 2))
    with pytest.warns(UserWarning, match="data set 2 does not give the same samples when it is drawn again"):
        SPOT(steps=2).fit(normal, lambda n: torch.rand(n, 3), resume=tmp_path)
    x, y = spot.sample(7)
    assert (x.shape, y.shape) == ((7, 3), (7, 2))
    assert spot.plan_.held_out == (None, None)
    images = SPOT(steps=2).fit(
        np.random.default_rng(0).random((50, 1, 4, 4)), np.random.default_rng(1).random((60, 1, 4, 4))
    )
    assert images.sample(3)[0].shape == (3, 1, 4, 4)
    assert images.plan_.latent.dim == 100


def test_weights_change_the_problem():
    """Half of the rows of X count nothing: what is left is at −2.5."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-2.5, 0.1, (2000, 1)), rng.normal(50, 0.1, (2000, 1))])
    y = rng.normal(2.5, 0.1, (2000, 1))
    weights = np.concatenate([np.ones(2000), np.zeros(2000)])
    spot = SPOT(steps=100, **SHORT).fit(x, y, weights=(weights, None))
    assert spot.distance_.value == pytest.approx(5, rel=0.05)
    audited = evaluation.audit(spot.plan_, x, y, weights=(weights, None))
    assert audited.marginals[0].mean_error.value < 0.5


@pytest.mark.parametrize("preset", [presets.paper(), presets.clipping()], ids=["paper", "clipping"])
def test_the_literal_presets_run(preset):
    spot = SPOT(preset=preset, steps=20).fit(*two_gaussians(500).xs)
    assert spot.marginal_weights_.eta == (1e4, 1e4)
    assert spot.marginal_weights_.source == "given"
    assert np.isfinite(spot.distance_.value)
    last = spot.plan_.generator.generator
    assert (last.width, last.depth) == (8, 2)


def test_paper_preset_is_the_papers():
    paper = presets.paper(learning_rate=1e-4)
    assert (paper.learning_rate, paper.critic_learning_rate, paper.betas, paper.batch_size) == (
        1e-4,
        1e-4,
        (0.5, 0.999),
        100,
    )
    assert paper.averaging == 0
    with pytest.raises(InvalidArgument, match="learning rates"):
        presets.paper(learning_rate=0)


def test_networks_of_the_users_own_are_copied():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, z):
            return self.layer(z)[:, :2], self.layer(z)[:, 2:]

    mine = Mine()
    before = mine.layer.weight.detach().clone()
    spot = SPOT(generator=mine, critics=mlp_critics(8, 1), steps=5, latent=latents.uniform(2)).fit(
        *two_gaussians(300).xs
    )
    assert torch.equal(mine.layer.weight, before)
    assert not torch.equal(spot.plan_.generator.generator.layer.weight, before)
    with pytest.raises(InvalidArgument, match=r"shapes \[\(2,\), \(2,\)\], and returned a Tensor"):
        SPOT(generator=nn.Linear(2, 2)).fit(*two_gaussians(300).xs)


def test_numbers_may_come_from_numpy(tmp_path):
    spot = SPOT(seed=np.int64(3), steps=np.int64(2), marginal_weight=np.array([2.0, 3.0])).fit(*two_gaussians(300).xs)
    assert spot.marginal_weights_.eta == (2, 3)
    spot.plan_.save(tmp_path)


def test_a_network_that_behaves_otherwise_in_training_is_put_to_rest():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

        def forward(self, z):
            return self.layers(z)[:, :2], self.layers(z)[:, 2:]

    spot = SPOT(generator=Noisy(), steps=5).fit(*two_gaussians(300).xs)
    assert torch.equal(spot.sample(5, seed=0)[0], spot.sample(5, seed=0)[0])


def test_measured_operator_norms_are_there():
    spot = SPOT(steps=5).fit(*two_gaussians(300).xs)
    assert max(spot.critics_.operator_norms()) == pytest.approx(1, abs=1e-3)


def test_datasets_are_held_out_too():
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(X))
    spot = SPOT(steps=3).fit(dataset, Y)
    assert [len(h.rows) for h in spot.plan_.held_out] == [30, 30]
    assert evaluation.audit(spot.plan_, dataset, Y).marginals[0].held_out


def test_early_stopping_is_recorded():
    spot = SPOT(steps=200, callbacks=[callbacks.StopOnPlateau(patience=2, tolerance=0.99)]).fit(*two_gaussians(300).xs)
    assert spot.plan_.facts["steps"] == 20
    assert "not improved" in spot.plan_.facts["stopped"]


X, Y = two_gaussians(300).xs
BAD = {
    "one data set": (SPOT(), (X,), "at least two data sets"),
    "different dimensions": (SPOT(), (X, Y[:, :1]), r"shapes \(2,\) and \(1,\)"),
    "three sets under a pair cost": (SPOT(), (X, Y, X), r"sum_over_pairs\(costs.euclidean\)"),
    "nan": (SPOT(), (X, np.where(Y > 4, np.nan, Y)), "data set 2 has a value that is not finite"),
    "a cost of the wrong shape": (
        SPOT(cost=lambda x, y: (x - y).norm()),
        (X, Y),
        r"shape \(8,\) for 8 samples, and returned \(\)",
    ),
    "a cost that is no tensor": (SPOT(cost=lambda x, y: 1.0), (X, Y), "returned float"),
    "a cost without gradient": (SPOT(cost=lambda x, y: (x - y).detach().norm(dim=1)), (X, Y), "no gradient"),
    "a cost that is infinite": (SPOT(cost=lambda x, y: (x - y).sum(1) / 0), (X, Y), "not finite on the data"),
    "a cost by name": (SPOT(cost="euclidean"), (X, Y), "must be a function such as costs.euclidean"),
    "a cost for other dimensions": (
        SPOT(cost=lambda x, y: (x - y).norm(dim=1)),
        (X, np.repeat(Y, 3, axis=1)),
        "the cost failed on",
    ),
    "critics that take no tuple": (SPOT(critics=nn.Linear(2, 1)), (X, Y), "critics must take the tuple"),
    "a generator without parameters": (SPOT(generator=nn.Identity()), (X, Y), "no parameters to train"),
    "no steps": (SPOT(steps=0), (X, Y), "steps must be a whole number"),
    "half a batch": (SPOT(batch_size=0.5), (X, Y), "batch_size must be"),
    "negative weight": (SPOT(marginal_weight=-1), (X, Y), "marginal_weight must be one number above 0"),
    "too many weights": (SPOT(marginal_weight=(1, 2, 3)), (X, Y), "each of the 2 marginals"),
    "a stream of nan": (
        SPOT(),
        (X, lambda n, generator: np.full((n, 2), np.nan)),
        "data set 2 gave a sample that is not finite",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    spot, sources, message = BAD[name]
    with pytest.raises(InvalidArgument, match=message):
        spot.fit(*sources)


def test_bad_weights_and_devices_are_named():
    with pytest.raises(InvalidArgument, match="2 data sets and 1 weights"):
        SPOT().fit(X, Y, weights=(np.ones(300),))
    with pytest.raises(InvalidArgument, match="no device 'cuda:7'"):
        SPOT(engine=engines.Eager("cuda:7")).fit(X, Y)


def test_a_cost_that_explodes_stops_the_run_and_keeps_a_checkpoint(tmp_path):
    calls = []

    def cost(x, y):
        calls.append(1)
        values = (x - y).norm(dim=1)
        return values * float("nan") if len(calls) > 60 else values

    with pytest.raises(Diverged, match=r"diverged: the generator's .* The last good checkpoint is") as error:
        SPOT(cost=cost, steps=100, marginal_weight=2.0).fit(X, Y, resume=tmp_path)
    assert 0 < error.value.step < 100


def small_replicas(k, **options):
    return SPOT(replicas=k, steps=30, preset=replace(SMALL, width=8), batch_size=64, **options)


def test_replicas_give_each_plan_the_pooled_plan_and_the_spread(tmp_path):
    xs = two_gaussians(1000).xs
    spot = small_replicas(4).fit(*xs)
    assert len(spot.plans_) == 4
    assert spot.plan_.plans == spot.plans_
    values = [plan.expected_cost(25_000, seed=k).value for k, plan in enumerate(spot.plans_)]
    assert len(set(values)) == 4
    assert spot.distance_.value == pytest.approx(np.mean(values))
    assert spot.distance_.spread == pytest.approx(np.std(values, ddof=1), rel=0.02)
    assert spot.history_[-1]["runs"]["cost"] == pytest.approx(values, rel=0.05)
    assert spot.history_[-1]["cost"] == pytest.approx(np.mean(spot.history_[-1]["runs"]["cost"]))
    assert len(spot.critics_) == 4
    assert SPOT(steps=3).fit(*xs).distance_.spread is None
    assert evaluation.audit(spot.plan_, *xs).marginals[0].held_out


def test_a_replica_is_the_run_with_the_same_weights_and_batches():
    """Replica 0 starts with the weights of the run without replicas; at the first logged step they are equal."""
    xs = two_gaussians(1000).xs
    alone, together = SPOT(steps=1, **SHORT).fit(*xs), SPOT(steps=1, replicas=3, **SHORT).fit(*xs)
    assert together.history_[0]["runs"]["cost"][0] == pytest.approx(alone.history_[0]["cost"], rel=1e-5)
    assert len({round(error, 3) for error in together.history_[0]["runs"]["marginal_error"]}) == 3


def test_replicas_resume_bit_for_bit(tmp_path):
    xs = two_gaussians(1000).xs

    def die(training, record):
        if training.step == 15:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        kept = callbacks.Checkpoint(tmp_path, every_seconds=0)
        small_replicas(3, callbacks=[kept, die]).fit(*xs, resume=tmp_path)
    resumed, whole = small_replicas(3).fit(*xs, resume=tmp_path), small_replicas(3).fit(*xs)
    assert resumed.distance_ == whole.distance_
    assert resumed.history_[-1]["runs"] == whole.history_[-1]["runs"]
    with pytest.raises(InvalidArgument, match="begun with other replicas"):
        small_replicas(4).fit(*xs, resume=tmp_path)


def test_a_cost_that_cannot_be_batched_runs_its_replicas_one_after_another():
    def looking(x, y):
        values = (x - y).norm(dim=1)
        return values if float(values.detach().sum()) > 0 else -values

    xs = two_gaussians(1000).xs
    with pytest.warns(UserWarning, match="one after another, as .* cannot be batched"):
        slow = small_replicas(2, cost=looking, marginal_weight=2).fit(*xs)
    fast = small_replicas(2, cost=costs.euclidean, marginal_weight=2).fit(*xs)
    assert slow.distance_.value == pytest.approx(fast.distance_.value, rel=1e-3)


def test_replicas_refuse_networks_with_given_weights_and_odd_numbers():
    xs = two_gaussians(200).xs
    network = separate(8, 1)(torchspot_shapes(), torch.Generator())
    with pytest.raises(InvalidArgument, match=r"generator=lambda shapes, rng"):
        SPOT(replicas=2, generator=network).fit(*xs)
    for bad in (0, 1.5, "many"):
        with pytest.raises(InvalidArgument, match="replicas must be a whole number of at least 1"):
            SPOT(replicas=bad).fit(*xs)


def torchspot_shapes():
    from torchspot.networks.generators import Shapes

    return Shapes(2, ((2,), (2,)))


def test_the_plan_says_how_it_was_run():
    assert (
        SPOT(steps=2, engine=engines.Eager("cpu")).fit(*two_gaussians(200).xs).plan_.facts["engine"] == "eager on cpu"
    )
