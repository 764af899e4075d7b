"""SPOT from real samples: maps, conditional laws, and that all else is as in other fits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

import torchspot
from torchspot import SPOT, callbacks, costs, evaluation, latents, presets
from torchspot.errors import InvalidArgument
from torchspot.estimators.anchoring import bound
from torchspot.estimators.problem import pose
from torchspot.networks.generators import separate, shared_trunk
from torchspot.training.engine import Eager
from torchspot_paper import tuples
from torchspot_paper.maps import _on_quantile_intervals, unexplained
from torchspot_paper.problems import map_problems

SMALL = replace(presets.anchored(learning_rate=5e-3), width=32, generator_depth=2, critic_depth=2, warm_start=False)
SQUARED = costs.squared_euclidean


@pytest.mark.parametrize("preset", [SMALL, replace(presets.free_potential(2e-3), width=32, warm_start=False)])
def test_a_map_is_learned_and_holds_for_points_never_seen(preset):
    problem = map_problems(2)["linear"]
    spot = SPOT(cost=SQUARED, latent=latents.anchored(), preset=preset, steps=700, batch_size=256)
    spot.fit(*problem.sample(10_000, 0))
    untrained = clone(spot).set_params(steps=1).fit(*problem.sample(10_000, 0))
    assert unexplained(untrained.plan_, problem) > 0.2
    assert unexplained(spot.plan_, problem) < 0.01
    x, y = problem.pairs(5, 1)
    assert isinstance(spot.transform(x), np.ndarray)
    assert np.allclose(spot.transform(x), y, atol=0.5)


def test_the_warm_start_of_gaussians_is_their_map():
    problem = map_problems(4)["linear"]
    started = SPOT(cost=SQUARED, latent=latents.anchored(), steps=1).fit(*problem.sample(20_000, 0))
    assert unexplained(started.plan_, problem) < 0.005


def test_both_directions_at_once():
    problem = map_problems(2)["linear"]
    spot = SPOT(cost=SQUARED, latent=latents.anchored(at=(0, 1)), preset=SMALL, steps=700, batch_size=512)
    spot.fit(*problem.sample(10_000, 0))
    x, y = problem.pairs(2000, 3)
    there, back = spot.transform(x), spot.inverse_transform(y)
    assert np.square(there - y).sum(1).mean() / y.var(0).sum() < 0.01
    assert np.square(back - x).sum(1).mean() / x.var(0).sum() < 0.01
    assert np.square(spot.inverse_transform(there) - x).sum(1).mean() / x.var(0).sum() < 0.02


def test_atoms_have_conditional_laws_and_not_a_map():
    atoms = np.array([[-2.0], [0.0], [1.0]])
    y = np.random.default_rng(0).normal(size=(20_000, 1))
    preset = replace(presets.conditional(2e-3), width=32, generator_depth=2, critic_depth=2, averaging=0.995)
    spot = SPOT(cost=SQUARED, latent=latents.anchored(), preset=preset, steps=2000).fit(atoms, y)
    assert spot.plan_.latent.noise_dim == 1
    drawn = spot.plan_.transport(atoms, 5000, seed=0)[..., 0].double()
    truth = _on_quantile_intervals(3, 5000)
    off = (drawn.sort(1).values - truth).square().mean(1).sqrt()
    assert off.max() < 0.15 < truth.std(1).max() * 0.5
    assert evaluation.audit(spot.plan_, atoms, y).marginals[0].off_by < 0.05


def noise(*xs):
    problem = pose(xs, None, seed=0, engine=Eager("cpu"))
    return bound(latents.anchored(), problem).noise_dim


def test_noise_is_taken_where_no_map_can_do():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(1000, 3)), rng.normal(size=(1200, 3))
    assert noise(x, y) == 0
    assert noise(x[:200], y) == 3  # far fewer rows
    assert noise(np.repeat(x[:300], 4, axis=0), y) == 3  # rows repeat
    assert noise(x[:50], y[:50]) == 0  # as many atoms on both sides
    assert noise(lambda n: np.ones((n, 3)) * rng.normal(size=(n, 3)), y) == 0
    assert noise(x, lambda n: rng.normal(size=(n, 3))) == 3  # a stream has more


def test_only_the_other_marginals_have_critics_and_weights():
    problem = map_problems(2)["linear"]
    xs = problem.sample(500, 0)
    spot = SPOT(cost=SQUARED, latent=latents.anchored(), steps=2).fit(*xs)
    assert spot.marginal_weights_.eta[0] == 0
    assert spot.marginal_weights_.eta[1] == pytest.approx(2 * spot.marginal_weights_.lipschitz[1])
    assert len(spot.critics_((torch.zeros(3, 2),))) == 1
    both = SPOT(cost=SQUARED, latent=latents.anchored(at=(0, 1)), steps=2).fit(*xs)
    assert min(both.marginal_weights_.eta) > 0
    assert len(both.critics_((torch.zeros(3, 2),) * 2)) == 2
    noisy = SPOT(cost=SQUARED, latent=latents.anchored(2), steps=2).fit(*xs)
    assert noisy.marginal_weights_.eta[1] == pytest.approx(5 * noisy.marginal_weights_.lipschitz[1])


@pytest.mark.parametrize("latent", [latents.anchored(), latents.anchored(1, at=(0, 1))])
def test_an_anchored_fit_resumes_bit_for_bit(latent, tmp_path):
    xs = map_problems(2)["linear"].sample(400, 0)

    def fit(steps_done, folder):
        stop = [callbacks.Checkpoint(folder, every_seconds=0), _StopAt(steps_done)] if steps_done else []
        spot = SPOT(cost=SQUARED, latent=latent, steps=40, preset=SMALL, callbacks=stop, seed=3)
        return spot.fit(*xs, resume=folder)

    with pytest.raises(KeyboardInterrupt):
        fit(20, tmp_path / "a")
    resumed, whole = fit(0, tmp_path / "a"), fit(0, tmp_path / "b")
    assert torch.equal(resumed.plan_.transport(xs[0], seed=0), whole.plan_.transport(xs[0], seed=0))
    with pytest.raises(InvalidArgument, match="noise_dim"):
        SPOT(cost=SQUARED, latent=latents.anchored(3), steps=40, preset=SMALL, seed=3).fit(*xs, resume=tmp_path / "a")


class _StopAt:
    def __init__(self, step):
        self.step = step

    def __call__(self, training, record):
        if training.step >= self.step:
            raise KeyboardInterrupt


def test_three_marginals_of_different_dimensions_and_sizes():
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(600, 2)), rng.normal(size=(900, 3)), rng.normal(size=(700, 1))

    def cost(x, y, w):
        return (x - y[:, :2]).square().sum(1) + (y[:, 2:] - w).square().sum(1)

    for builder in (None, separate(16, 2), shared_trunk(16, 2)):
        spot = SPOT(cost=cost, latent=latents.anchored(), generator=builder, steps=5).fit(x, y, w)
        first, second = spot.plan_.transport(x[:4])
        assert (first.shape, second.shape) == ((4, 3), (4, 1))
        assert [part.shape for part in spot.transform(x[:4])] == [(4, 3), (4, 1)]
        plain = SPOT(cost=cost, generator=builder, steps=5).fit(x, y, w)
        assert [part.shape[1] for part in plain.sample(6)] == [2, 3, 1]


def test_a_network_of_the_users_own_maps_sample_and_noise_to_the_others():
    x, y = map_problems(2)["linear"].sample(500, 0)

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, z):
            return (self.layer(z),)

    mine = Mine()
    before = mine.layer.weight.detach().clone()
    spot = SPOT(cost=SQUARED, latent=latents.anchored(1), generator=mine, steps=5).fit(x, y)
    assert spot.plan_.transport(x[:3], 2).shape == (3, 2, 2)
    assert torch.equal(mine.layer.weight, before)
    with pytest.raises(InvalidArgument, match="as a builder"):
        SPOT(cost=SQUARED, latent=latents.anchored(1, at=(0, 1)), generator=mine, steps=5).fit(x, y)


def test_plans_of_noise_cannot_move_a_point_and_say_what_can():
    x, y = map_problems(2)["linear"].sample(500, 0)
    with pytest.raises(InvalidArgument, match=r"latents\.anchored\(\)"):
        SPOT(cost=SQUARED, steps=2).fit(x, y).transform(x)


def test_results_scale_with_the_data():
    x, y = map_problems(2)["linear"].sample(2000, 0)
    plain = SPOT(cost=SQUARED, latent=latents.anchored(), preset=SMALL, steps=60).fit(x, y)
    large = SPOT(cost=SQUARED, latent=latents.anchored(), preset=SMALL, steps=60).fit(1e3 * x + 1e4, 1e3 * y + 1e4)
    assert np.allclose(large.transform(1e3 * x + 1e4), 1e3 * plain.transform(x) + 1e4, rtol=1e-3, atol=5)


def test_the_generator_takes_its_steps_in_a_turn():
    x, y = map_problems(2)["linear"].sample(300, 0)
    counts = []

    class Count:
        def __call__(self, training, record):
            counts.append([turn.count for turn in training.turns])

    preset = replace(SMALL, generator_steps=3, critic_steps=2)
    SPOT(cost=SQUARED, latent=latents.anchored(), preset=preset, steps=4, callbacks=[Count()]).fit(x, y)
    assert counts[-1] == [8, 12]


@pytest.mark.parametrize("latent", [None, latents.anchored()], ids=["noise", "anchored"])
def test_three_marginals_with_weights_resume_load_and_are_judged(latent, tmp_path):
    problem = tuples.gaussians(3, 2, (0.5, 0.3, 0.2))
    xs = problem.sample(1500, 0)

    def fit(steps_done, folder):
        stop = [callbacks.Checkpoint(folder, every_seconds=0), _StopAt(steps_done)] if steps_done else []
        return SPOT(cost=problem.cost, latent=latent, steps=60, callbacks=stop, seed=3).fit(*xs, resume=folder)

    with pytest.raises(KeyboardInterrupt):
        fit(30, tmp_path / "a")
    resumed, whole = fit(0, tmp_path / "a"), fit(0, tmp_path / "b")
    drawn = whole.sample(50, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(resumed.sample(50, seed=1), drawn, strict=True))
    whole.plan_.save(tmp_path / "plan")
    loaded = torchspot.load(tmp_path / "plan", source=None if latent is None else xs[0])
    assert loaded.cost == problem.cost
    assert all(torch.equal(a, b) for a, b in zip(loaded.sample(50, seed=1), drawn, strict=True))
    judged = evaluation.audit(loaded, *xs)
    assert len(judged.marginals) == 3
    certified = evaluation.certify(loaded, *xs, confidence=0.999)
    assert certified.lower < problem.value < certified.upper
    assert certified.lower > 0.75 * problem.value  # potentials are exact for Gaussians; the rest is chance
    assert "all 3 laws" in certified.covers
    assert ("moves rows of data set 1" in certified.covers) == (latent is not None)
