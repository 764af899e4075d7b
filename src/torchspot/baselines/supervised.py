"""A classifier learned from labels alone: of the source, or (the oracle) of the target itself."""

__all__ = ["ClassifierFit", "Supervised", "built_judges"]

import copy
from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from torchspot.errors import InvalidArgument
from torchspot.latents import uniform
from torchspot.networks.augmentation import Change, Unchanged
from torchspot.networks.judges import JudgeBuilder, Judges, JudgeShapes, usual_judges
from torchspot.objectives.adaptation import Labelled
from torchspot.objectives.domains import Domains, open_domains
from torchspot.objectives.teacher import SOURCE, Teacher
from torchspot.plans.classifier import Classifier, Labeller
from torchspot.random import Key, generator
from torchspot.training.callbacks import Divergence, History
from torchspot.training.engine import engine_for
from torchspot.training.loop import Training, train
from torchspot.training.optimizers import Adam
from torchspot.training.players import Draw, Player, Stream
from torchspot.training.ranks import ranks_of
from torchspot.training.schedules import Cosine
from torchspot.types import Callback, Engine


class ClassifierFit:
    """One player that trains the classifiers of `Judges`, and their average; what callbacks see as the run."""

    def __init__(self, domains: Domains, judges: Judges, *, averaging: float, marginal: int) -> None:
        self.domains, self.judges, self._marginal = domains, judges, marginal
        self.average = Teacher(judges, averaging, looks=False)
        self.history = History()

    def go(self, player: Player, steps: int, engine: Engine, callbacks: Sequence[Callback]) -> None:
        """Trains to the end."""
        all_of_them: tuple[Any, ...] = (Divergence(), *callbacks, self.history)
        for callback in all_of_them:
            if hasattr(callback, "begin"):
                callback.begin(self)
        log_every = max(1, min(100, steps // 20))
        train(Training([player], steps), engine=engine, callbacks=all_of_them, log_every=log_every)

    def after_step(self) -> None:
        """The average follows."""
        self.average.follow(self.judges)

    def classifier(self, marginal: int = -1) -> Classifier:
        """A copy of the average as it stands, for samples of the domain that it is for, whichever is asked."""
        judges = copy.deepcopy(self.average.judges).eval()
        return Classifier(judges, self.domains.units, self.domains.labels.classes, self._marginal)


class Supervised(Labeller):
    """Learns from samples and their labels, and knows of no other domain.

    Args:
        judges: builder of the network, of which the classifier is used; by default as DASPOT has it.
        change: through which samples are seen in training.
        learning_rate: Adam's, falling to 0.
        averaging: decay of the average that becomes the classifier; 0: the last iterate.
        steps: of training.
        batch_size: samples a step.
        seed: of everything random.
        engine: where and how to train; if None, as DASPOT's.
        callbacks: called at logged steps.

    After `fit`: `classes_`, `classifier_` (the average), `judges_` (the last iterate) and `history_`.
    """

    how: ClassVar[str] = "fit(X, y)"

    def __init__(
        self,
        *,
        judges: JudgeBuilder | None = None,
        change: Change = Unchanged(),  # noqa: B008
        learning_rate: float = 1e-3,
        averaging: float = 0.99,
        steps: int = 3000,
        batch_size: int = 128,
        seed: int = 0,
        engine: Engine | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.judges = judges
        self.change = change
        self.learning_rate = learning_rate
        self.averaging = averaging
        self.steps = steps
        self.batch_size = batch_size
        self.seed = seed
        self.engine = engine
        self.callbacks = callbacks

    def fit(self, X: Any, y: Any) -> Self:
        """Learns from samples, with rows, and one label for each."""
        engine = engine_for(self.engine)
        domains = open_domains(X, y, X, engine=engine, seed=self.seed)
        run = self.fit_to(domains)
        self.classes_, self.history_ = domains.labels.classes, run.history.records
        self.classifier_, self.judges_ = run.classifier(), run.judges
        return self

    def fit_to(self, domains: Domains) -> ClassifierFit:
        """Learns from the source of these, in their units."""
        for name in ("steps", "batch_size"):
            if not (isinstance(getattr(self, name), Integral) and getattr(self, name) >= 1):
                raise InvalidArgument(f"{name} must be a whole number of at least 1, and is {getattr(self, name)!r}.")
        engine = engine_for(self.engine, pictures=domains.pictures)
        judges = built_judges(self.judges, domains, self.seed)
        run = ClassifierFit(domains, judges, averaging=self.averaging, marginal=SOURCE)

        def loss(batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
            x, v = Labelled.parted(batch[0], domains.shape)
            u = self.change(domains.units.from_data((x,), (SOURCE,))[0], batch[1])
            return cross_entropy(judges.scores(judges.embed(u, SOURCE, real=True)).to(domains.units.dtype), v)

        streams = [
            Stream(domains.source, self.batch_size, domains.units.data_dtype),
            Stream(uniform(self.change.dim), self.batch_size, engine.dtype),
        ]
        draw = Draw(Key(self.seed, "supervised", ranks_of(engine).rank), *streams, device=engine.device)
        optimizer = Adam(self.learning_rate, schedule=Cosine())
        player = Player("classifier", (judges, run.average), optimizer, draw, loss, after_step=run.after_step)
        run.go(player, self.steps, engine, self.callbacks)
        return run


def built_judges(builder: JudgeBuilder | None, domains: Domains, seed: int) -> Judges:
    """Judges of this builder, or those that DASPOT has by default."""
    shapes = JudgeShapes((domains.shape,) * 2, len(domains.labels.classes))
    device = domains.units.scale.device
    builder = builder or usual_judges(pictures=domains.pictures, gpu=device.type == "cuda")
    return builder(shapes, generator(Key(seed, "judge weights"))).to(device, domains.units.dtype)
