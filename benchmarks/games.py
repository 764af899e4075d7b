"""The games that engines are measured on: sections 5.1 to 5.4, and a small stand-in for pictures."""

import numpy as np
import torch
from torch import Tensor, nn

from torchspot import DASPOT, costs, latents, presets
from torchspot.data.arrays import Rows
from torchspot.estimators.adaptation_run import AdaptationRun
from torchspot.networks import convolutional, ode
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import InDataUnits, Shapes, Units, separate
from torchspot.networks.lipschitz import Control, Orthogonal
from torchspot.networks.solvers import RK4, Solver
from torchspot.objectives import Transport
from torchspot.objectives.entropic import Entropic
from torchspot.random import Key
from torchspot.training.loop import Training
from torchspot.training.optimizers import OptimisticAdam
from torchspot.training.players import Draw, Player, Stream
from torchspot.training.replicas import stacked
from torchspot.training.schedules import Cosine
from torchspot.types import Engine

STEPS = 5000
BATCH = 512
FOUR = RK4(4)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def optimizer(rate: float) -> OptimisticAdam:
    return OptimisticAdam(rate, (0.5, 0.99), Cosine())


def section_5_1(
    engine: Engine, *, width: int, replicas: int = 1, control: Control | None = None, host_data: bool = False
) -> Training:
    """Two Gaussians in the plane, Euclidean cost, the default recipe."""
    shapes = Shapes(2, ((2,), (2,)))
    data = [torch.randn(100_000, 2, generator=rng(k)) + torch.tensor([5.0 * k - 2.5, 0]) for k in (0, 1)]
    samplers = [Rows(x if host_data else x.to(engine.device, engine.dtype)) for x in data]
    draws = _draws(engine, replicas, latents.normal(2), samplers)

    def players(seed: int) -> list[Player]:
        units = Units(tuple(x.mean(0).to(engine.dtype) for x in data), 1.0, dtype=engine.dtype)
        generator = InDataUnits(separate(width, 3)(shapes, rng(2 * seed)), units).to(engine.device, engine.dtype)
        critics = mlp_critics(width, 3, control or Orthogonal())(shapes, rng(2 * seed + 1))
        critics = critics.to(engine.device, engine.dtype)
        eta = torch.tensor([2.0, 2.0], device=engine.device, dtype=engine.dtype)
        game = Transport(generator, critics, costs.euclidean, eta, (0, 1))
        return [
            Player(
                "critics",
                (critics,),
                optimizer(5e-3),
                draws[0],
                game.critic_loss,
                repeats=lambda step: 1,
                after_step=critics.after_step,
            ),
            Player("generator", (generator,), optimizer(2e-3), draws[1], game.generator_loss, averaging=0.999),
        ]

    return _training(players, replicas)


class Pictures(nn.Module):
    """Noise to two pictures of 16 × 16: a trunk with batch norm that both share, and a head for each."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(16, 32 * 16, bias=False),
            nn.Unflatten(1, (32, 4, 4)),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.heads = nn.ModuleList(nn.ConvTranspose2d(16, 1, 4, 2, 1) for _ in range(2))

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        h = self.trunk(z)
        return tuple(head(h).tanh() for head in self.heads)


class PictureCritics(nn.Module):
    """One first layer for each marginal, then the same layers (tied) for both; weights clipped after each step."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Sequential(nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten())
        last = nn.Linear(32 * 16, 1, bias=False)
        self.networks = nn.ModuleList(nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), shared, last) for _ in range(2))

    def forward(self, xs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(network(x).squeeze(1) for network, x in zip(self.networks, xs, strict=True))

    @torch.no_grad()
    def after_step(self) -> None:
        for parameter in self.parameters():
            parameter.copy_(parameter.clamp(-0.05, 0.05))


def pictures(engine: Engine, *, replicas: int = 1) -> Training:
    """Convolutions, batch norm and tied layers; two critic steps on odd steps."""
    samplers = [Rows(torch.rand(2000, 1, 16, 16, generator=rng(k)).to(engine.device, engine.dtype)) for k in (0, 1)]
    draws = _draws(engine, replicas, latents.normal(16), samplers, size=64)

    def players(seed: int) -> list[Player]:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            generator, critics = (m.to(engine.device, engine.dtype) for m in (Pictures(), PictureCritics()))

        def critic_loss(batch: tuple[Tensor, ...]) -> Tensor:
            z, *xs = batch
            with torch.no_grad():
                generated = generator(z)
            real, fake = critics(tuple(xs)), critics(generated)
            return torch.stack([r.mean() - f.mean() for r, f in zip(real, fake, strict=True)]).sum()

        def generator_loss(batch: tuple[Tensor, ...]) -> Tensor:
            x, y = generator(batch[0])
            return (x - y).square().mean() + 10 * torch.stack([value.mean() for value in critics((x, y))]).sum()

        after = critics.after_step
        return [
            Player("critics", (critics,), optimizer(1e-3), draws[0], critic_loss, lambda step: 1 + step % 2, after),
            Player("generator", (generator,), optimizer(1e-3), draws[1], generator_loss, averaging=0.99),
        ]

    return _training(players, replicas)


def section_5_3(engine: Engine, *, replicas: int = 1, size: int = 64, batch: int = 64) -> Training:
    """Pictures in colour, contour cost, the recipe for pictures."""
    recipe = presets.pictures()
    width = recipe.sizes(3 * size**2, pictures=True, gpu=True).width
    latent = latents.pieces(116)
    shapes = Shapes(latent.dim, ((3, size, size),) * 2)
    data = [torch.randint(256, (2000, 3, size, size), generator=rng(k), dtype=torch.uint8) for k in (0, 1)]
    samplers = [Rows(x.to(engine.device), scale=1 / 255) for x in data]
    draws = _draws(engine, replicas, latent, samplers, size=batch)
    eta = torch.full((2,), 300.0, device=engine.device, dtype=engine.dtype)

    def players(seed: int) -> list[Player]:
        units = Units(tuple(torch.full((3, size, size), 0.5) for _ in data), 0.5, dtype=engine.dtype)
        network = convolutional.pictures(width)(shapes, rng(2 * seed))
        generator = InDataUnits(network, units).to(engine.device, engine.dtype)
        critics = convolutional.picture_critics(2 * width, recipe.control)(shapes, rng(2 * seed + 1))
        critics = critics.to(engine.device, engine.dtype)
        game = Transport(generator, critics, costs.contour, eta, (0, 1), adversarial=recipe.adversarial)
        after = critics.after_step
        rate, _ = recipe.rates(width)
        return [
            Player("critics", (critics,), optimizer(rate), draws[0], game.critic_loss, after_step=after),
            Player("generator", (generator,), optimizer(rate), draws[1], game.generator_loss, averaging=0.999),
        ]

    return _training(players, replicas)


def section_5_4(engine: Engine, *, size: int = 28, batch: int = 64) -> Training:
    """Adaptation of grey pictures with ten classes, the default recipe of DASPOT."""
    data = [torch.randint(256, (2000, 1, size, size), generator=rng(k), dtype=torch.uint8) for k in (0, 1)]
    daspot = DASPOT(engine=engine, batch_size=batch, steps=100_000)
    domains = open_domains(data[0], np.arange(2000) % 10, data[1], engine=engine, seed=0)
    return AdaptationRun(daspot, domains, None).training


def flow(
    engine: Engine, *, replicas: int = 1, sizes: tuple[int, ...] = (1, 1), solver: Solver = FOUR, batch: int = 1024
) -> Training:
    """Section 5.2: an ODE generator with its entropy, ε = 1, squared cost, the recipe of EntropicSPOT."""
    shapes = Shapes(sum(sizes), tuple((size,) for size in sizes))
    data = [torch.randn(100_000, size, generator=rng(k)) + k for k, size in enumerate(sizes)]
    samplers = [Rows(x.to(engine.device, engine.dtype)) for x in data]
    draws = _draws(engine, replicas, latents.normal(sum(sizes)), samplers, size=batch)
    eta = torch.tensor([15.0] * len(sizes), device=engine.device, dtype=engine.dtype)

    def players(seed: int) -> list[Player]:
        units = Units(tuple(x.mean(0).to(engine.dtype) for x in data), 1.0, dtype=engine.dtype)
        network = ode.flow(64, solver=solver)(shapes, rng(2 * seed))
        generator = InDataUnits(network, units).to(engine.device, engine.dtype)
        critics = mlp_critics(64, 3)(shapes, rng(2 * seed + 1)).to(engine.device, engine.dtype)
        game = Entropic(Transport(generator, critics, costs.squared_euclidean, eta, (0, 1)), 1.0)
        return [
            Player("critics", (critics,), optimizer(5e-3), draws[0], game.critic_loss, after_step=critics.after_step),
            Player("generator", (generator,), optimizer(2e-3), draws[1], game.generator_loss, averaging=0.998),
        ]

    return _training(players, replicas)


def _draws(engine: Engine, replicas: int, latent, samplers, size: int = BATCH) -> tuple[Draw, Draw]:
    noise = Stream(latent, size, engine.dtype)
    data = [Stream(sampler, size, engine.dtype) for sampler in samplers]
    k = None if replicas == 1 else replicas
    critics = Draw(Key(0, "critics"), noise, *data, device=engine.device, replicas=k)
    return critics, Draw(Key(0, "generator"), noise, device=engine.device, replicas=k)


def _training(players, replicas: int) -> Training:
    games = [players(seed) for seed in range(replicas)]
    return Training(games[0] if replicas == 1 else stacked(games), STEPS)
