"""Adversaries that tell domains apart by the features of their samples."""

__all__ = ["Adversaries"]

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.networks.judges import scaled_weights
from torchspot.networks.mlp import leaky
from torchspot.types import Shape

_POOLED, _WIDTH = 4, 128


class Adversaries(nn.Module):
    """One network for each kind of features: maps are brought to 4 × 4, then there is one hidden layer."""

    @torch.random.fork_rng(devices=[])
    def __init__(self, features: Sequence[Shape], rng: torch.Generator) -> None:
        super().__init__()
        self.networks = nn.ModuleList(_network(shape) for shape in features)
        scaled_weights(self.modules(), rng)

    def forward(self, features: Sequence[Tensor]) -> Float[Tensor, "features batch"]:
        return torch.stack([net(h).flatten() for net, h in zip(self.networks, features, strict=True)])


def _network(shape: Shape) -> nn.Sequential:
    maps = len(shape) > 1
    pool: list[nn.Module] = [nn.AdaptiveAvgPool2d(_POOLED), nn.Flatten()] if maps else []
    return nn.Sequential(
        *pool, nn.Linear(shape[0] * (_POOLED**2 if maps else 1), _WIDTH), leaky(), nn.Linear(_WIDTH, 1)
    )
