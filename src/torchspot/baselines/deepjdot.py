"""DeepJDOT: a classifier of the target by exact transport between mini-batches of samples with labels."""

__all__ = ["DeepJDOT", "of_embeddings", "of_samples"]

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from torchspot.baselines.supervised import ClassifierFit, Supervised
from torchspot.errors import InvalidArgument
from torchspot.exact import by_pot
from torchspot.latents import uniform
from torchspot.networks.augmentation import Change, Unchanged
from torchspot.networks.judges import JudgeBuilder, Judges
from torchspot.objectives.adaptation import Labelled
from torchspot.objectives.domains import Domains, open_domains
from torchspot.objectives.teacher import SOURCE, TARGET
from torchspot.plans.classifier import Labeller
from torchspot.random import Key
from torchspot.training.engine import Eager
from torchspot.training.optimizers import Adam
from torchspot.training.players import Draw, Player, Stream
from torchspot.training.ranks import ranks_of
from torchspot.types import Callback, Engine

Features = Callable[[Tensor, Tensor], Float[Tensor, "batch dim"]]
"""By what samples are compared: of a batch of samples, and of their embeddings."""


def of_embeddings(u: Tensor, h: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """By embeddings, as DeepJDOT does."""
    return h


def of_samples(u: Tensor, h: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch numbers"]:
    """By the samples as they are: JDOT on mini-batches, which DeepJDOT's authors call StochJDOT."""
    return u.flatten(1)


class DeepJDOT(Labeller):
    """min over D and couplings γ of batches: E ℰ(D(x), v) + Σ γ_ij (α ‖g(x_i) − g(y_j)‖² + λ ‖v_i − D(y_j)‖²).

    γ is the exact optimal coupling of each pair of batches, by POT on the host, with the source drawn class by class;
    the last term is the distance of one-hot labels from probabilities in γ, and a cross-entropy in the loss. Training
    starts from a classifier of the source.

    Args:
        features: by what samples are compared (g): `of_embeddings`, or `of_samples` for StochJDOT.
        feature_weight: α.
        label_weight: λ.
        change: through which samples are seen in training.
        judges: builder of the network, of which the classifier is used; by default as DASPOT has it.
        learning_rate: Adam's.
        source_steps: of the source classifier from which it starts.
        steps: of the adaptation.
        batch_size: samples of each domain a step.
        seed: of everything random.
        engine: where and how to train; if None, `Eager()`: steps that wait for the host cannot be recorded.
        callbacks: called at logged steps, of the source classifier and then of the adaptation.

    After `fit`: `classes_`, `classifier_` and `history_`.

    Reference: "DeepJDOT: Deep Joint Distribution Optimal Transport for Unsupervised Domain Adaptation", B. B. Damodaran
    et al., 2018.
    """

    def __init__(
        self,
        *,
        features: Features = of_embeddings,
        feature_weight: float = 1e-3,
        label_weight: float = 1e-4,
        change: Change = Unchanged(),  # noqa: B008
        judges: JudgeBuilder | None = None,
        learning_rate: float = 1e-4,
        source_steps: int = 3000,
        steps: int = 5000,
        batch_size: int = 500,
        seed: int = 0,
        engine: Engine | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.features = features
        self.feature_weight = feature_weight
        self.label_weight = label_weight
        self.change = change
        self.judges = judges
        self.learning_rate = learning_rate
        self.source_steps = source_steps
        self.steps = steps
        self.batch_size = batch_size
        self.seed = seed
        self.engine = engine
        self.callbacks = callbacks

    def fit(self, Xs: Any, ys: Any, Xt: Any) -> Self:
        """Learns from source samples, their labels, and target samples."""
        if min(self.feature_weight, self.label_weight) < 0:
            raise InvalidArgument("feature_weight and label_weight must be at least 0.")
        engine = Eager() if self.engine is None else self.engine
        domains = open_domains(Xs, ys, Xt, engine=engine, seed=self.seed)
        source = Supervised(
            judges=self.judges,
            change=self.change,
            steps=self.source_steps,
            seed=self.seed,
            engine=self.engine,
            callbacks=self.callbacks,
        )
        judges = source.fit_to(domains).judges
        judges.take_for(TARGET, SOURCE)
        run = ClassifierFit(domains, judges, averaging=0.0, marginal=TARGET)
        data = domains.units.data_dtype
        streams = [
            Stream(domains.balanced(), self.batch_size, data),
            Stream(domains.target, self.batch_size, data),
            Stream(uniform(self.change.dim), 2 * self.batch_size, engine.dtype),
        ]
        draw = Draw(Key(self.seed, "deepjdot", ranks_of(engine).rank), *streams, device=engine.device)
        optimizer = Adam(self.learning_rate)
        loss = self._loss(judges, domains)
        player = Player("classifier", (judges, run.average), optimizer, draw, loss, after_step=run.after_step)
        run.go(player, self.steps, engine, self.callbacks)
        self.classes_, self.history_ = domains.labels.classes, run.history.records
        self.classifier_ = run.classifier()
        return self

    def _loss(self, judges: Judges, domains: Domains) -> Callable[[tuple[Tensor, ...]], Float[Tensor, ""]]:
        def loss(batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
            x, v = Labelled.parted(batch[0], domains.shape)
            us = self.change(torch.cat(domains.units.from_data((x, batch[1]))), batch[2]).chunk(2)
            hs = judges.embed_all([(u, k, True) for k, u in enumerate(us)])
            scores = [judges.scores(h).to(us[0].dtype) for h in hs]
            g = [self.features(u, h).to(u.dtype) for u, h in zip(us, hs, strict=True)]
            partner = self._partners(g, v, scores[TARGET])
            near = (g[SOURCE] - g[TARGET][partner]).square().sum(1).mean()
            alike = cross_entropy(scores[TARGET][partner], v)
            return cross_entropy(scores[SOURCE], v) + self.feature_weight * near + self.label_weight * alike

        return loss

    @torch.no_grad()
    def _partners(
        self, g: list[Tensor], v: Int[Tensor, " batch"], scores: Float[Tensor, "batch classes"]
    ) -> Int[Tensor, " batch"]:
        """For each source sample the target sample that exact transport of the batch gives it."""
        labels = one_hot(v, scores.shape[1]).to(scores.dtype)
        near = torch.cdist(g[SOURCE], g[TARGET]).square()
        alike = torch.cdist(labels, scores.softmax(1)).square()
        matrix = self.feature_weight * near + self.label_weight * alike
        return by_pot(matrix.double().cpu()).to(v.device)
