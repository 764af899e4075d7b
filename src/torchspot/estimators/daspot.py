"""DASPOT: labels for a target domain without labels, by a plan between the domains."""

__all__ = ["DASPOT", "LabelledPairs"]

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.errors import InvalidArgument
from torchspot.estimators.adaptation_run import AdaptationRun
from torchspot.estimators.adapting import AdaptationPreset
from torchspot.estimators.networks import Builder
from torchspot.estimators.run import train_and_keep
from torchspot.latents import Latent
from torchspot.networks.judges import JudgeBuilder, Judges
from torchspot.objectives.domains import Domains, open_domains
from torchspot.objectives.teacher import SOURCE, TARGET
from torchspot.plans import PushforwardPlan
from torchspot.plans.classifier import Labeller
from torchspot.training.engine import engine_for
from torchspot.training.ranks import ranks_of
from torchspot.types import Callback, Engine

Shares = Float[np.ndarray, " classes"]

_CONFLICT = 0.1
"""Share of target samples beside source samples of another label that is worth a word."""
_AMONG = 0.8
"""Where so many target samples lie beside source samples, the source's classifier can be asked about the target."""
_RARE = 0.005
"""Classes with fewer source rows are not spoken of."""
_ABSENT = 0.2
"""A class is taken to be absent where it is predicted less often than this much of its share in the source."""


class LabelledPairs(NamedTuple):
    """Generated pairs: row k of x looks like source data, row k of y like target data, and both have label k."""

    x: Float[Tensor, "batch *shape"]
    y: Float[Tensor, "batch *shape"]
    labels: np.ndarray


class DASPOT(Labeller):
    """Learns to classify a target domain from a labelled source and unlabelled target samples.

    A generator learns pairs of a source and a target sample that belong together: near each other for the embedding
    by which the classifier decides. Critics and classifiers share their layers.

    Samples are vectors or pictures (channels, height, width). Of vectors the target's end of a pair is a map of the
    source's end, which also takes the labelled samples to the target. Pictures get convolutional networks, and a
    teacher, the average of the classifiers, labels the target samples that it is sure of.

    Args:
        generator: builder `(shapes, rng) -> Module` of the network from noise to pairs, or a module. Without
            `translate` (see `networks.translated`) labels of vectors come by generated pairs alone.
        judges: builder `(shapes, rng) -> Judges` of critics and classifiers, or such a module, which is copied.
        latent: the noise.
        steps: of the generator; by default from the data.
        batch_size: samples of each domain a step; by default from the data.
        preset: how to train; if None, `presets.adaptation()` for pictures and `presets.adaptation_of_vectors()`.
        seed: of everything random.
        engine: where and how to train; if None, `Captured()` on a GPU (with `autocast=torch.bfloat16` for pictures)
            and `Eager()` without one.
        callbacks: called at logged steps.

    After `fit`: `classes_`, `classifier_` (of the target), `plan_` (of pairs), `history_` and `target_shares_`, how
    often each class is predicted for target samples. The classifier is that of the last step, averaged: nothing is
    selected. `source_classifier_` is the one for source samples. `overlap_`: the share of target samples (vectors) that
    lie beside source samples; `conflict_`: beside source samples of another label than is predicted.

    >>> rng = np.random.default_rng(0)
    >>> Xs, ys = rng.normal(size=(200, 2)), np.repeat(["a", "b"], 100)
    >>> Xs[100:] += 6
    >>> daspot = DASPOT(steps=100).fit(Xs, ys, Xs + 1)
    >>> print(daspot.predict([[1, 1], [7, 7]]))
    ['a' 'b']
    """

    def __init__(
        self,
        *,
        generator: Builder | nn.Module | None = None,
        judges: JudgeBuilder | Judges | None = None,
        latent: Latent | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        preset: AdaptationPreset | None = None,
        seed: int = 0,
        engine: Engine | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.generator = generator
        self.judges = judges
        self.latent = latent
        self.steps = steps
        self.batch_size = batch_size
        self.preset = preset
        self.seed = seed
        self.engine = engine
        self.callbacks = callbacks

    def fit(self, Xs: Any, ys: Any, Xt: Any, *, resume: str | Path | None = None) -> Self:
        """Learns from source samples, their labels, and target samples.

        Args:
            Xs: source samples, with rows; anything `torchspot.data.as_sampler` takes that has them.
            ys: one label for each, of any type.
            Xt: target samples; anything `torchspot.data.as_sampler` takes.
            resume: a folder that keeps the state of this run. What is there is continued; an empty or new folder
                starts a run that can be resumed from it.

        Stopped by Ctrl-C, the estimator keeps the classifier as it was learned so far.
        """
        with ranks_of(self.engine).together(), contextlib.closing(self._opened(Xs, ys, Xt)) as domains:
            run = AdaptationRun(self, domains, None if resume is None else Path(resume))
            train_and_keep(run.go, lambda: self._keep(run))
            shares = (domains.source_shares, run.target_shares(by=SOURCE), self.target_shares_)
        _warn_absent(self.classes_, *shares, asked=self.overlap_ is None or self.overlap_ >= _AMONG)
        _warn_conflict(self.conflict_)
        return self

    def embed(self, X: Any, *, domain: str = "target") -> Float[np.ndarray, "rows dim"]:
        """D_e: the features by which samples of a domain ("source" or "target") are classified."""
        if domain not in _DOMAINS:
            raise InvalidArgument(f"domain must be 'source' or 'target', and is {domain!r}.")
        return self._fitted().of_domain(_DOMAINS[domain]).embed(X)

    def sample(self, n: int, seed: int | None = None) -> LabelledPairs:
        """n generated pairs of a source and a target sample, and the label of their source end."""
        fitted = self._fitted()
        x, y = self.plan_.sample(n, seed)
        return LabelledPairs(x, y, fitted.of_domain(SOURCE).predict(x))

    def _opened(self, Xs: Any, ys: Any, Xt: Any) -> Domains:
        return open_domains(Xs, ys, Xt, engine=engine_for(self.engine), seed=self.seed)

    def _keep(self, run: AdaptationRun) -> None:
        self.classes_ = run.domains.labels.classes
        self.classifier_ = run.classifier(TARGET)
        self.plan_ = PushforwardPlan(run.generator(), run.latent, self.classifier_.cost, (), run.facts())
        self.history_ = run.history.records
        self.source_classifier_ = run.classifier(SOURCE)
        self.target_shares_ = run.target_shares()
        lies = run.neighbourhood()
        self.overlap_ = None if lies is None else lies.beside
        self.conflict_ = None if lies is None else lies.conflict


_DOMAINS = {"source": SOURCE, "target": TARGET}


def _warn_conflict(share: float | None) -> None:
    """Says so where the source's own classifier may be the better one."""
    if share is not None and share > _CONFLICT:
        warnings.warn(
            f"{share:.0%} of target samples lie beside source samples that have another label than is predicted for "
            "them. DASPOT takes the domains to be moved against each other. Where equal samples have equal labels in "
            "both, and only some are more frequent (covariate shift), it makes things worse, and "
            "source_classifier_.predict(X) (torchspot predict … --as-source) is the better one. Label a few target "
            "samples yourself to see which it is.",
            stacklevel=3,
        )


def _warn_absent(classes: np.ndarray, known: Shares, by_source: Shares, by_target: Shares, *, asked: bool) -> None:
    """Names classes that hardly any target sample seems to have, with the evidence."""
    least = np.minimum(by_source, by_target) if asked else by_target
    absent = np.flatnonzero((least < _ABSENT * known) & (known >= _RARE))
    if len(absent):
        said = "; ".join(
            f"{classes[k]}: {known[k]:.1%} of source rows, {by_source[k]:.1%} of target samples by the source's "
            f"classifier and {by_target[k]:.1%} by the adapted one"
            for k in absent
        )
        warnings.warn(
            f"some classes seem to be absent in the target ({said}). DASPOT pairs the domains and takes classes to be "
            "about as frequent in both (in pictures: all alike), so that target samples of other classes are labelled "
            "so instead: leave out source rows of classes that the target does not have.",
            stacklevel=3,
        )
