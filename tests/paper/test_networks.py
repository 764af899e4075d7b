"""The appendix' networks: output shapes, numbers of weights counted by hand, and what is shared."""

import pytest
import torch

from torchspot.networks.generators import Shapes
from torchspot.networks.judges import JudgeShapes
from torchspot.networks.lipschitz import SpectralNorm
from torchspot_paper import networks

DIGITS = Shapes(100, ((1, 28, 28), (3, 28, 28)))
LARGE = Shapes(100, ((3, 32, 32), (1, 32, 32)))
PICTURES = Shapes(100, ((3, 64, 64), (1, 64, 64)))


def rng():
    return torch.Generator().manual_seed(0)


def count(module):
    return sum(p.numel() for p in module.parameters())


def shapes_of(xs):
    return [tuple(x.shape[1:]) for x in xs]


def norm(channels):
    return 2 * channels


def test_generators_without_sharing():
    made = networks.no_sharing_generators(PICTURES, rng())
    assert shapes_of(made(torch.randn(2, 100))) == list(PICTURES.marginals)
    body = 16 * (100 * 512 + 512 * 256 + 256 * 128 + 128 * 64) + norm(512 + 256 + 128 + 64)
    assert count(made) == 2 * body + 16 * 64 * (3 + 1) + (3 + 1)
    assert not {id(p) for p in made.networks[0].parameters()} & {id(p) for p in made.networks[1].parameters()}


def test_critics_without_sharing():
    made = networks.no_sharing_critics(SpectralNorm())(PICTURES, rng())
    values = made((torch.randn(2, 3, 64, 64), torch.randn(2, 1, 64, 64)))
    assert shapes_of(values) == [(), ()]
    body = 16 * (64 * 128 + 128 * 256 + 256 * 512 + 512) + (64 + 128 + 256 + 512)
    assert count(made) == 2 * body + 16 * 64 * (3 + 1)
    assert [len(made.operator_norms()), len(made.networks[0])] == [10, 9]


def test_cnn_generators_share_all_but_the_last_layer():
    made = networks.cnn_generators(DIGITS, rng())
    assert shapes_of(made(torch.randn(2, 100))) == list(DIGITS.marginals)
    trunk = 16 * 100 * 1024 + 9 * (1024 * 512 + 512 * 256 + 256 * 128) + norm(1024 + 512 + 256 + 128) + 4
    assert count(made.trunk) == trunk
    assert count(made) == trunk + 36 * 128 * (1 + 3) + (1 + 3)
    assert made.heads[0] is not made.heads[1]


@pytest.mark.parametrize(
    ("judges", "shapes", "first", "trunk"),
    [
        (
            networks.cnn_judges(),
            DIGITS,
            [25 * 20 * c + 20 for c in (1, 3)],
            25 * 20 * 50 + 50 + 16 * 50 * 500 + 500 + 1,
        ),
        (
            networks.resnet_judges(),
            LARGE,
            [9 * c * 128 + 128 + 9 * 128 * 128 + 128 + c * 128 + 128 for c in (3, 1)],
            2 * (2 * (9 * 128 * 128 + 128) + 128 * 128 + 128) + 16 * 128 * 500 + 500 + 1,
        ),
    ],
)
def test_judges_share_as_the_tables_say(judges, shapes, first, trunk):
    made = judges(JudgeShapes(shapes.marginals, 10), rng())
    xs = tuple(torch.randn(2, *shape) for shape in shapes.marginals)
    assert shapes_of(made(xs)) == [(), ()]
    assert [tuple(made.scores(made.embed(x, k)).shape) for k, x in enumerate(xs)] == [(2, 10), (2, 10)]
    assert made.first[0] is not made.first[1] and made.heads[0] is not made.heads[1]
    assert count(made) == sum(first) + trunk + 2 * 501 + 10 * 501


def test_resnet_generators_share_all_but_the_last_layer():
    made = networks.resnet_generators(LARGE, rng())
    assert shapes_of(made(torch.randn(2, 100))) == list(LARGE.marginals)
    block = 2 * (9 * 128 * 128 + 128) + 2 * norm(128)
    trunk = 100 * 2048 + 2048 + 3 * block + norm(128) + 1
    assert count(made) == trunk + 9 * 128 * (3 + 1) + (3 + 1)


def test_values_are_within_one_and_every_weight_gets_a_gradient():
    for builder, shapes in ((networks.cnn_generators, DIGITS), (networks.resnet_generators, LARGE)):
        made = builder(shapes, rng())
        xs = made(torch.randn(4, 100))
        assert all((x.abs() <= 1).all() for x in xs)
        sum((x * torch.randn_like(x)).sum() for x in xs).backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in made.parameters())
