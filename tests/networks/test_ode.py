"""Flows: densities against autograd Jacobians, inverses, orders, traces and gradients."""

import copy
import math

import pytest
import torch
from torch.func import jacrev, vmap

from torchspot.errors import Diverged, InvalidArgument
from torchspot.networks.generators import Shapes
from torchspot.networks.ode import Field, Probes, flow
from torchspot.networks.solvers import RK4, Adjoint, Dopri5

SHAPES = [Shapes(2, ((1,), (1,))), Shapes(6, ((2,), (1,), (3,))), Shapes(5, ((4,), (1,)))]
IDS = ["1 + 1", "2 + 1 + 3", "4 + 1"]
DEPTHS = [1, 2, 3]
FINE = Dopri5(tolerance=1e-9)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def trained(shapes, *, depth=2, solver=FINE, start=None, size=1.0):
    """A flow in float64 whose weights are far from their start."""
    made = flow(16, depth, solver, start=start)(shapes, rng()).double()
    for k, parameter in enumerate(made.parameters()):
        fan = parameter.shape[-1] if parameter.ndim > 1 else 16
        with torch.no_grad():
            parameter.copy_(size * torch.randn(parameter.shape, generator=rng(k), dtype=torch.float64) / math.sqrt(fan))
    return made


def noise(shapes, rows=20, seed=5):
    return torch.randn(rows, shapes.latent, generator=rng(seed), dtype=torch.float64)


def lower(dim):
    """A lower triangular matrix with a positive diagonal."""
    return torch.tril(torch.rand(dim, dim, generator=rng(9), dtype=torch.float64)) + torch.eye(dim, dtype=torch.float64)


@pytest.mark.parametrize("shapes", SHAPES, ids=IDS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_density_is_the_change_of_variables(shapes, depth):
    made = trained(shapes, depth=depth, start=lower(shapes.latent))
    z = noise(shapes)

    def joined(one):
        return torch.cat([x.flatten() for x in made.solved_by(RK4(100))(one[None])])

    jacobians = vmap(jacrev(joined))(z)
    expected = -0.5 * z.square().sum(1) - shapes.latent / 2 * math.log(2 * math.pi)
    expected = expected - torch.linalg.slogdet(jacobians)[1]
    xs, log_p = made.with_log_density(z)
    assert [x.shape[1:] for x in xs] == [torch.Size(shape) for shape in shapes.marginals]
    assert torch.allclose(log_p, expected, atol=1e-6)
    assert torch.allclose(made.log_density(xs), expected, atol=1e-6)
    assert (log_p - (-0.5 * z.square().sum(1))).std() > 0.01  # not only a constant


@pytest.mark.parametrize("shapes", SHAPES, ids=IDS)
def test_inverse_undoes_forward(shapes):
    made = trained(shapes, start=lower(shapes.latent))
    z = noise(shapes)
    assert torch.allclose(made.inverse(made(z)), z, atol=1e-6)
    assert not torch.allclose(torch.cat([x.flatten(1) for x in made(z)], 1), z, atol=0.1)


def test_inverse_and_density_hold_in_float32_too():
    made = trained(SHAPES[0], solver=Dopri5()).float()
    z = noise(SHAPES[0]).float()
    xs, log_p = made.with_log_density(z)
    assert torch.allclose(made.inverse(xs), z, atol=1e-4)
    assert torch.allclose(made.log_density(xs), log_p, atol=1e-4)


def test_an_untrained_flow_is_its_start():
    start = lower(2)
    made = flow(8, 2, start=start)(SHAPES[0], rng()).double()
    z = noise(SHAPES[0])
    xs, log_p = made.with_log_density(z)
    assert torch.allclose(torch.cat(xs, 1), z @ start.mT)
    law = torch.distributions.MultivariateNormal(torch.zeros(2, dtype=torch.float64), scale_tril=start)
    assert torch.allclose(log_p, law.log_prob(torch.cat(xs, 1)))


def test_density_integrates_to_one():
    made = trained(SHAPES[0], size=1.2)
    line = torch.linspace(-9, 9, 301, dtype=torch.float64)
    x, y = (part.reshape(-1, 1) for part in torch.meshgrid(line, line, indexing="ij"))
    with torch.no_grad():
        mass = made.solved_by(Dopri5(1e-6)).log_density((x, y)).exp().sum() * (line[1] - line[0]) ** 2
    assert float(mass) == pytest.approx(1, abs=1e-4)


def test_rk4_is_of_fourth_order():
    """Halving the step divides the error of map and density by about 16."""
    made = trained(SHAPES[1], size=1.5)
    z = noise(SHAPES[1])
    xs, log_p = made.solved_by(Dopri5(1e-12)).with_log_density(z)
    exact = torch.cat([*xs, log_p[:, None]], 1)

    def error(steps):
        ours, density = made.solved_by(RK4(steps)).with_log_density(z)
        return float((torch.cat([*ours, density[:, None]], 1) - exact).norm().detach())

    orders = [math.log2(error(steps) / error(2 * steps)) for steps in (8, 16)]
    assert all(3.7 < order < 4.4 for order in orders)


@pytest.mark.parametrize("depth", DEPTHS)
def test_hutchinson_is_the_trace_on_average(depth):
    shapes, rows = SHAPES[1], 3
    made = trained(shapes, depth=depth, solver=RK4(4))
    z = noise(shapes, rows)
    exact = made.with_log_density(z)[1]
    many = 4000
    drawn = Probes(shapes.latent).draw(many * rows, rng()).movedim(1, 0).double()
    estimates = made.with_log_density(z.repeat(many, 1), drawn)[1].view(many, rows)
    error = estimates.std(0) / math.sqrt(many)
    assert ((estimates.mean(0) - exact).abs() < 4 * error).all()
    assert (error * math.sqrt(many) > 0.01).all()
    several = Probes(shapes.latent, 4).draw(5, rng())
    assert several.shape == (5, 4, shapes.latent)
    assert torch.allclose(several.square().sum((1, 2)), torch.full((5,), float(shapes.latent)))


def test_the_quick_trace_is_the_one_along_all_axes():
    field = Field(5, width=12, depth=2, rng=rng()).double()
    z = noise(SHAPES[2])
    state = (z, torch.zeros(len(z), dtype=torch.float64))
    axes = torch.eye(5, dtype=torch.float64)[:, None].expand(-1, len(z), -1)
    for ours, theirs in zip(field.motion_exactly()(0.3, state), field.motion_along(axes)(0.3, state), strict=True):
        assert torch.allclose(ours, theirs)
    jacobians = vmap(jacrev(lambda one: field(one[None], 0.3)[0]))(z)
    assert torch.allclose(field.motion_exactly()(0.3, state)[1], jacobians.diagonal(dim1=1, dim2=2).sum(1))


def entropic_loss(made, z):
    """A cost, a weight of the marginals and the entropy, as in training."""
    (x, y), log_p = made.with_log_density(z)
    return (x - y).square().sum(1).mean() + x.sin().mean() + 0.7 * log_p.mean()


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("solver", [Adjoint(Dopri5(1e-8)), Adjoint(RK4(32)), Dopri5(1e-8)], ids=str)
def test_gradients_agree_with_fine_backpropagation(solver, depth):
    made = trained(SHAPES[0], depth=depth)
    z = noise(SHAPES[0], 50)
    names = [name for name, _ in made.named_parameters()]
    expected, found = (
        dict(zip(names, torch.autograd.grad(entropic_loss(made.solved_by(s), z), list(made.parameters())), strict=True))
        for s in (RK4(100), solver)
    )
    for name in names:
        assert expected[name].norm() > 1e-6, name
        assert (found[name] - expected[name]).norm() <= 1e-3 * expected[name].norm(), name


def test_the_entropy_has_a_gradient_through_the_path():
    """E log p moves with the weights as finite differences say: the whole gradient, with the motion of z(t)."""
    made = trained(SHAPES[0])
    z = noise(SHAPES[0], 50)
    parameter = made.field.layers[0].weight
    (gradient,) = torch.autograd.grad(made.with_log_density(z)[1].mean(), parameter)
    step = 1e-5

    def shifted(h):
        other = copy.deepcopy(made)
        with torch.no_grad():
            other.field.layers[0].weight[1, 0] += h
            return float(other.with_log_density(z)[1].mean())

    assert (shifted(step) - shifted(-step)) / (2 * step) == pytest.approx(float(gradient[1, 0]), rel=1e-4)


def test_adjoint_keeps_no_steps():
    """What backpropagation has to remember grows with the steps, and with the adjoint it does not."""
    made, z = trained(SHAPES[0]), noise(SHAPES[0])

    def saved(solver):
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
            entropic_loss(made.solved_by(solver), z)
        return sum(kept)

    assert saved(Adjoint(RK4(40))) == saved(Adjoint(RK4(4)))
    assert saved(RK4(40)) > 5 * saved(RK4(4))


def test_a_stiff_field_ends_in_a_clear_error():
    made = trained(SHAPES[0], size=300.0, solver=Dopri5(most_steps=50))
    with pytest.raises(Diverged, match="too stiff or has exploded") as error:
        made(noise(SHAPES[0]))
    assert error.value.step is None


def test_a_field_that_is_not_a_number_ends_in_a_clear_error():
    made = trained(SHAPES[0], solver=Dopri5())
    with torch.no_grad():
        made.field.layers[0].bias[0] = math.nan
    with pytest.raises(Diverged, match="too stiff or has exploded"):
        made(noise(SHAPES[0]))


def test_wrong_arguments():
    with pytest.raises(InvalidArgument, match="as many numbers in z as in all marginals together, 2, and z has 3"):
        flow()(Shapes(3, ((1,), (1,))), rng())
    with pytest.raises(InvalidArgument, match="steps=0"):
        RK4(0)
    with pytest.raises(InvalidArgument, match="tolerance"):
        Dopri5(tolerance=0.0)
    for wrong in ({"width": 0}, {"width": 4.5}, {"depth": 0}, {"probes": -1}):
        with pytest.raises(InvalidArgument, match="width and depth of at least 1 and probes of at least 0"):
            flow(**wrong)


@pytest.mark.parametrize(
    "start", [torch.tensor([[1.0, 0.5], [0.5, 1.0]]), torch.diag(torch.tensor([1.0, -1.0])), torch.eye(3)], ids=str
)
def test_a_start_whose_density_would_be_wrong_is_refused(start):
    with pytest.raises(InvalidArgument, match="lower triangular with a positive diagonal"):
        flow(start=start)(SHAPES[0], rng())
