"""The bounds that each control claims, measured."""

import pytest
import torch
from torch import nn

from torchspot.errors import InvalidArgument
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import Shapes
from torchspot.networks.lipschitz import (
    Clipping,
    Free,
    HalfAbsolute,
    Orthogonal,
    SpectralNorm,
    operator_norm,
    orthogonalise,
)

RNG = lambda: torch.Generator().manual_seed(0)  # noqa: E731


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (5, 5), (32, 8), (8, 32), (200, 200)])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_orthogonalise_never_leaves_a_singular_value_above_one(shape, size):
    weight = size * torch.randn(1, *shape, generator=RNG(), dtype=torch.float64)
    for iterations in (1, 2, 10):
        assert operator_norm(orthogonalise(weight, iterations)) <= 1 + 1e-12


@pytest.mark.parametrize("shape", [(5, 5), (32, 8), (8, 32)])
def test_orthogonalise_converges_to_the_nearest_orthogonal_matrix(shape):
    weight = torch.linalg.qr(torch.randn(max(shape), min(shape), generator=RNG(), dtype=torch.float64)).Q
    weight = weight if shape[0] >= shape[1] else weight.mT
    moved = weight + 0.02 * torch.randn(*shape, generator=RNG(), dtype=torch.float64)
    u, _, vh = torch.linalg.svd(moved, full_matrices=False)
    errors = [float((orthogonalise(moved[None], k)[0] - u @ vh).norm()) for k in (1, 2, 3)]
    assert errors[0] < 0.1 * float((moved - u @ vh).norm()) + 0.05
    assert errors[1] < errors[0] ** 1.5
    assert errors[2] < 1e-5


def test_half_absolute_keeps_norms_and_is_group_sort_in_turned_coordinates():
    h = torch.randn(8, 50, generator=RNG(), dtype=torch.float64).requires_grad_()
    fold = HalfAbsolute([8], 8, RNG()).double()
    out = fold(h[None])[0]
    seed = torch.randn_like(out)
    gradient = torch.autograd.grad(out, h, seed)[0]
    assert torch.allclose(gradient.norm(dim=0), seed.norm(dim=0))
    identity = torch.eye(4, dtype=torch.float64)
    turn = torch.cat((torch.cat((identity, -identity), 1), torch.cat((identity, identity), 1))) / 2**0.5
    nn.init.zeros_(fold.bias)
    larger, smaller = (turn.mT @ fold((turn @ h)[None])[0]).chunk(2)
    a, b = h.chunk(2)
    assert torch.allclose(larger, torch.maximum(a, b))
    assert torch.allclose(smaller, torch.minimum(a, b))


def _train_a_little(control):
    """Critics after some noisy steps, each followed by what the control does after a step."""
    critics = mlp_critics(16, 2, control)(Shapes(2, ((3,), (5,))), RNG())
    rng = RNG()
    for _ in range(30):
        with torch.no_grad():
            for parameter in critics.parameters():
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=rng))
        critics.after_step()
    return critics


@pytest.mark.parametrize(("control", "most"), [(Orthogonal(), 1.00001), (SpectralNorm(), 1.05)], ids=str)
def test_critics_stay_lipschitz_while_they_train(control, most):
    critics = _train_a_little(control)
    assert max(critics.operator_norms()) <= most
    rng = RNG()
    us = tuple(torch.randn(4000, d, generator=rng) for d in (3, 5))
    vs = tuple(u + 0.1 * torch.randn(u.shape, generator=rng) for u in us)
    for u, v, a, b in zip(us, vs, critics(us), critics(vs), strict=True):
        assert ((a - b).abs() / (u - v).norm(dim=1)).max() <= most**3


def test_without_the_step_after_they_do_not_stay_so():
    critics = mlp_critics(16, 2, Orthogonal())(Shapes(2, ((3,),)), RNG())
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter.mul_(2)
    assert max(critics.operator_norms()) > 1.9
    for _ in range(3):
        critics.after_step()
    assert max(critics.operator_norms()) <= 1.00001


def test_orthogonal_critics_are_tight():
    assert min(_train_a_little(Orthogonal()).operator_norms()) > 0.97


def test_spectral_norm_divides_by_the_largest_singular_value():
    critics = mlp_critics(8, 1, SpectralNorm())(Shapes(2, ((2,),)), RNG())
    for _ in range(50):
        critics.after_step()
    assert critics.operator_norms() == pytest.approx([1, 1], abs=1e-4)


def test_clipping_keeps_every_entry_within_the_bound():
    critics = _train_a_little(Clipping(0.01))
    assert max(float(p.detach().abs().max()) for p in critics.parameters()) <= 0.01
    assert min(float(p.detach().abs().max()) for p in critics.parameters()) > 0


def test_a_free_potential_is_smooth_and_as_steep_as_it_likes():
    critics = mlp_critics(16, 2, Free())(Shapes(2, ((3,),)), RNG())
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter.mul_(10)
    before = [p.detach().clone() for p in critics.parameters()]
    critics.after_step()
    assert all(torch.equal(a, b) for a, b in zip(before, critics.parameters(), strict=True))
    u = torch.randn(500, 3, generator=RNG()).requires_grad_()
    (slope,) = torch.autograd.grad(critics((u,))[0].sum(), u, create_graph=True)
    assert slope.norm(dim=1).max() > 5
    assert torch.autograd.grad(slope.sum(), u)[0].abs().sum() > 0  # curved, which piecewise linear critics are not


def test_bad_settings():
    with pytest.raises(InvalidArgument, match="at least one iteration"):
        Orthogonal(0)
    with pytest.raises(InvalidArgument, match="above 0"):
        Clipping(-1)
    with pytest.raises(InvalidArgument, match=r"width=7 is odd\. Use width=8"):
        mlp_critics(7, 2)(Shapes(2, ((2,),)), RNG())
