"""SPOT on pictures: trained against untrained, kept on disk, resumed, and in lower precision."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import torchspot
from torchspot import SPOT, callbacks, costs, engines, latents, presets
from torchspot.baselines import CoGAN
from torchspot.data.arrays import Rows
from torchspot.errors import InvalidArgument, NotFitted
from torchspot.evaluation import images
from torchspot.networks.augmentation import Augmentation
from torchspot.networks.convolutional import picture_critics, pictures
from torchspot.networks.generators import Shapes
from torchspot.networks.tied import tied, tied_critics
from torchspot.objectives.adversarial import Wasserstein
from torchspot.training.optimizers import Adam

SMALL = replace(presets.pictures(2e-3), width=4, generator_depth=1, batch_size=32)


def bars(n, seed, colours):
    """A bright bar, upright or flat, on a dark ground; in colour it is the negative of the ground."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, 1, 12, 12), dtype=np.uint8)
    for picture, upright, place in zip(x, rng.random(n) < 0.5, rng.integers(2, 9, n), strict=True):
        (picture[0].T if upright else picture[0])[place : place + 2] = 255
    if not colours:
        return x
    ground = rng.integers(0, 100, (n, 3, 1, 1))
    return np.where(x > 0, 255 - ground, ground).astype(np.uint8)


GREY, COLOURED = (Rows(bars(600, k, k == 1), scale=1 / 255) for k in (0, 1))


def fitted(steps, **options):
    options = {"preset": SMALL, "latent": latents.normal(16), "seed": 1} | options
    return SPOT(cost=costs.contour, steps=steps, **options).fit(GREY, COLOURED)


@pytest.fixture(scope="module")
def trained():
    return fitted(250)


def test_training_brings_marginals_near_and_pairs_nearer_than_shuffled(trained):
    start, end = trained.history_[0], trained.history_[-1]
    assert end["marginal_error"] < 0.5 * start["marginal_error"]
    pairing = images.pairing(trained.plan_, 500)
    assert pairing.ratio < 0.8
    assert pairing.deviations > 10


def test_pictures_have_their_shapes_and_range(trained):
    x, y = trained.sample(5, seed=0)
    assert (x.shape, y.shape) == ((5, 1, 12, 12), (5, 3, 12, 12))
    assert min(float(t.min()) for t in (x, y)) >= 0 and max(float(t.max()) for t in (x, y)) <= 1
    assert trained.plan_.of_pictures


def test_bytes_in_other_units_give_the_same_pictures_in_those_units():
    """0 … 255 instead of 0 … 1: everything scales, the cost too."""
    ours = fitted(3)
    theirs = SPOT(cost=costs.contour, steps=3, preset=SMALL, latent=latents.normal(16), seed=1).fit(
        GREY.values, COLOURED.values
    )
    for a, b in zip(ours.sample(4, seed=0), theirs.sample(4, seed=0), strict=True):
        assert torch.allclose(255 * a, b, atol=0.5)
    assert theirs.distance_.value == pytest.approx(255 * ours.distance_.value, rel=0.01)


def test_weights_say_where_they_came_from(trained):
    x, y = (s.draw(600, torch.Generator().manual_seed(k)) for k, s in enumerate((GREY, COLOURED)))
    unpaired = float(costs.contour(x, y).mean())
    assert trained.marginal_weights_.eta == pytest.approx((2 * unpaired,) * 2, rel=0.05)
    assert trained.marginal_weights_.source == "twice the mean cost of unpaired samples"
    assert trained.plan_.facts["critics"] == "logistic"


def test_critics_are_not_steeper_than_1(trained):
    assert max(trained.critics_.operator_norms()) < 1.1


def test_saves_and_loads(trained, tmp_path):
    trained.plan_.save(tmp_path)
    again = torchspot.load(tmp_path)
    for a, b in zip(trained.sample(7, seed=3), again.sample(7, seed=3), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_resumes_bit_for_bit(tmp_path):
    class Stop:
        def __call__(self, training, record):
            if training.step >= 6:
                raise KeyboardInterrupt

    whole = fitted(12)
    with pytest.raises(KeyboardInterrupt):
        SPOT(
            cost=costs.contour,
            steps=12,
            preset=SMALL,
            latent=latents.normal(16),
            seed=1,
            callbacks=[callbacks.Checkpoint(tmp_path, every_seconds=0), Stop()],
        ).fit(GREY, COLOURED, resume=tmp_path)
    resumed = SPOT(cost=costs.contour, steps=12, preset=SMALL, latent=latents.normal(16), seed=1)
    resumed.fit(GREY, COLOURED, resume=tmp_path)
    for a, b in zip(whole.sample(3, seed=0), resumed.sample(3, seed=0), strict=True):
        assert torch.equal(a, b)


class Look:
    """Keeps the run that begins, and ends it."""

    def begin(self, run):
        self.run = run

    def __call__(self, training, record):
        training.stop("seen")


def test_few_pictures_are_augmented_by_default():
    look = Look()
    SPOT(cost=costs.contour, callbacks=[look]).fit(GREY, COLOURED)
    assert look.run.objective.augmentation == Augmentation(mirror=False)


def test_defaults_are_small_on_a_cpu_and_large_on_a_gpu():
    look, recipe = Look(), presets.pictures()
    SPOT(cost=costs.contour, callbacks=[look], engine=engines.Eager("cpu")).fit(GREY, COLOURED)
    cpu, gpu = (recipe.sizes(432, pictures=True, gpu=gpu) for gpu in (False, True))
    assert look.run.objective.generator.generator.width == cpu.width
    assert look.run.training.steps == cpu.steps
    assert look.run.latent == latents.pieces(116)
    assert all(large > small for small, large in zip(cpu, gpu, strict=True))
    assert recipe.rates(gpu.width)[0] < recipe.rates(cpu.width)[0] == recipe.learning_rate


def test_augmented_training_runs_and_differs():
    plain, changed = fitted(4), fitted(4, preset=replace(SMALL, augmentation=Augmentation()))
    assert not torch.equal(plain.sample(2, seed=0)[0], changed.sample(2, seed=0)[0])


def test_replicas_of_pictures():
    spot = fitted(4, replicas=2)
    assert len(spot.plans_) == 2
    for logged, plan in zip(spot.history_[-1]["runs"]["cost"], spot.plans_, strict=True):
        assert logged == pytest.approx(plan.expected_cost().value, rel=0.05)
    assert not torch.equal(spot.plans_[0].sample(2, seed=0)[0], spot.plans_[1].sample(2, seed=0)[0])


def test_bfloat16_steps_leave_weights_in_float32_and_change_little():
    exact, lowered = (fitted(20, engine=engines.Eager("cpu", autocast=kind)) for kind in (None, torch.bfloat16))
    assert all(p.dtype == torch.float32 for p in lowered.plan_.generator.parameters())
    a, b = (spot.history_[-1]["cost"] for spot in (exact, lowered))
    assert a != b
    assert a == pytest.approx(b, rel=0.2)
    assert "autocast=torch.bfloat16" in repr(engines.Eager("cpu", autocast=torch.bfloat16))


def test_the_cost_keeps_its_precision():
    seen = []

    def cost(x, y):
        product = x.flatten(1) @ torch.ones(144, 1)
        seen.append(product.dtype)
        return (product[:, 0] - y.flatten(1).mean(1)).square()

    SPOT(cost=cost, steps=1, preset=SMALL, engine=engines.Eager("cpu", autocast=torch.bfloat16)).fit(GREY, COLOURED)
    assert set(seen) == {torch.float32}


def test_any_preset_takes_networks_of_a_sensible_size():
    for preset in (presets.default(), replace(presets.paper(), width=None)):
        spot = SPOT(cost=costs.contour, preset=preset, steps=1, batch_size=4).fit(GREY, COLOURED)
        assert sum(p.numel() for p in spot.critics_.parameters()) < 2e6
        assert sum(p.numel() for p in spot.plan_.generator.parameters()) < 2e6


def test_maps_and_densities_take_pictures_as_vectors():
    grey = bars(300, 0, False).astype(np.float32)
    spot = SPOT(cost=costs.squared_euclidean, latent=latents.anchored(), steps=2, batch_size=8).fit(grey, grey[::-1])
    assert spot.transform(grey[:3]).shape == (3, 1, 12, 12)
    dark = np.random.default_rng(0).normal(10, 1, (300, 1, 8, 8))
    entropic = torchspot.EntropicSPOT(epsilon=1.0, steps=1, batch_size=8).fit(dark, dark[::-1])
    assert entropic.history_[0]["marginal_error"] < 0.6


def test_augmentation_is_for_pictures():
    x = np.random.default_rng(0).normal(size=(200, 2))
    with pytest.raises(InvalidArgument, match="augmentation, which is for plans of pictures"):
        SPOT(preset=replace(presets.default(), augmentation=Augmentation()), steps=1).fit(x, x)


def test_builders_leave_the_global_random_numbers_alone():
    before = torch.get_rng_state()
    shapes = Shapes(5, ((1, 12, 12), (3, 12, 12)))
    for builder in (pictures(4), picture_critics(4), tied(4), tied_critics(4)):
        builder(shapes, torch.Generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_wasserstein_critics_of_pictures():
    spot = fitted(5, preset=replace(SMALL, adversarial=Wasserstein()))
    assert spot.marginal_weights_.source == "known"
    assert spot.marginal_weights_.eta == pytest.approx((3 * 24 * 2**0.5, 3 * 8 * 6**0.5))


def test_presets_refuse_what_does_not_fit():
    with pytest.raises(InvalidArgument, match="critic_steps must be at least 1"):
        replace(SMALL, critic_steps=0)
    with pytest.raises(InvalidArgument, match="critic_steps must be at least 1"):
        replace(SMALL, critic_steps=presets.Bursts(usual=0))
    assert [presets.Bursts()(step) for step in (0, 24, 25, 499, 500, 501)] == [10, 10, 5, 5, 10, 5]
    with pytest.raises(InvalidArgument, match="critics that measure W1"):
        torchspot.EntropicSPOT(preset=SMALL, steps=1).fit(np.zeros((50, 1)), np.ones((50, 1)))


class TestCoGAN:
    def cogan(self, steps, **options):
        options = {"generator": tied(4, 1), "critics": tied_critics(8), "batch_size": 32, "seed": 0} | options
        options.setdefault("optimizer", Adam(2e-3, (0.5, 0.999)))
        return CoGAN(steps=steps, **options).fit(GREY, COLOURED)

    def test_learns_marginals_and_never_sees_the_cost(self):
        start, end = self.cogan(1), self.cogan(150)
        real = [s.draw(500, torch.Generator().manual_seed(0)) for s in (GREY, COLOURED)]
        look = [images.random_features(c) for c in (1, 3)]

        def apart(estimator):
            made = estimator.sample(500, seed=0)
            return [images.frechet_distance(f(a), f(b)) for f, a, b in zip(look, made, real, strict=True)]

        assert all(b < 0.5 * a for a, b in zip(apart(start), apart(end), strict=True))
        other = self.cogan(3, cost=costs.euclidean)
        assert torch.equal(other.sample(3, seed=0)[0], self.cogan(3).sample(3, seed=0)[0])

    def test_saves_and_loads(self, tmp_path):
        cogan = self.cogan(2)
        cogan.plan_.save(tmp_path)
        again = torchspot.load(tmp_path)
        assert torch.allclose(cogan.sample(3, seed=0)[1], again.sample(3, seed=0)[1], atol=1e-6)

    def test_errors(self):
        with pytest.raises(InvalidArgument, match="at least two sets"):
            CoGAN().fit(GREY)
        with pytest.raises(NotFitted, match="fit"):
            CoGAN().sample(3)
        with pytest.raises(InvalidArgument, match=r"\(channels, height, width\)"):
            CoGAN(steps=1).fit(np.zeros((20, 3)), np.ones((20, 3)))
