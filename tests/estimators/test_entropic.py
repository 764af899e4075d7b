"""EntropicSPOT on problems whose entropic plan is known, and what it promises besides."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone

import torchspot
from torchspot import EntropicSPOT, callbacks, costs, engines, evaluation, presets
from torchspot.errors import Diverged, InvalidArgument, NotFitted
from torchspot.networks.generators import separate
from torchspot.networks.ode import flow
from torchspot.networks.solvers import RK4, Adjoint, Dopri5
from torchspot.plans import DensityPlan, PooledPlan
from torchspot_paper.densities import Grid, gaussian_pair, line_pairs

SMALL = replace(presets.entropic(learning_rate=5e-3), width=32, critic_depth=2, averaging=0.99)
COLD = replace(SMALL, warm_start=False)
SHORT = {"preset": SMALL, "batch_size": 128, "generator": flow(16)}


def on_grid(plan, like):
    x, y = np.meshgrid(like.x, like.y, indexing="ij")
    return Grid(like.x, like.y, plan.log_density(x.ravel(), y.ravel()).exp().numpy().reshape(x.shape))


def pair(n=2000, name="gaussians"):
    return line_pairs()[name].sample(n, 0)


def test_mixtures_come_near_the_density_that_sinkhorn_finds():
    """The warm start is .42 away; a trained plan is not."""
    problem, epsilon = line_pairs()["mixtures"], 1.0
    truth = problem.truth(epsilon, nodes=60)
    spot = EntropicSPOT(epsilon=epsilon, preset=SMALL, batch_size=256, steps=500, generator=flow(32))
    xs = problem.sample(50_000, 0)
    trained = on_grid(spot.fit(*xs).plan_, truth)
    untrained = on_grid(clone(spot).set_params(steps=1).fit(*xs).plan_, truth)
    assert truth.kl(untrained) > 0.3
    assert truth.kl(trained) < 0.08
    assert truth.l1(trained) < 0.3
    assert trained.correlation == pytest.approx(truth.correlation, abs=0.03)
    assert trained.cost == pytest.approx(truth.cost, rel=0.1)
    assert trained.mass == pytest.approx(1, abs=1e-3)


def test_larger_epsilon_gives_a_smoother_plan():
    """From the same start, which has the entropy of independent marginals or near it."""
    entropies, correlations = [], []
    for epsilon in (0.1, 1.0, 5.0):
        spot = EntropicSPOT(epsilon=epsilon, preset=COLD, batch_size=256, steps=250, generator=flow(32))
        spot.fit(*pair(20_000))
        entropies.append(spot.entropy(5000).value)
        correlations.append(float(np.corrcoef(*(x[:, 0] for x in spot.sample(5000, seed=0)))[0, 1]))
    assert entropies[0] + 0.3 < entropies[1] < entropies[2] - 0.1
    assert correlations[0] > correlations[1] + 0.05 > correlations[2] + 0.1


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_gaussians_start_at_their_entropic_plan(epsilon):
    problem = line_pairs()["gaussians"]
    truth = problem.truth(epsilon, nodes=60)
    start = EntropicSPOT(epsilon=epsilon, steps=1, **SHORT).fit(*problem.sample(100_000, 0)).plan_
    assert truth.kl(on_grid(start, truth)) < 0.002
    cold = EntropicSPOT(epsilon=epsilon, steps=1, preset=COLD, batch_size=8).fit(*problem.sample(1000, 0)).plan_
    assert truth.kl(on_grid(cold, truth)) > 0.05


def test_several_dimensions_with_hutchinsons_trace():
    """No warm start, the trace along one random direction: far from the closed form before training, near it after."""
    problem, epsilon = gaussian_pair(3), 1.0
    truth, xs = problem.plan(epsilon), problem.sample(50_000, 0)
    points = truth.rvs(size=1000, random_state=0)
    log_p, deviations = truth.logpdf(points), np.sqrt(np.diag(truth.cov))

    def judged(steps):
        spot = EntropicSPOT(
            epsilon=epsilon, preset=COLD, batch_size=256, steps=steps, generator=flow(32, probes=1)
        ).fit(*xs)
        log_q = spot.log_density(points[:, :3], points[:, 3:]).numpy()
        drawn = np.concatenate([x.numpy() for x in spot.sample(50_000, seed=0)], 1)
        off = np.abs(np.corrcoef(drawn.T) - truth.cov / np.outer(deviations, deviations)).max()
        return (log_p - log_q).mean(), np.polyfit(log_p, log_q, 1)[0], off

    kl, _, off = judged(1)
    assert kl > 1
    assert off > 0.5
    kl, slope, off = judged(300)
    assert 0 < kl < 0.25
    assert slope == pytest.approx(1, abs=0.1)
    assert off < 0.15


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_densities_scale_with_the_data(scale):
    """fit(aX + b) with ε a² is the same problem: log p falls by log a for each number of a joint sample."""
    xs, engine = pair(1000), engines.Eager("cpu", dtype=torch.float64)
    moved = tuple(scale * x + 10 * scale for x in xs)
    plain = EntropicSPOT(epsilon=1.0, steps=30, engine=engine, **SHORT).fit(*xs)
    other = EntropicSPOT(epsilon=scale**2, steps=30, engine=engine, **SHORT).fit(*moved)
    points = [x[:50] for x in xs]
    found = other.log_density(*(scale * x + 10 * scale for x in points)) + 2 * math.log(scale)
    assert torch.allclose(found, plain.log_density(*points), atol=1e-3)
    assert other.distance_.value == pytest.approx(scale**2 * plain.distance_.value, rel=1e-3)


def test_three_marginals_of_different_dimensions():
    rng = np.random.default_rng(0)
    xs = rng.normal(size=(500, 1)), rng.normal(size=(500, 2)), rng.normal(size=(500, 1))

    def cost(x, y, z):
        return (x - y[:, :1]).square().sum(1) + (y[:, 1:] - z).square().sum(1)

    spot = EntropicSPOT(cost=cost, epsilon=0.5, steps=5, **SHORT).fit(*xs)
    assert [tuple(x.shape) for x in spot.sample(6)] == [(6, 1), (6, 2), (6, 1)]
    assert spot.log_density(*(x[:7] for x in xs)).shape == (7,)
    law = spot.plan_.marginal_density(1, xs[1][:3])
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(torch.from_numpy(xs[1][:3])).sum(1).exp()
    assert torch.allclose(law, normal, rtol=0.3)


def test_a_fit_that_is_resumed_is_the_same_bit_for_bit(tmp_path):
    xs = pair(500)

    def spot(**more):
        return EntropicSPOT(epsilon=1.0, steps=20, **SHORT).set_params(**more)

    def die(training, record):
        if training.step == 10:
            raise KeyboardInterrupt

    whole = spot().fit(*xs)
    with pytest.raises(KeyboardInterrupt):
        spot(callbacks=[callbacks.Checkpoint(tmp_path, every_seconds=0), die]).fit(*xs, resume=tmp_path)
    resumed = spot().fit(*xs, resume=tmp_path)
    assert torch.equal(resumed.log_density(*xs), whole.log_density(*xs))
    assert [record["entropy"] for record in resumed.history_] == [record["entropy"] for record in whole.history_]
    for other in ({"epsilon": 2.0}, {"generator": flow(16, solver=RK4(2))}, {"generator": flow(16, probes=1)}):
        with pytest.raises(InvalidArgument, match="begun with other"):
            spot(**other).fit(*xs, resume=tmp_path)


def test_replicas_are_pooled_with_their_densities(tmp_path):
    xs = pair(500)
    spot = EntropicSPOT(epsilon=1.0, steps=10, replicas=3, **SHORT).fit(*xs)
    assert isinstance(spot.plan_, PooledPlan)
    each = torch.stack([plan.log_density(*xs) for plan in spot.plans_])
    assert not torch.allclose(each[0], each[1])
    assert torch.allclose(spot.log_density(*xs), each.exp().mean(0).log())
    assert spot.distance_.spread is not None
    assert spot.entropy(2000).value == pytest.approx(spot.plans_[0].entropy(2000).value, abs=0.1)
    again = torchspot.load(spot.plan_.save(tmp_path))
    assert torch.allclose(again.log_density(*xs), spot.log_density(*xs))
    middle = spot.marginal_density(0, [0.0])
    assert torch.allclose(middle, torch.stack([plan.marginal_density(0, [0.0]) for plan in spot.plans_]).mean(0))
    with pytest.raises(InvalidArgument, match="has no density"):
        torchspot.SPOT(steps=2, replicas=2, batch_size=8).fit(*xs).plan_.log_density(*xs)


def test_a_compiled_step_is_an_eager_step():
    xs = pair(300)
    compiled = engines.Compiled("cpu", dtype=torch.float64, backend="aot_eager", outlast=0)
    eager = engines.Eager("cpu", dtype=torch.float64)
    plans = [EntropicSPOT(epsilon=1.0, steps=5, engine=e, **SHORT).fit(*xs).plan_ for e in (compiled, eager)]
    assert "compiled" in plans[0].facts["engine"]
    assert torch.allclose(*(plan.log_density(*xs) for plan in plans), atol=1e-8)


@pytest.mark.parametrize("solver", [Dopri5(1e-5), Adjoint(RK4(4))], ids=str)
def test_solvers_of_torchdiffeq_train_to_about_the_same(solver):
    xs = pair(300)
    ours, theirs = (
        EntropicSPOT(epsilon=1.0, steps=5, batch_size=64, preset=SMALL, generator=flow(16, solver=s)).fit(*xs)
        for s in (RK4(4), solver)
    )
    assert torch.allclose(ours.log_density(*xs), theirs.log_density(*xs), atol=1e-3)


def test_what_must_hold_of_any_estimator():
    spot = EntropicSPOT(epsilon=0.5, steps=3, **SHORT)
    assert len(spot.get_params()) <= 12
    for ask in (lambda: spot.sample(1), lambda: spot.log_density([0.0], [0.0]), spot.entropy):
        with pytest.raises(NotFitted, match="this EntropicSPOT has no plan yet"):
            ask()
    before = dict(spot.get_params())
    xs = pair(500)
    assert spot.fit(*xs) is spot
    assert spot.get_params() == before
    assert isinstance(spot.plan_, DensityPlan)
    assert spot.plan_.facts["epsilon"] == 0.5
    assert torch.equal(clone(spot).fit(*xs).sample(5, seed=1)[0], spot.sample(5, seed=1)[0])
    assert {"cost", "objective", "entropy", "marginal_error"} <= set(spot.history_[0])
    assert len(evaluation.audit(spot.plan_, *xs).marginals) == 2


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, "1", None])
def test_epsilon_must_be_a_number_above_0(epsilon):
    with pytest.raises(InvalidArgument, match=r"epsilon must be a finite number above 0.*use SPOT"):
        EntropicSPOT(epsilon=epsilon).fit(*pair(100))


def test_samples_too_large_for_a_flow_are_refused():
    with pytest.raises(InvalidArgument, match="at most 4096 numbers, and these have 6144"):
        EntropicSPOT(epsilon=1.0, steps=1).fit(*(np.zeros((4, 3072)) + np.eye(4, 3072) for _ in range(2)))


def test_weighted_rows_and_pictures():
    rng = np.random.default_rng(0)
    pictures = [rng.normal(size=(300, 1, 2, 2)) for _ in range(2)]
    spot = EntropicSPOT(epsilon=1.0, steps=3, **SHORT).fit(*pictures)
    assert spot.log_density(*(x[:5] for x in pictures)).shape == (5,)
    x, y = pair(500)
    heavy = (x[:, 0] > 0).astype(float)
    weighted = EntropicSPOT(epsilon=1.0, steps=1, **SHORT).fit(x, y, weights=(heavy, None))
    assert float(weighted.sample(2000, seed=0)[0].mean()) > 0.5


def test_replicas_with_random_traces_and_torchdiffeq_solvers():
    xs = pair(200)
    for generator in (flow(8, probes=1), flow(8, 3, probes=2)):
        spot = EntropicSPOT(epsilon=1.0, steps=3, preset=SMALL, batch_size=32, replicas=2, generator=generator)
        assert torch.isfinite(spot.fit(*xs).log_density(*xs)).all()
    adaptive = EntropicSPOT(
        epsilon=1.0, steps=2, preset=SMALL, batch_size=16, replicas=2, generator=flow(8, solver=Adjoint(RK4(2)))
    )
    with pytest.warns(UserWarning, match="replicas run one after another"):
        assert torch.isfinite(adaptive.fit(*xs).log_density(*xs)).all()


def test_a_flow_that_cannot_be_followed_keeps_the_history():
    """RK4 takes its steps through any field; the adaptive solver of the plan gives up."""

    def built(shapes, rng):
        made = flow(16)(shapes, rng)
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=100.0, generator=rng)
        return made

    spot = EntropicSPOT(epsilon=1.0, steps=2, preset=SMALL, batch_size=16, generator=built)
    with pytest.raises(Diverged, match=r"too stiff.*RK4\(16\)"):
        spot.fit(*pair(300))
    assert len(spot.history_) > 0
    assert not hasattr(spot, "plan_")


def test_an_adaptive_solver_that_gives_up_in_training_says_the_step():
    wild = replace(SMALL, learning_rate=1e30, critic_learning_rate=1e30, rise=0.0, averaging=0.0)
    with pytest.raises(Diverged, match="training diverged at step") as error:
        EntropicSPOT(
            epsilon=1.0, steps=50, preset=wild, batch_size=32, generator=flow(16, solver=Dopri5(1e-3, 50))
        ).fit(*pair(300))
    assert error.value.step is not None


def test_a_generator_without_a_density_is_refused():
    with pytest.raises(InvalidArgument, match=r"whose density is known, and this one is a SeparateGenerator"):
        EntropicSPOT(generator=separate(4, 1), steps=1).fit(*pair(100))


def test_a_field_that_explodes_ends_the_run():
    """Numbers that overflow: the run ends with the step at which it happened."""
    wild = replace(SMALL, learning_rate=1e30, critic_learning_rate=1e30, rise=0.0, averaging=0.0)
    with pytest.raises(Diverged, match="diverged"):
        EntropicSPOT(epsilon=1.0, steps=50, preset=wild, batch_size=32).fit(*pair(300))


def test_steps_too_coarse_for_the_flow_are_said_so():
    """One step of RK4 for a field that turns quickly."""
    fast = flow(16, solver=RK4(1))

    def built(shapes, rng):
        made = fast(shapes, rng)
        for parameter in made.parameters():
            torch.nn.init.normal_(parameter, std=1.5, generator=rng)
        return made

    with pytest.warns(UserWarning, match="do not follow the flow they learned"):
        plan = EntropicSPOT(epsilon=1.0, steps=1, preset=SMALL, batch_size=16, generator=built).fit(*pair(300)).plan_
    assert plan.facts["solver_error"] > 0.01


def test_weights_of_the_marginals_grow_with_epsilon():
    """η_i = 1.5 (q‖∇_i c‖ + ε q‖x/σ²‖): for N(0, 1) and N(2, .5) at ε = 5 above 20, as they must be."""
    xs = pair(20_000)
    small, large = (EntropicSPOT(epsilon=e, steps=1, **SHORT).fit(*xs).marginal_weights_ for e in (0.1, 5.0))
    assert min(large.eta) > 20
    assert max(small.eta) < 15
    known = EntropicSPOT(cost=costs.euclidean, epsilon=0.1, steps=1, **SHORT).fit(*xs).marginal_weights_
    assert known.lipschitz == pytest.approx((1 + 0.1 * 3.29, 1 + 0.1 * 3.29 / math.sqrt(0.5)), rel=0.1)
