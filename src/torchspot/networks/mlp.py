"""Fully connected networks whose first weights come from a generator that is passed in."""

__all__ = ["LEAK", "ParallelLinear", "filled_up", "leaky", "linear", "mlp", "parallel"]

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

LEAK = 0.2
"""Slope of LeakyReLU below 0, as in the tables of the paper's appendix."""


class ParallelLinear(nn.Module):
    """Linear layers side by side, one for each marginal, as one batched product: h_i ↦ W_i h_i + b_i.

    Samples are columns: what then runs over the samples of one unit runs over neighbours in memory. Layers of
    different sizes are filled up with zeros, which have no gradient and so stay zero.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        outputs, inputs = (max(sizes) for sizes in zip(*(layer.weight.shape for layer in layers), strict=True))
        self.weight = nn.Parameter(torch.stack([filled_up(layer.weight.detach(), outputs, inputs) for layer in layers]))
        self.bias = nn.Parameter(torch.stack([filled_up(layer.bias.detach()[:, None], outputs, 1) for layer in layers]))

    def forward(self, h: Float[Tensor, "marginals inputs batch"]) -> Float[Tensor, "marginals outputs batch"]:
        return torch.baddbmm(self.bias, self.weight, h)


def parallel(
    inputs: Sequence[int], outputs: Sequence[int], rng: torch.Generator, *, aligned: bool = False
) -> ParallelLinear:
    """One linear layer for each pair of sizes; aligned ones start with equal weights."""
    start = rng.get_state()
    layers = []
    for sizes in zip(inputs, outputs, strict=True):
        if aligned:
            rng.set_state(start)
        layers.append(linear(*sizes, rng))
    return ParallelLinear(layers)


def mlp(sizes: list[int], rng: torch.Generator, *, activation: Callable[[], nn.Module] | None = None) -> nn.Sequential:
    """Linear layers of these sizes with LeakyReLU (or another activation) between them.

    >>> mlp([2, 8, 1], torch.Generator())
    Sequential(
      (0): Linear(in_features=2, out_features=8, bias=True)
      (1): LeakyReLU(negative_slope=0.2, inplace=True)
      (2): Linear(in_features=8, out_features=1, bias=True)
    )
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [linear(inputs, outputs, rng), (activation or leaky)()]
    return nn.Sequential(*layers[:-1])


def leaky() -> nn.LeakyReLU:
    """The paper's activation, in place: it follows a linear layer, whose gradient does not need its output."""
    return nn.LeakyReLU(LEAK, inplace=True)


def linear(inputs: int, outputs: int, rng: torch.Generator) -> nn.Linear:
    """A linear layer, weights and bias uniform on ±1/√inputs."""
    layer = nn.Linear(inputs, outputs, device="meta")
    bound = 1 / math.sqrt(inputs)
    layer.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound, generator=rng))
    layer.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound, generator=rng))
    return layer


def filled_up(matrix: Float[Tensor, "rows columns"], rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """The matrix in the upper left corner of one of this size, zeros elsewhere."""
    missing = (0, columns - matrix.shape[1], 0, rows - matrix.shape[0])
    return functional.pad(matrix, missing) if any(missing) else matrix
