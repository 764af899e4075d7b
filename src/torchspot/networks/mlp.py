"""Fully connected networks whose first weights come from a generator that is passed in."""

__all__ = ["LEAK", "linear", "mlp"]

import math
from itertools import pairwise

import torch
from torch import nn

LEAK = 0.2
"""Slope of LeakyReLU below 0, as in the tables of the paper's appendix."""


def mlp(sizes: list[int], rng: torch.Generator) -> nn.Sequential:
    """Linear layers of these sizes with LeakyReLU between them.

    >>> mlp([2, 8, 8, 1], torch.Generator())
    Sequential(
      (0): Linear(in_features=2, out_features=8, bias=True)
      (1): LeakyReLU(negative_slope=0.2)
      (2): Linear(in_features=8, out_features=8, bias=True)
      (3): LeakyReLU(negative_slope=0.2)
      (4): Linear(in_features=8, out_features=1, bias=True)
    )
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [linear(inputs, outputs, rng), nn.LeakyReLU(LEAK)]
    return nn.Sequential(*layers[:-1])


def linear(inputs: int, outputs: int, rng: torch.Generator) -> nn.Linear:
    """A linear layer, weights and bias uniform on ±1/√inputs."""
    layer = nn.Linear(inputs, outputs, device="meta")
    bound = 1 / math.sqrt(inputs)
    layer.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound, generator=rng))
    layer.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound, generator=rng))
    return layer
