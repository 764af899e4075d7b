"""Optimal maps between covariances: what transport does to laws that are known by two moments only."""

__all__ = [
    "AffinePlan",
    "GaussianPlan",
    "barycenter_of",
    "barycentric_maps",
    "entropic_coupling",
    "invertible_covariance",
    "optimal_map",
]

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from torchspot.discrepancies import covariance

Matrix = Float[Tensor, "dim dim"]

_ITERATIONS, _CONVERGED = 100, 1e-10
_FLOOR, _NOTHING = 1e-6, 1e-12


def invertible_covariance(x: Float[Tensor, "batch dim"]) -> Matrix:
    """Of the samples, with a little added so that it can be inverted."""
    plain = covariance(x)
    little = _FLOOR * float(plain.trace()) / len(plain) or _NOTHING
    return plain + little * torch.eye(len(plain), dtype=x.dtype)


def optimal_map(a: Matrix, b: Matrix) -> Matrix:
    """T = A^−½ (A^½ B A^½)^½ A^−½, the symmetric matrix with T A T = B."""
    root = _root(a)
    back = torch.linalg.inv(root)
    return _symmetric(back @ _root(root @ b @ root) @ back)


def barycentric_maps(covariances: Sequence[Matrix], weights: Sequence[float]) -> list[Matrix]:
    """The maps T_i from the barycenter S of the covariances to each, Σ_i w_i T_i ≤ I, for weights w that sum to 1.

    Two: T_1⁻¹ = w_1 I + w_2 T with T the map from the first to the second, and T_2⁻¹ = w_2 I + w_1 T⁻¹. More: S by
    `barycenter_of`. In the end all are divided by what they exceed I by, as the inequality is all that bounds need.
    """
    identity = torch.eye(len(covariances[0]), dtype=covariances[0].dtype)
    if len(covariances) == 2:
        forth, (a, b) = optimal_map(*covariances), weights
        maps = [
            torch.linalg.inv(a * identity + b * forth),
            torch.linalg.inv(b * identity + a * torch.linalg.inv(forth)),
        ]
    else:
        s = barycenter_of(covariances, weights)
        maps = [optimal_map(s, c) for c in covariances]
    largest = torch.linalg.eigvalsh(_symmetric(_mean(maps, weights))).max()
    return [_symmetric(t) / largest for t in maps]


@dataclass(frozen=True)
class AffinePlan:
    """(A_1 z, …, A_m z), z ~ N(0, I): the optimal plan of centred Gaussians under Σ w_i w_j ‖x_i − x_j‖²."""

    matrices: tuple[Matrix, ...]

    @classmethod
    def between(cls, xs: Sequence[Float[Tensor, "batch dim"]], weights: Sequence[float] | None = None) -> "AffinePlan":
        """Gaussians with the covariances Σ_i of these samples: A_i = T_i S^½, T_i the map from S to Σ_i.

        S is the barycenter of the covariances, or of two just the first. Without weights all count alike.
        """
        covariances = [invertible_covariance(x) for x in xs]
        weights = [1 / len(xs)] * len(xs) if weights is None else weights
        s = covariances[0] if len(covariances) == 2 else barycenter_of(covariances, weights)
        return cls(tuple(optimal_map(s, c) @ _root(s) for c in covariances))

    def __call__(self, zs: Sequence[Float[Tensor, "batch dim"]]) -> tuple[Float[Tensor, "batch dim"], ...]:
        """A_i z_i, for one z each."""
        return tuple(z @ a.mT for z, a in zip(zs, self.matrices, strict=True))

    def maps_from(self, k: int, thin: float = 0.0) -> tuple[Matrix, ...] | None:
        """The matrices A_j A_k⁻¹ that take marginal k to each of the others.

        None if in some direction marginal k has no more than so much of its mean variance.
        """
        variances = torch.linalg.svdvals(self.matrices[k]).square()
        if float(variances.min()) <= thin * float(variances.mean()):
            return None
        back = torch.linalg.inv(self.matrices[k])
        return tuple(a @ back for j, a in enumerate(self.matrices) if j != k)

    def partners(self, x: Float[Tensor, "batch dim"]) -> tuple[Float[Tensor, "batch dim"], ...]:
        """These samples of the first marginal, and what the plan pairs them with."""
        z = torch.linalg.solve(self.matrices[0], x.mT).mT
        return self([z] * len(self.matrices))


def entropic_coupling(a: Matrix, b: Matrix, epsilon: float) -> Matrix:
    """Cov(x, y) of the plan between Gaussians that minimises E‖x − y‖² + ε E log p.

    C = ½ A^½ (4 A^½ B A^½ + ε²/4 I)^½ A^−½ − ε/4 I.
    """
    root, identity = _root(a), torch.eye(len(a), dtype=a.dtype)
    middle = _root(4 * root @ b @ root + epsilon**2 / 4 * identity)
    return 0.5 * root @ middle @ torch.linalg.inv(root) - epsilon / 4 * identity


@dataclass(frozen=True)
class GaussianPlan:
    """(x_1, …, x_m) = R z, z ~ N(0, I) of all their dimensions together: a plan with a density."""

    root: Float[Tensor, "total total"]
    """R, lower triangular with a positive diagonal."""

    @classmethod
    def independent(cls, covariances: Sequence[Matrix]) -> "GaussianPlan":
        """Marginals of these covariances that know nothing of each other."""
        roots = [torch.linalg.cholesky(c) for c in covariances]
        return cls(torch.block_diag(*roots))  # type: ignore[no-untyped-call]

    @classmethod
    def entropic(cls, a: Matrix, b: Matrix, epsilon: float) -> "GaussianPlan":
        """The optimal plan of two Gaussians under E‖x − y‖² + ε E log p."""
        c = entropic_coupling(a, b, epsilon)
        joint = torch.cat((torch.cat((a, c), 1), torch.cat((c.mT, b), 1)))
        little = _FLOOR * float(joint.trace()) / len(joint)
        return cls(torch.linalg.cholesky(joint + little * torch.eye(len(joint), dtype=joint.dtype)))

    @property
    def entropy(self) -> float:
        """−E log p."""
        return float(self.root.diagonal().log().sum()) + 0.5 * len(self.root) * math.log(2 * math.pi * math.e)

    def sample(self, z: Float[Tensor, "batch total"], sizes: Sequence[int]) -> tuple[Float[Tensor, "batch dim"], ...]:
        """R z in blocks of these sizes."""
        return torch.split(z @ self.root.mT, list(sizes), dim=1)


def barycenter_of(covariances: Sequence[Matrix], weights: Sequence[float]) -> Matrix:
    """The covariance of the barycenter of Gaussians: S ← S^−½ (Σ_i w_i (S^½ Σ_i S^½)^½)² S^−½ until it stays."""
    s = _mean(covariances, weights)
    for _ in range(_ITERATIONS):
        root = _root(s)
        back = torch.linalg.inv(root)
        mean = _mean([_root(root @ c @ root) for c in covariances], weights)
        before, s = s, _symmetric(back @ mean @ mean @ back)
        if float((s - before).norm()) <= _CONVERGED * float(s.norm()):
            break
    return s


def _mean(matrices: Sequence[Matrix], weights: Sequence[float]) -> Matrix:
    """Σ_i w_i M_i."""
    return sum((w * m for w, m in zip(weights, matrices, strict=True)), start=torch.zeros_like(matrices[0]))


def _root(matrix: Matrix) -> Matrix:
    values, vectors = torch.linalg.eigh(_symmetric(matrix))
    return (vectors * values.clamp(min=1e-12 * float(values.max())).sqrt()) @ vectors.mT


def _symmetric(matrix: Matrix) -> Matrix:
    return (matrix + matrix.mT) / 2
