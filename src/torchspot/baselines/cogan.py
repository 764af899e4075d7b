"""CoGAN: pairs of pictures by sharing layers, without a cost."""

__all__ = ["CoGAN"]

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from torchspot import costs, latents
from torchspot.data.sources import as_sampler
from torchspot.errors import InvalidArgument, NotFitted
from torchspot.latents import Latent
from torchspot.networks.generators import InDataUnits, Shapes, Units
from torchspot.networks.tied import tied, tied_critics
from torchspot.objectives.adversarial import Adversarial, Logistic
from torchspot.objectives.transport import Transport
from torchspot.plans import PushforwardPlan
from torchspot.random import Key, generator
from torchspot.training.callbacks import Divergence, History
from torchspot.training.engine import engine_for
from torchspot.training.loop import Training, train
from torchspot.training.optimizers import Adam, Optimizer
from torchspot.training.players import Draw, Player, Stream, nothing
from torchspot.training.ranks import ranks_of
from torchspot.types import Callback, Cost, Engine, Sampler, Samples

Builder = Callable[[Shapes, torch.Generator], nn.Module]

_PROBE = 1024


class CoGAN(BaseEstimator):
    """Two generators that share their first layers, two critics that share their last; nothing else couples them.

    Args:
        cost: by which the plan is judged; training does not see it.
        generator: builder of the generators.
        critics: builder of the critics.
        latent: the noise.
        adversarial: what critics are asked.
        optimizer: of both players.
        averaging: decay of the average of the generator that becomes the plan; 0 takes the last iterate.
        steps: of both players.
        batch_size: samples of each marginal a step.
        seed: of everything random.
        engine: where and how to train; if None, `Captured()` on a GPU and `Eager()` without one.
        callbacks: called at logged steps.

    After `fit`: `plan_`, `critics_` and `history_`. No rows are held out: an audit judges by rows that training saw.

    Reference: "Coupled Generative Adversarial Networks", M.-Y. Liu and O. Tuzel, 2016.
    """

    def __init__(
        self,
        *,
        cost: Cost = costs.contour,
        generator: Builder = tied(),  # noqa: B008
        critics: Builder = tied_critics(),  # noqa: B008
        latent: Latent = latents.normal(100),  # noqa: B008
        adversarial: Adversarial = Logistic(),  # noqa: B008
        optimizer: Optimizer = Adam(2e-4, (0.5, 0.999)),  # noqa: B008
        averaging: float = 0.0,
        steps: int = 20_000,
        batch_size: int = 128,
        seed: int = 0,
        engine: Engine | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.cost = cost
        self.generator = generator
        self.critics = critics
        self.latent = latent
        self.adversarial = adversarial
        self.optimizer = optimizer
        self.averaging = averaging
        self.steps = steps
        self.batch_size = batch_size
        self.seed = seed
        self.engine = engine
        self.callbacks = callbacks

    def fit(self, *sources: Any) -> "CoGAN":
        """Learns from two or more sets of pictures of one size; anything `torchspot.data.as_sampler` takes."""
        if len(sources) < 2:
            raise InvalidArgument(f"CoGAN needs at least two sets of pictures, and got {len(sources)}.")
        engine = engine_for(self.engine, pictures=True)
        opened = [as_sampler(source, name=f"data set {k + 1}") for k, source in enumerate(sources)]
        probe = (s.draw(_PROBE, generator(Key(self.seed, "probe"), s.device)).double().cpu() for s in opened)
        units = Units.spanning(ranks_of(engine).first(tuple(probe)), engine.dtype)
        shapes = Shapes(self.latent.dim, tuple(s.shape for s in opened))
        made = InDataUnits(self.generator(shapes, generator(Key(self.seed, "generator weights"))), units)
        critics = self.critics(shapes, generator(Key(self.seed, "critic weights"))).to(engine.device, engine.dtype)
        made = made.to(engine.device, engine.dtype)
        samplers = [s.to(engine.device, engine.dtype) if hasattr(s, "to") else s for s in opened]
        training = Training(self._players(made, critics, samplers, engine), self.steps)
        history = History()
        callbacks = (Divergence(), *self.callbacks, history)
        train(training, engine=engine, callbacks=callbacks, log_every=max(1, min(100, self.steps // 20)))
        self.history_ = history.records
        network: Any = training.averaged("generator")[0]
        facts = {
            "steps": training.step,
            "seed": int(self.seed),
            "engine": "; ".join(sorted(set(training.ran.values()))),
        }
        self.critics_ = critics
        self.plan_ = PushforwardPlan(network.eval(), self.latent, self.cost, (), facts)
        return self

    def sample(self, n: int, seed: int | None = None) -> Samples:
        """n tuples of pictures."""
        if not hasattr(self, "plan_"):
            raise NotFitted("this CoGAN has no plan yet. Call fit(X, Y) first.")
        return self.plan_.sample(n, seed)

    def _players(
        self, made: InDataUnits, critics: nn.Module, samplers: Sequence[Sampler], engine: Engine
    ) -> list[Player]:
        eta = torch.ones(len(samplers), device=engine.device, dtype=engine.dtype)
        game = Transport(made, critics, _free, eta, tuple(range(len(samplers))), adversarial=self.adversarial)
        noise = Stream(self.latent, self.batch_size, engine.dtype)
        data = [Stream(sampler, self.batch_size, engine.dtype) for sampler in samplers]

        def draw(role: str, *streams: Stream) -> Draw:
            return Draw(Key(self.seed, role, ranks_of(engine).rank), *streams, device=engine.device)

        after = getattr(critics, "after_step", nothing)
        return [
            Player(
                "critics", (critics,), self.optimizer, draw("critics", noise, *data), game.critic_loss, after_step=after
            ),
            Player(
                "generator",
                (made,),
                self.optimizer,
                draw("generator", noise),
                game.generator_loss,
                averaging=self.averaging,
            ),
        ]


def _free(*xs: Tensor) -> Tensor:
    """The cost that is 0."""
    return 0 * xs[0].flatten(1)[:, 0]
