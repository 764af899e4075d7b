"""One call of DASPOT's `fit` under way: data, networks and players, trained and measured."""

__all__ = ["AdaptationRun", "Neighbourhood"]

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from torchspot import costs, latents
from torchspot.errors import InvalidArgument
from torchspot.estimators.adapting import AdaptationPreset, adaptation, adaptation_of_vectors
from torchspot.estimators.networks import Builder, build_generator, moment_start
from torchspot.estimators.problem import is_repeatable
from torchspot.estimators.run import identity_of, keep_in, warn_unrepeatable, watched_by
from torchspot.estimators.sizes import Sizes, asked_sizes
from torchspot.latents import Latent, uniform
from torchspot.networks.adversaries import Adversaries
from torchspot.networks.augmentation import Change, Distortion, Noise
from torchspot.networks.convolutional import pictures
from torchspot.networks.generators import InDataUnits, Shapes, around_affine, separate
from torchspot.networks.judges import JudgeBuilder, Judges, JudgeShapes, usual_judges
from torchspot.networks.translated import translated
from torchspot.objectives.adaptation import Adaptation, Labelled
from torchspot.objectives.adaptation_parts import DomainAdversary, PairRisk, Parts
from torchspot.objectives.domains import Domains
from torchspot.objectives.teacher import SOURCE, TARGET, Alignment, Clock, Teacher
from torchspot.plans.classifier import Classifier
from torchspot.random import Key, generator
from torchspot.training.engine import engine_for
from torchspot.training.loop import Training, called_here, train
from torchspot.training.players import Draw, Player, Stream
from torchspot.training.ranks import ranks_of
from torchspot.types import Callback, Engine, Record

_JUDGED, _COMPARED = 4096, 2048
_THIN = 1e-4
"""No map is started from where the source has so little of its mean variance in some direction."""


class Adapter(Protocol):
    """What a run must know of the estimator."""

    generator: Builder | nn.Module | None
    judges: JudgeBuilder | Judges | None
    latent: Latent | None
    steps: int | None
    batch_size: int | None
    preset: AdaptationPreset | None
    seed: int
    engine: Engine | None
    callbacks: Sequence[Callback]


class Neighbourhood(NamedTuple):
    """Shares of target samples beside a source sample: as near as 95 % of source samples have another one."""

    beside: float
    conflict: float
    """And that source sample has another label than is predicted."""


class AdaptationRun:
    """One call of `fit`: data, networks and players, ready to be trained."""

    def __init__(self, estimator: Adapter, domains: Domains, folder: Path | None) -> None:
        self.domains = domains
        preset = _checked(estimator.preset, pictures=self.domains.pictures)
        engine = engine_for(estimator.engine, pictures=self.domains.pictures)
        ranks = ranks_of(engine)
        self.engine, self.seed = engine, int(estimator.seed)
        gpu = engine.device.type == "cuda"
        sizes = asked_sizes(estimator, preset.sizes(pictures=self.domains.pictures, gpu=gpu))
        self.latent = _usual_latent(self.domains) if estimator.latent is None else estimator.latent
        if not hasattr(self.latent, "dim"):
            raise InvalidArgument(f"DASPOT draws noise, such as latents.normal(8), and latent is {estimator.latent!r}.")
        if sizes.batch_size < 2:
            raise InvalidArgument("DASPOT needs batches of at least 2, and batch_size is 1.")
        self._source = self.domains.balanced() if preset.balanced else self.domains.source
        self.objective = _objective(estimator, preset, self.domains, sizes, self.latent)
        self.training = Training(self._players(preset, sizes), sizes.steps)
        self.history, self.callbacks = watched_by(estimator, folder, ranks)
        identity = identity_of(self._identity(preset, sizes), ranks)
        if folder is not None:
            both = (("Xs", self.domains.source.rows), ("Xt", self.domains.target))
            warn_unrepeatable([name for name, sampler in both if not is_repeatable(sampler)])
            self.callbacks = keep_in(folder, self.training, self.callbacks, identity, ranks)
        for callback in called_here(self.callbacks, ranks):
            if hasattr(callback, "begin"):
                callback.begin(self)
        watched = self._draw("watched", _JUDGED // 8 if self.domains.pictures else _JUDGED, "zxy", 1)
        watched.advance()
        self._watched = watched()
        watched.close()
        ranks.share_(self._watched)

    def go(self) -> None:
        """Trains to the end."""
        log_every = max(1, min(100, self.training.planned // 20))
        train(self.training, engine=self.engine, callbacks=self.callbacks, measure=self.measure, log_every=log_every)

    def classifier(self, marginal: int) -> Classifier:
        """A copy of the average of the judges as it stands, for samples of one domain."""
        judges = copy.deepcopy(self.objective.teacher.judges).eval()
        return Classifier(judges, self.domains.units, self.domains.labels.classes, marginal)

    def generator(self) -> InDataUnits:
        """The averaged generator as it stands."""
        averaged: Any = self.training.averaged("generator")[0]
        return averaged.eval()

    @torch.no_grad()
    def measure(self) -> Record:
        """What can be measured without target labels: of the averaged networks, on samples drawn once."""
        z, rows, y, _ = self._watched
        judges = self.classifier(TARGET).judges
        x, v = Labelled.parted(rows, self.domains.shape)
        real = self.domains.units.from_data((x, y))
        at_x, at_y = (judges.embed(u, k) for k, u in enumerate(real))
        ends = [judges.embed(u, k) for k, u in enumerate(self.generator().standardised(z))]
        labels = [judges.scores(h).argmax(1) for h in ends]
        numbers = {
            "cost": (ends[SOURCE] - ends[TARGET]).square().sum(1),
            "source_accuracy": judges.scores(at_x).argmax(1) == v,
            "target_confidence": judges.scores(at_y).softmax(1).amax(1),
            "pairs_agree": labels[SOURCE] == labels[TARGET],
        }
        return {name: float(values.double().mean()) for name, values in numbers.items()}

    @torch.no_grad()
    def target_shares(self, *, by: int = TARGET) -> Float[np.ndarray, " classes"]:
        """How often each class is predicted for target samples, by the classifier of the target or of the source."""
        target = self.domains.target
        y = target.draw(_JUDGED, generator(Key(self.seed, "shares"), target.device)).to(self.domains.units.scale)
        said = self.classifier(by).scores(y).argmax(1).cpu().numpy()
        return np.bincount(said, minlength=len(self.domains.labels.classes)) / len(said)

    @torch.no_grad()
    def neighbourhood(self) -> Neighbourhood | None:
        """How target samples lie among source samples as they are; of vectors alone."""
        if self.domains.pictures:
            return None
        rows, units = self.domains.source, self.domains.units
        rng = generator(Key(self.seed, "conflict"), rows.device)
        chosen = torch.unique(rows.rows.draw_indices(2 * _COMPARED, rng))
        chosen = chosen[torch.randperm(len(chosen), generator=rng, device=chosen.device)[:_COMPARED]]
        x, v = Labelled.parted(rows.take(chosen).to(units.scale), self.domains.shape)
        y = self._watched[2][:_COMPARED].to(units.scale)
        known, unknown = units.from_data((x, y), (SOURCE, SOURCE))
        among = torch.cdist(known, known).fill_diagonal_(math.inf).amin(1).quantile(0.95)
        distance, nearest = torch.cdist(unknown, known).min(1)
        beside = distance <= among
        other = beside & (v[nearest] != self.classifier(TARGET).scores(y).argmax(1))
        return Neighbourhood(*(float(share.double().mean()) for share in (beside, other)))

    def _draw(self, role: str, size: int, what: str, changes: int) -> Draw:
        """What a player draws: noise (z), labelled source rows (x), target samples (y), and numbers of changes."""
        dtype, data = self.engine.dtype, self.domains.units.data_dtype
        known = {
            "z": Stream(self.latent, size, dtype),
            "x": Stream(self._source, size, data),
            "y": Stream(self.domains.target, size, data),
        }
        numbers = Stream(uniform(changes * self.objective.change.dim), size, dtype)
        key = Key(self.seed, role, ranks_of(self.engine).rank)
        return Draw(key, *(known[name] for name in what), numbers, device=self.engine.device)

    def _players(self, preset: AdaptationPreset, sizes: Sizes) -> list[Player]:
        game, size = self.objective, sizes.batch_size
        optimizer = preset.optimizer(preset.judge_learning_rate, preset.betas, preset.schedule)
        judges = Player(
            name="judges",
            modules=tuple(m for m in (game.judges, game.teacher, game.clock, game.alignment) if m is not None),
            optimizer=optimizer,
            draw=self._draw("judges", size, "zxy", 4),
            loss=game.judge_loss,
            repeats=lambda step: preset.judge_steps,
            after_step=game.after_judges,
        )
        mover = Player(
            name="generator",
            modules=(game.generator,),
            optimizer=preset.optimizer(preset.learning_rate, preset.betas, preset.schedule),
            draw=self._draw("generator", size, "z" if game.parts.translation is None else "zx", 1),
            loss=game.generator_loss,
            averaging=preset.averaging,
        )
        if game.adversaries is None:
            return [judges, mover]
        drawn = self._draw("adversaries", size, "xy", 2)
        return [judges, Player("adversaries", (game.adversaries,), optimizer, drawn, game.adversary_loss), mover]

    def facts(self) -> dict[str, Any]:
        """How it was made."""
        ran = "; ".join(f"{name}: {how}" for name, how in self.training.ran.items())
        return {"steps": self.training.step, "seed": self.seed, "engine": f"{ran} on {self.engine.device}"}

    def _identity(self, preset: AdaptationPreset, sizes: Sizes) -> dict[str, Any]:
        """What must be the same for a run to be resumed."""
        return {
            "data": list(self.domains.fingerprints),
            "labels": self.domains.labels.fingerprint(),
            "seed": self.seed,
            "batch size": sizes.batch_size,
            "preset": repr(preset),
            "latent": repr(self.latent),
            "precision": str(self.engine.dtype),
        }


def _objective(
    estimator: Adapter, preset: AdaptationPreset, domains: Domains, sizes: Sizes, latent: Latent
) -> Adaptation:
    """The game, its networks built from the seed."""
    device, dtype = domains.units.scale.device, domains.units.dtype
    seed = int(estimator.seed)
    shapes = Shapes(latent.dim, (domains.shape,) * 2)
    parts = preset.parts
    builder = estimator.generator
    if builder is None:
        builder = _usual_generator(domains, sizes, latent, seed, translates=parts.translation is not None)
    network = build_generator(builder, shapes, seed)
    if parts.translation is not None and not hasattr(network, "translate"):
        parts = _from_noise(parts, chosen=estimator.preset is not None)
    held = shapes.marginals + ((domains.shape,) if parts.translation is not None else ())
    judged = JudgeShapes(held, len(domains.labels.classes))
    judges = _built_judges(estimator.judges, judged, domains, seed).to(device, dtype)
    teacher = Teacher(judges, preset.teacher, looks=parts.teaching is not None)
    steps = sizes.steps * preset.judge_steps
    aligned = None if parts.teaching is None else parts.teaching.alignment
    shares = domains.shares(balanced=preset.balanced)
    return Adaptation(
        generator=InDataUnits(network.to(device, dtype), domains.units),
        judges=judges,
        teacher=teacher,
        clock=Clock(steps).to(device),
        alignment=None if aligned is None else Alignment(shares, aligned, steps),
        adversaries=_adversaries(parts.adversary, judges, domains, seed),
        parts=parts,
        adversarial=preset.adversarial,
        change=_usual_change(domains) if preset.change is None else preset.change,
    )


def _from_noise(parts: Parts, *, chosen: bool) -> Parts:
    """The parts for a generator of the user's own that translates nothing: labels come by generated pairs."""
    if chosen:
        raise InvalidArgument(
            "parts.translation needs a generator with `translate`: give generator=networks.translated.translated(…), "
            "or a preset without translation."
        )
    return replace(parts, translation=None, pairs=PairRisk(1.0, start=0.3))


def _built_judges(given: JudgeBuilder | Judges | None, shapes: JudgeShapes, domains: Domains, seed: int) -> Judges:
    """The user's, or the usual ones; a module is copied."""
    if isinstance(given, Judges):
        if min(len(given.first), len(given.heads)) < len(shapes.marginals):
            raise InvalidArgument(
                f"this recipe needs judges with first layers and heads for {len(shapes.marginals)} marginals, and "
                f"these have {len(given.first)} and {len(given.heads)}. Give a builder, such as mlp_judges()."
            )
        return copy.deepcopy(given)
    gpu = domains.units.scale.is_cuda
    builder = given or usual_judges(pictures=domains.pictures, gpu=gpu)
    return builder(shapes, generator(Key(seed, "judge weights")))


def _adversaries(part: DomainAdversary | None, judges: Judges, domains: Domains, seed: int) -> Adversaries | None:
    """For the features that these judges have."""
    if part is None:
        return None
    with torch.no_grad():
        u = torch.zeros(2, *domains.shape).to(domains.units.scale.device, domains.units.dtype)
        tried = ((part.shallow, judges.shallow), (part.deep, judges.embed))
        features = [tuple(look(u, SOURCE).shape[1:]) for wanted, look in tried if wanted]
    return Adversaries(features, generator(Key(seed, "adversary weights"))).to(u.device, u.dtype)


def _usual_generator(domains: Domains, sizes: Sizes, latent: Latent, seed: int, *, translates: bool) -> Builder:
    """Of pictures; of vectors around the affine plan between Gaussians with the moments of both domains."""
    if domains.pictures:
        return pictures(sizes.width, 1)
    start = moment_start(costs.squared_euclidean, latent, domains.units, domains.probe, seed=seed)
    matrices = () if start is None else tuple(a.float() for a in start.matrices)
    if not translates:
        return around_affine(sizes.width, 3, matrices) if matrices else separate(sizes.width, 3, aligned=True)
    first = around_affine(sizes.width, 3, matrices[:1]) if matrices else separate(sizes.width, 3)
    maps = None if start is None else start.maps_from(SOURCE, _THIN)
    return translated(first, sizes.width, None if maps is None else maps[0])


def _checked(preset: Any, *, pictures: bool) -> AdaptationPreset:
    if preset is None:
        return adaptation() if pictures else adaptation_of_vectors()
    if not isinstance(preset, AdaptationPreset):
        raise InvalidArgument(
            f"DASPOT takes presets.adaptation(), presets.adaptation_of_vectors() and the like, and got {preset!r:.60}."
        )
    return preset


def _usual_change(domains: Domains) -> Change:
    return Distortion() if domains.pictures else Noise(domains.shape[0])


def _usual_latent(domains: Domains) -> Latent:
    return latents.pieces(116, 16) if domains.pictures else latents.normal(domains.shape[0])
