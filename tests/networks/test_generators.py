"""Generators return a tuple of the right shapes, and units lose nothing."""

import pytest
import torch

from torchspot.networks.critics import CriticsInDataUnits, mlp_critics
from torchspot.networks.generators import InDataUnits, Shapes, Units, from_spec, separate, shared_trunk, to_spec

SHAPES = Shapes(4, ((2,), (3,), (1, 5, 5)))
BUILDERS = [separate(8, 2), separate(8, 1), shared_trunk(8, 2)]


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("builder", BUILDERS, ids=str)
def test_every_generator_gives_a_tuple_and_every_parameter_a_gradient(builder):
    network = builder(SHAPES, rng())
    made = network(torch.randn(6, 4, generator=rng()))
    assert isinstance(made, tuple)
    assert [tuple(x.shape) for x in made] == [(6, 2), (6, 3), (6, 1, 5, 5)]
    sum(x.square().sum() for x in made).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("builder", BUILDERS, ids=str)
def test_builders_depend_on_the_generator_alone(builder):
    torch.manual_seed(1)
    first = builder(SHAPES, rng())
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    second = builder(SHAPES, rng())
    torch.manual_seed(1)
    assert torch.equal(state, torch.random.get_rng_state())
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("builder", BUILDERS, ids=str)
def test_a_generator_is_rebuilt_from_its_description_without_memory(builder):
    network = builder(SHAPES, rng())
    again = from_spec(to_spec(network), SHAPES)
    assert all(p.is_meta for p in again.parameters())
    again.load_state_dict(network.state_dict(), assign=True)
    z = torch.randn(3, 4, generator=rng())
    assert all(torch.equal(a, b) for a, b in zip(network(z), again(z), strict=True))


def test_the_paper_counts_its_parameters_right():
    for width, count in ((2, 36), (1024, 2_109_444)):
        network = separate(width, 2)(Shapes(2, ((2,), (2,))), rng())
        assert sum(p.numel() for p in network.parameters()) == count


def test_aligned_networks_start_equal_as_far_as_their_sizes_go_and_are_not_tied():
    first, second, _ = separate(8, 2, aligned=True)(SHAPES, rng()).networks
    assert torch.equal(first[2].weight, second[2].weight)
    assert torch.equal(first[4].weight, second[4].weight[:2])
    assert first[2].weight is not second[2].weight
    apart, other, _ = separate(8, 2)(SHAPES, rng()).networks
    assert not torch.equal(apart[2].weight, other[2].weight)


def test_separate_networks_share_nothing_and_a_trunk_is_one_module():
    apart = separate(8, 2)(SHAPES, rng())
    assert len({id(p) for p in apart.parameters()}) == 3 * 6
    shared = shared_trunk(8, 2)(SHAPES, rng())
    assert len(shared.heads) == 3
    assert len({id(p) for p in shared.parameters()}) == 2 * 2 + 3 * 2


def test_units_there_and_back_far_from_the_origin():
    means = (torch.full((2,), 1e4, dtype=torch.float64), torch.full((2,), -1e4, dtype=torch.float64))
    units = Units(means, 1e-3)
    us = tuple(torch.randn(100, 2, generator=rng()) for _ in range(2))
    back = units.from_data(units.to_data(us))
    for u, v in zip(us, back, strict=True):
        assert v.dtype == torch.float32
        assert torch.allclose(u, v, atol=1e-6)


def test_critics_are_as_steep_in_data_units_as_in_their_own():
    units = Units((torch.zeros(3), torch.ones(3)), 100.0)
    network = mlp_critics(16, 2)(Shapes(2, ((3,), (3,))), rng())
    critics = CriticsInDataUnits(network, units)
    xs = tuple((torch.randn(500, 3, generator=rng()) * 100).requires_grad_() for _ in range(2))
    values = critics(xs)
    for x, value in zip(xs, values, strict=True):
        slope = torch.autograd.grad(value.sum(), x, retain_graph=True)[0].norm(dim=1)
        assert slope.max() <= 1.0001
        assert slope.max() > 0.1
    assert torch.allclose(values[0], 100 * network(units.from_data(xs))[0])


def test_a_generator_in_data_units_is_the_affine_map():
    units = Units((torch.tensor([1.0, 2.0]),), 3.0)
    network = separate(4, 1)(Shapes(2, ((2,),)), rng())
    z = torch.randn(5, 2, generator=rng())
    assert torch.allclose(InDataUnits(network, units)(z)[0], 3 * network(z)[0] + torch.tensor([1.0, 2.0]))
