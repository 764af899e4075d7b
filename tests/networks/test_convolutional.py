"""Networks for pictures: shapes, ties, and operator norms against matrices written out."""

import pytest
import torch
from torch import nn

from torchspot.errors import InvalidArgument
from torchspot.networks.augmentation import Augmentation
from torchspot.networks.convolutional import are_pictures, picture_critics, pictures
from torchspot.networks.convolutions import Window
from torchspot.networks.generators import Shapes
from torchspot.networks.lipschitz import Clipping, Free, OperatorNorm, Orthogonal, SpectralNorm
from torchspot.networks.specification import from_spec, to_spec
from torchspot.networks.tied import tied, tied_critics

CONTROLS = [Orthogonal(), SpectralNorm(), OperatorNorm(), Clipping(0.05), Free()]
WINDOWS = [Window(3, 6, (4, 4), 2, 1, (11, 8)), Window(2, 4, (3, 3), 1, 1, (5, 6)), Window(5, 2, (4, 3), 1, 0, (4, 3))]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def dense(convolution):
    """The convolution as a matrix, column by column."""
    window = convolution.window
    units = torch.eye(window.inputs * window.size[0] * window.size[1]).view(-1, window.inputs, *window.size)
    return window.over(units, convolution.effective_kernel().detach()).flatten(1).mT.double()


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("control", CONTROLS, ids=lambda c: type(c).__name__)
def test_measured_operator_norm_is_that_of_the_matrix(control, window):
    layer = control.convolution(window, rng())
    exact = float(torch.linalg.matrix_norm(dense(layer), ord=2))
    assert layer.operator_norm() == pytest.approx(exact, rel=0.01)
    assert layer.operator_norm() <= exact * (1 + 1e-6)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_back_is_the_transpose(window):
    kernel = torch.randn(window.kernel_shape, generator=rng(), dtype=torch.float64)
    x = torch.randn(1, window.inputs, *window.size, generator=rng(1), dtype=torch.float64)
    y = torch.randn(1, window.outputs, *window.out_size, generator=rng(2), dtype=torch.float64)
    assert float((window.over(x, kernel) * y).sum()) == pytest.approx(float((x * window.back(y, kernel)).sum()))
    assert float((window.seen(y, x) * kernel).sum()) == pytest.approx(float((window.over(x, kernel) * y).sum()))


@pytest.mark.parametrize("control", [Orthogonal(3), OperatorNorm()], ids=lambda c: type(c).__name__)
def test_norms_stay_at_most_1_while_weights_move(control):
    critics = picture_critics(4, control)(Shapes(2, ((1, 16, 16),)), rng())
    generator = rng(1)
    for _ in range(30):
        with torch.no_grad():
            for parameter in critics.parameters():
                parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
        critics.after_step()
    for _ in range(100 if isinstance(control, OperatorNorm) else 0):
        critics.after_step()
    assert max(critics.operator_norms()) < 1.01
    assert max(critics.operator_norms()) > 0.3


def test_kernel_norm_does_not_bound_the_convolution():
    """Why `OperatorNorm` is there: the usual spectral norm leaves convolutions steeper than 1."""
    critics = picture_critics(16, SpectralNorm())(Shapes(2, ((3, 16, 16),)), rng())
    assert max(critics.operator_norms()) > 1.2


def test_gradient_of_a_normalised_kernel_sees_the_division():
    """Along the kernel itself nothing changes, and the gradient there is 0."""
    layer = OperatorNorm().convolution(WINDOWS[0], rng())
    x = torch.randn(4, 3, 11, 8, generator=rng(1))
    gradient = torch.autograd.grad(layer(x).square().sum(), layer.weight)[0]
    assert float((gradient * layer.weight.detach()).sum()) == pytest.approx(0, abs=1e-3 * float(gradient.norm()))


def test_orthogonal_convolutions_without_overlap_keep_all_lengths():
    layer = Orthogonal().convolution(Window(3, 12, (2, 2), 2, 0, (8, 8)), rng(), bias=False)
    x = torch.randn(5, 3, 8, 8, generator=rng(1))
    assert torch.allclose(layer(x).flatten(1).norm(dim=1), x.flatten(1).norm(dim=1), rtol=1e-4)


@pytest.mark.parametrize(
    "shapes", [((1, 28, 28), (3, 28, 28)), ((3, 64, 64),) * 2, ((3, 9, 17), (1, 9, 17)), ((3, 8, 8),) * 3]
)
def test_generators_and_critics_take_any_size(shapes):
    all_shapes = Shapes(7, shapes)
    made = pictures(4, 1)(all_shapes, rng())(torch.randn(5, 7, generator=rng(1)))
    assert [tuple(x.shape[1:]) for x in made] == list(shapes)
    assert all((x.abs() <= 1).all() for x in made)
    values = picture_critics(4)(all_shapes, rng())(made)
    assert [tuple(v.shape) for v in values] == [(5,)] * len(shapes)


def test_marginals_of_different_sizes():
    shapes = Shapes(7, ((3, 16, 16), (1, 8, 12)))
    x, y = pictures(4, 1)(shapes, rng())(torch.randn(5, 7, generator=rng(1)))
    assert (x.shape, y.shape) == ((5, 3, 16, 16), (5, 1, 8, 12))


def test_every_weight_gets_a_gradient():
    shapes = Shapes(7, ((1, 16, 16), (3, 16, 16)))
    network, critics = pictures(4, 2)(shapes, rng()), picture_critics(4)(shapes, rng())
    made = network(torch.randn(6, 7, generator=rng(1)))
    torch.stack(critics(made)).sum().backward()
    for name, parameter in [*network.named_parameters(), *critics.named_parameters()]:
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_the_second_picture_sees_the_first():
    """With the maps held fixed, another first picture changes the second."""
    network = pictures(4, 1)(Shapes(7, ((1, 16, 16), (3, 16, 16))), rng()).eval()
    z = torch.randn(3, 7, generator=rng(1))
    before = network(z)[1]
    with torch.no_grad():
        network.heads[0].rest[-1].bias += 1.0
    assert (network(z)[1] - before).abs().max() > 1e-6


def test_same_seed_same_weights_and_back_from_a_specification():
    shapes = Shapes(7, ((1, 16, 16), (3, 16, 16)))
    first, second, third = (pictures(4, 1)(shapes, rng(seed)) for seed in (0, 0, 1))
    z = torch.randn(3, 7, generator=rng(1))
    assert torch.equal(first(z)[1], second(z)[1])
    assert not torch.equal(first(z)[1], third(z)[1])
    spec = to_spec(first)
    assert spec == {"name": "pictures", "width": 4, "depth": 1}
    assert {k: v.shape for k, v in from_spec(spec, shapes).state_dict().items()} == {
        k: v.shape for k, v in first.state_dict().items()
    }


def test_tied_networks_share_module_objects():
    shapes = Shapes(7, ((1, 16, 16), (3, 16, 16)))
    critics = tied_critics(4)(shapes, rng())
    first, second = critics.networks
    assert first[0] is not second[0]
    assert all(a is b for a, b in zip(first[2:], second[2:], strict=True))
    assert len(critics.operator_norms()) == len([m for m in first if not isinstance(m, nn.LeakyReLU)]) + 1
    network = tied(4, 1)(shapes, rng())
    made = network(torch.randn(5, 7, generator=rng(1)))
    assert [tuple(x.shape[1:]) for x in made] == list(shapes.marginals)
    with pytest.raises(InvalidArgument, match="one height and width"):
        tied()(Shapes(7, ((1, 16, 16), (3, 8, 8))), rng())


def test_what_pictures_are():
    assert are_pictures([(3, 64, 64), (1, 8, 9)])
    assert not are_pictures([(3, 64, 64), (5,)])
    assert not are_pictures([(3, 7, 64)])
    with pytest.raises(InvalidArgument, match=r"\(channels, height, width\)"):
        pictures()(Shapes(7, ((5,), (5,))), rng())


class TestAugmentation:
    def test_numbers_of_zero_change_nothing(self):
        x = torch.rand(4, 3, 8, 8, generator=rng())
        assert torch.allclose(Augmentation()(x, torch.zeros(4, Augmentation.dim)), x, atol=1e-6)

    def test_mirror_and_shift_move_pixels(self):
        x = torch.rand(2, 1, 8, 8, generator=rng())
        numbers = torch.zeros(2, 6)
        numbers[0, 0] = -0.5
        numbers[1, 4] = 1.0
        changed = Augmentation(colour=0)(x, numbers)
        assert torch.equal(changed[0], x[0].flip(2))
        assert torch.equal(changed[1, :, :-1], x[1, :, 1:])
        assert changed[1, :, -1].abs().max() == 0

    def test_differentiable_in_the_picture(self):
        x = torch.rand(4, 3, 8, 8, generator=rng(), dtype=torch.float64).requires_grad_()
        numbers = torch.rand(4, 6, generator=rng(1), dtype=torch.float64) * 1.6 - 0.8
        assert torch.autograd.gradcheck(lambda u: Augmentation()(u, numbers), x)
