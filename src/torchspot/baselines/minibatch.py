"""A map learned by least squares onto the partners that exact transport of mini-batches finds."""

__all__ = ["MinibatchRegression"]

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from torchspot import costs
from torchspot.data.points import as_points
from torchspot.data.sources import as_sampler
from torchspot.errors import InvalidArgument, NotFitted
from torchspot.exact import matched
from torchspot.networks.generators import Shapes, Units, around_affine
from torchspot.random import Key, generator, on
from torchspot.training.callbacks import Divergence
from torchspot.training.engine import engine_for
from torchspot.training.loop import Training, train
from torchspot.training.optimizers import Adam
from torchspot.training.players import Draw, Player, Stream
from torchspot.training.ranks import ranks_of
from torchspot.training.schedules import Cosine
from torchspot.types import Cost, Engine, Sampler

_PROBE, _CHUNK = 16_384, 1 << 16


@dataclass(frozen=True)
class CoupledBatches:
    """Batches of both marginals, standardised, in the order in which exact transport pairs them."""

    samplers: tuple[Sampler, Sampler]
    units: Units
    cost: Cost

    @property
    def device(self) -> torch.device:
        """Exact transport runs on the host."""
        return torch.device("cpu")

    def draw(self, size: int, generator: torch.Generator) -> Float[Tensor, "batch both"]:
        """Rows (x, y): two batches of so many, matched to each other."""
        drawn = (sampler.draw(size, on(sampler.device, generator)) for sampler in self.samplers)
        xs = tuple(x.to("cpu", self.units.data_dtype) for x in drawn)
        return torch.cat(self.units.from_data(matched(self.cost, xs)), dim=1)


class MinibatchRegression(BaseEstimator):
    """T minimises E‖T(x) − y‖² over pairs (x, y) of exact transport between mini-batches.

    The pairs of small batches are not those of the whole data, so T is biased towards the mean, the more the smaller
    the batch and the higher the dimension.

    Args:
        cost: function of one batch of each marginal that gives one number a row.
        width: units in each of three hidden layers.
        learning_rate: Adam's, falling to 0.
        steps: of training.
        batch_size: samples of each marginal a step.
        seed: of everything random.
        engine: where to train; if None, a GPU if there is one.

    Reference: "Learning with minibatch Wasserstein: asymptotic and gradient properties", K. Fatras et al., 2020.
    """

    def __init__(
        self,
        *,
        cost: Cost = costs.squared_euclidean,
        width: int = 128,
        learning_rate: float = 1e-3,
        steps: int = 8000,
        batch_size: int = 256,
        seed: int = 0,
        engine: Engine | None = None,
    ) -> None:
        self.cost = cost
        self.width = width
        self.learning_rate = learning_rate
        self.steps = steps
        self.batch_size = batch_size
        self.seed = seed
        self.engine = engine

    def fit(self, X: Any, Y: Any) -> "MinibatchRegression":
        """Learns the map between two data sets of equal dimension; anything `torchspot.data.as_sampler` takes."""
        for name in ("width", "steps", "batch_size"):
            if not getattr(self, name) >= 1:
                raise InvalidArgument(f"{name} must be at least 1, and is {getattr(self, name)}.")
        engine = engine_for(self.engine)
        first, second = (as_sampler(data, name=f"data set {k + 1}") for k, data in enumerate((X, Y)))
        if first.shape != second.shape or len(first.shape) != 1:
            raise InvalidArgument(
                f"MinibatchRegression takes rows of equal length, and got samples of shapes {first.shape} and "
                f"{second.shape}. Flatten each sample into one row."
            )
        drawn = (s.draw(_PROBE, generator(Key(self.seed, "probe"), s.device)).double().cpu() for s in (first, second))
        units = Units.of(ranks_of(engine).first(tuple(drawn)), engine.dtype)
        size = first.shape[0]
        network = around_affine(self.width, 3, (torch.eye(size),))(
            Shapes(size, (second.shape,)), generator(Key(self.seed, "map"))
        ).to(engine.device, engine.dtype)

        def loss(batch: tuple[Tensor, ...]) -> Tensor:
            x, y = batch[0].chunk(2, dim=1)
            return (network(x)[0] - y).square().sum(1).mean()

        stream = Stream(CoupledBatches((first, second), units, self.cost), self.batch_size, engine.dtype)
        draw = Draw(Key(self.seed, "pairs", ranks_of(engine).rank), stream, device=engine.device)
        player = Player("map", (network,), Adam(self.learning_rate, schedule=Cosine()), draw, loss, averaging=0.99)
        training = Training([player], self.steps)
        train(training, engine=engine, callbacks=(Divergence(),), log_every=max(1, self.steps // 20))
        self.units_, self.map_ = units.to(engine.device), training.averaged("map")[0]
        return self

    @torch.no_grad()
    def transform(self, X: Any) -> np.ndarray:
        """Where these points go."""
        if not hasattr(self, "map_"):
            raise NotFitted("this MinibatchRegression has no map yet. Call fit(X, Y) first.")
        units: Units = self.units_
        network: nn.Module = self.map_
        points = as_points(X, tuple(units.means[0].shape), "X").to(units.scale.device, units.data_dtype)
        moved = [network(units.from_data((part,), (0,))[0])[0] for part in torch.split(points, _CHUNK)]
        return torch.addcmul(units.means[1], torch.cat(moved).to(units.data_dtype), units.scale).cpu().numpy()
