"""Judging pictures: do the two of a pair belong together, and are they as good and as varied as real ones?"""

__all__ = [
    "Labels",
    "Pairing",
    "colour_spread",
    "frechet_distance",
    "in_parts",
    "kernel_distance",
    "label_agreement",
    "labels",
    "pairing",
    "pairing_of",
    "precision_recall",
    "random_features",
]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from torchspot.errors import InvalidArgument
from torchspot.networks.convolutional import normal_weights
from torchspot.types import Cost, Plan, Samples

Features = Float[Tensor, "batch dim"]
Pictures = Float[Tensor, "batch channels height width"]

_CHUNK = 1000


@dataclass(frozen=True)
class Pairing:
    """The cost of pairs beside that of the same samples shuffled: how much belonging together saves."""

    paired: float
    shuffled: float
    error: float
    """Standard error of the difference."""

    @property
    def ratio(self) -> float:
        """0 where pairs cost nothing, 1 where pairing is no better than chance."""
        return self.paired / self.shuffled

    @property
    def deviations(self) -> float:
        """Standard errors between the two."""
        return (self.shuffled - self.paired) / self.error if self.error else math.inf


def pairing(plan: Plan, n: int = 10_000, *, seed: int = 0, cost: Cost | None = None) -> Pairing:
    """Mean cost of n pairs of a plan, and of the same samples with partners shifted by one; another cost if given."""
    return pairing_of(plan.sample(n, seed), plan.cost if cost is None else cost)


def pairing_of(samples: Samples, cost: Cost) -> Pairing:
    """The same for samples, row k of all of which belongs together."""
    first, *others = samples
    if len(first) < 2:
        raise InvalidArgument(f"pairing needs at least two joint samples, and got {len(first)}.")
    paired = in_parts(cost, first, *others)
    shuffled = in_parts(cost, first, *(x.roll(k, 0) for k, x in enumerate(others, start=1)))
    return Pairing(
        float(paired.mean()), float(shuffled.mean()), float((shuffled - paired).std()) / math.sqrt(len(first))
    )


class Labels(NamedTuple):
    """What classifiers, one of each marginal, say of joint samples."""

    classes: Int[Tensor, "marginals batch"]
    certainty: Float[Tensor, "marginals batch"]
    """The probability that each gives to its class."""

    @property
    def agree(self) -> Bool[Tensor, " batch"]:
        """Whether all say the same."""
        return (self.classes == self.classes[0]).all(0)


def labels(samples: Samples, classifiers: Sequence[Callable[[Tensor], Tensor]]) -> Labels:
    """The classes of joint samples by the classifiers' scores (logits)."""
    if len(samples) != len(classifiers):
        raise InvalidArgument(f"there are {len(samples)} marginals and {len(classifiers)} classifiers. Give one each.")
    found = [in_parts(scores, x).softmax(1).max(1) for x, scores in zip(samples, classifiers, strict=True)]
    return Labels(torch.stack([f.indices for f in found]), torch.stack([f.values for f in found]))


def label_agreement(samples: Samples, classifiers: Sequence[Callable[[Tensor], Tensor]]) -> float:
    """The share of joint samples to which the classifiers, one of each marginal, give the same class."""
    return float(labels(samples, classifiers).agree.double().mean())


def frechet_distance(a: Features, b: Features) -> float:
    """‖m_a − m_b‖² + tr(Σ_a + Σ_b − 2 (Σ_a Σ_b)^½): the squared W2 distance of Gaussians with these moments.

    It is biased upwards for few samples: compare values of equal numbers of samples only.

    Reference: "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium", M. Heusel et al.,
    2017.
    """
    a, b = _checked(a, b)
    covariances = [torch.cov(x.mT).reshape(x.shape[1], x.shape[1]) for x in (a, b)]
    values, vectors = torch.linalg.eigh(covariances[0])
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    cross = torch.linalg.eigvalsh(root @ covariances[1] @ root).clamp(min=0).sqrt().sum()
    apart = (a.mean(0) - b.mean(0)).square().sum() + sum(c.trace() for c in covariances) - 2 * cross
    return max(0.0, float(apart))


def kernel_distance(a: Features, b: Features, *, block: int = 1000) -> float:
    """The squared maximum mean discrepancy with the kernel (⟨x, y⟩ / dim + 1)³, without bias, over blocks of samples.

    Features are centred at those of b and divided by their spread first. It may come out slightly below 0.

    Reference: "Demystifying MMD GANs", M. Bińkowski et al., 2018.
    """
    a, b = _checked(a, b)
    spread = b.var(0).mean().sqrt().clamp(min=1e-12)
    a, b = ((x - b.mean(0)) / spread for x in (a, b))
    count = min(len(a), len(b))
    size = min(block, count)
    values = [_mmd(a[k : k + size], b[k : k + size]) for k in range(0, count - size + 1, size)]
    return sum(values) / len(values)


def precision_recall(real: Features, fake: Features, *, neighbours: int = 3) -> tuple[float, float]:
    """The share of generated samples among the real ones, and of real ones among the generated ones.

    A sample is among others if it lies closer to one of them than that one's k-th nearest neighbour.

    Reference: "Improved Precision and Recall Metric for Assessing Generative Models", T. Kynkäänniemi et al., 2019.
    """
    real, fake = _checked(real, fake)
    if min(len(real), len(fake)) <= neighbours:
        raise InvalidArgument(f"precision_recall needs more than {neighbours} samples of each.")
    apart = torch.cdist(fake, real)

    def reach(x: Features) -> Float[Tensor, " batch"]:
        return torch.cdist(x, x).kthvalue(neighbours + 1, dim=1).values

    precision = (apart <= reach(real)).any(1).double().mean()
    recall = (apart.mT <= reach(fake)).any(1).double().mean()
    return float(precision), float(recall)


def colour_spread(pictures: Pictures) -> float:
    """How much the mean colour differs from picture to picture: the root of its total variance."""
    return float(pictures.double().mean((2, 3)).var(0).sum().sqrt())


def random_features(channels: int, *, seed: int = 0, width: int = 32) -> Callable[[Pictures], Features]:
    """Features of pictures from three convolutions with fixed random weights, averaged over quarters of the picture.

    For pictures without labels. They see colours, edges and textures in place, and nothing of what is shown: compare
    their distances with those between two halves of real pictures.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
    normal_weights(network, torch.Generator().manual_seed(seed))
    network.requires_grad_(False)
    for layer in layers[::2]:
        assert isinstance(layer, nn.Conv2d)
        layer.weight *= math.sqrt(2 / layer.weight[0].numel()) / float(layer.weight.std())

    def features(x: Pictures) -> Features:
        return in_parts(network.to(x.device), x.float() * 2 - 1)

    return features


@torch.no_grad()
def in_parts(function: Callable[..., Tensor], *xs: Tensor) -> Tensor:
    """A function of samples, some rows at a time, in float64."""
    parts = zip(*(torch.split(x, _CHUNK) for x in xs), strict=True)
    return torch.cat([function(*part).double() for part in parts])


def _mmd(x: Features, y: Features) -> float:
    def kernel(p: Features, q: Features) -> Tensor:
        return (p @ q.mT / p.shape[1] + 1) ** 3

    n, xx, yy = len(x), kernel(x, x), kernel(y, y)
    within = (xx.sum() - xx.trace() + yy.sum() - yy.trace()) / (n * (n - 1))
    return float(within - 2 * kernel(x, y).mean())


def _checked(a: Features, b: Features) -> tuple[Features, Features]:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise InvalidArgument(
            f"features must be rows of equal length, at least two, and have shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}. For pictures take features of them first: evaluation.images.random_features(3)(x)."
        )
    return a.double().cpu(), b.double().cpu()
