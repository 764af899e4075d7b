"""Problems whose answers are known: each draws samples and says the optimal cost."""

from dataclasses import dataclass

import numpy as np
import torch

from torchspot import costs
from torchspot.training.players import Player
from torchspot_paper.problems import dimension_problems, gaussians


@dataclass(frozen=True)
class Known:
    xs: tuple[np.ndarray, ...]
    value: float


def two_gaussians(n: int, *, dim: int = 2, apart: float = 5.0, squared: bool = False, seed: int = 0) -> Known:
    """Section 5.1: N(∓apart/2 e_1, I); the optimal plan is the translation under both costs."""
    problem = gaussians(dim, cost=costs.squared_euclidean if squared else costs.euclidean, apart=apart)
    return Known(problem.sample(n, seed), problem.value)


def stretch(n: int, *, dim: int, seed: int = 0) -> Known:
    """Y = X + r X/‖X‖, r uniform on [1, 3] and independent of X: W1 = 2."""
    problem = dimension_problems(dim)["stretch"]
    return Known(problem.sample(n, seed), problem.value)


def three_gaussians(n: int, *, seed: int = 0) -> Known:
    """Three Gaussians in the plane under Σ_{i<j} ‖x_i − x_j‖², with the closed form of `multi_bures`."""
    rng = np.random.default_rng(seed)
    means = [np.array(m) for m in ([0.0, 0.0], [1.0, 0.0], [0.0, 1.5])]
    roots = [np.eye(2), np.array([[1.5, 0.5], [0.5, 0.8]]), np.diag([0.5, 1.2])]
    xs = tuple(m + rng.normal(size=(n, 2)) @ root.T for m, root in zip(means, roots, strict=True))
    return Known(xs, multi_bures(means, [root @ root.T for root in roots]))


def mixture_of_three(n: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian, and an unequal mixture of three; no closed form."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(3, size=n, p=[0.5, 0.3, 0.2])
    means = np.array([[4.0, 0.0], [-2.0, 3.5], [-2.0, -3.5]])
    spreads = np.array([0.5, 0.7, 0.6])
    return rng.normal(size=(n, 2)), means[kind] + spreads[kind, None] * rng.normal(size=(n, 2))


def multi_bures(means: list[np.ndarray], covariances: list[np.ndarray]) -> float:
    """Σ_{i<j} ‖m_i − m_j‖² + m Σ_i Bures²(Σ_i, S), S the barycenter of the covariances by fixed point."""
    m = len(means)
    s = sum(covariances) / m
    for _ in range(200):
        root = _sqrtm(s)
        s = _congruence(
            np.linalg.inv(root), np.linalg.matrix_power(sum(_sqrtm(root @ c @ root) for c in covariances) / m, 2)
        )
    root = _sqrtm(s)
    bures = sum(np.trace(c) + np.trace(s) - 2 * np.trace(_sqrtm(root @ c @ root)) for c in covariances)
    apart = sum(float(np.sum((a - b) ** 2)) for i, a in enumerate(means) for b in means[i + 1 :])
    return apart + m * float(bures)


def _sqrtm(a: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(a)
    return (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T


def _congruence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a @ b @ a


def two_players(generator, critics, draws, generator_loss, rule):
    """Critics that take one or two steps in turn, and a generator that keeps an average."""
    moves = critic_loss(generator, critics)
    return [
        Player("critics", (critics,), rule, draws[0], moves, lambda step: 1 + step % 2, critics.after_step),
        Player("generator", (generator,), rule, draws[1], generator_loss, averaging=0.9),
    ]


def critic_loss(generator, critics):
    """The critics' side of a game for batches (z, x_1, …, x_m): Σ_i (mean λ_i(x_i) − mean λ_i(G_i(z)))."""

    def loss(batch):
        with torch.no_grad():
            fake = generator(batch[0])
        values = zip(critics(batch[1:]), critics(fake), strict=True)
        return torch.stack([a.mean() - b.mean() for a, b in values]).sum()

    return loss
