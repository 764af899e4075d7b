"""Generators return a tuple of the right shapes, and units lose nothing."""

import pytest
import torch
from torch import nn

from torchspot.networks.anchored import anchored
from torchspot.networks.critics import mlp_critics
from torchspot.networks.generators import (
    InDataUnits,
    Shapes,
    Units,
    around_affine,
    separate,
    shared_trunk,
)
from torchspot.networks.specification import from_spec, to_spec

SHAPES = Shapes(4, ((2,), (3,), (1, 5, 5)))
START = (torch.eye(2, 4), torch.ones(3, 4), torch.ones(25, 4))
BUILDERS = [separate(8, 2), separate(8, 1), shared_trunk(8, 2), around_affine(8, 2, START)]
IDS = ["separate", "shallow", "shared trunk", "around affine"]
ANCHORED = [((0,), (separate(8, 2),)), ((1,), (shared_trunk(8, 2),)), ((0, 1), (separate(8, 2), separate(8, 2)))]


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("builder", BUILDERS, ids=IDS)
def test_every_generator_gives_a_tuple_and_every_parameter_a_gradient(builder):
    network = builder(SHAPES, rng())
    with torch.no_grad():
        for parameter in network.parameters():  # what starts at 0 would pass no gradient on
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng()))
    made = network(torch.randn(6, 4, generator=rng()))
    assert isinstance(made, tuple)
    assert [tuple(x.shape) for x in made] == [(6, 2), (6, 3), (6, 1, 5, 5)]
    sum(x.square().sum() for x in made).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("builder", BUILDERS, ids=IDS)
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


@pytest.mark.parametrize("builder", BUILDERS, ids=IDS)
def test_a_generator_is_rebuilt_from_its_description_without_memory(builder):
    network = builder(SHAPES, rng())
    again = from_spec(to_spec(network), SHAPES)
    assert all(p.is_meta for p in again.parameters())
    again.load_state_dict(network.state_dict(), assign=True)
    z = torch.randn(3, 4, generator=rng())
    assert all(torch.equal(a, b) for a, b in zip(network(z), again(z), strict=True))


@pytest.mark.parametrize(("at", "builders"), ANCHORED)
def test_anchored_generators_keep_the_sample_and_are_rebuilt(at, builders):
    sizes = (2, 3, 25)
    shapes = Shapes(sum(sizes[a] for a in at) + 1, SHAPES.marginals)
    network = anchored(at, dict(zip(at, builders, strict=True)).__getitem__)(shapes, rng())
    z = torch.randn(7, shapes.latent, generator=rng())
    made = network(z)
    assert [tuple(x.shape) for x in made] == [(7, 2), (7, 3), (7, 1, 5, 5)]
    offset = 0
    for j, a in enumerate(at):
        mine = slice(j, None, len(at))
        assert torch.equal(made[a].flatten(1)[mine], z[mine, offset : offset + sizes[a]])
        offset += sizes[a]
    sum(x.square().sum() for x in made).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())
    again = from_spec(to_spec(network), shapes)
    assert all(p.is_meta for p in again.parameters())
    again.load_state_dict(network.state_dict(), assign=True)
    assert all(torch.equal(a, b) for a, b in zip(network(z), again(z), strict=True))


def test_around_affine_starts_at_the_affine_plan_and_adds_to_it():
    network = around_affine(8, 2, START)(SHAPES, rng())
    z = torch.randn(5, 4, generator=rng())
    for made, a in zip(network(z), START, strict=True):
        assert torch.allclose(made.flatten(1), z @ a.mT)
    assert not any(parameter is network.matrices for parameter in network.parameters())
    with torch.no_grad():
        network.rest.networks[-1].bias.add_(1)
    assert torch.allclose(network(z)[0], z @ START[0].mT + 1)


def test_the_paper_counts_its_parameters_right():
    for width, count in ((2, 36), (1024, 2_109_444)):
        network = separate(width, 2)(Shapes(2, ((2,), (2,))), rng())
        assert sum(p.numel() for p in network.parameters()) == count


def test_aligned_networks_start_equal_as_far_as_their_sizes_go_and_are_not_tied():
    hidden, last = (separate(8, 2, aligned=True)(SHAPES, rng()).networks[k].weight for k in (2, 4))
    assert torch.equal(hidden[0], hidden[1])
    assert torch.equal(last[0, :2], last[1, :2])
    apart = separate(8, 2)(SHAPES, rng()).networks[2].weight
    assert not torch.equal(apart[0], apart[1])


@pytest.mark.parametrize("builder", BUILDERS[:3], ids=IDS[:3])
def test_networks_computed_together_are_those_computed_one_by_one(builder):
    network, z = builder(SHAPES, rng()), torch.randn(6, 4, generator=rng())
    for k, together in enumerate(network(z)):
        h = z
        if hasattr(network, "trunk"):
            weight, bias = network.heads.weight, network.heads.bias
            rows = slice(sum(SHAPES.sizes[:k]), sum(SHAPES.sizes[: k + 1]))
            alone = nn.functional.linear(network.trunk(z), weight[rows], bias[rows])
        else:
            for layer in network.networks:
                h = layer(h) if not hasattr(layer, "weight") else h @ layer.weight[k].mT + layer.bias[k, :, 0]
            alone = h[:, : SHAPES.sizes[k]]
        assert torch.allclose(together.flatten(1), alone, atol=1e-6)


def test_zeros_that_fill_up_stay_zero():
    network = separate(8, 1)(SHAPES, rng())
    sum(x.square().sum() for x in network(torch.randn(6, 4, generator=rng()))).backward()
    last = network.networks[2]
    for k, size in enumerate(SHAPES.sizes):
        assert not last.weight[k, size:].any()
        assert not last.weight.grad[k, size:].any()
        assert last.weight.grad[k, :size].abs().sum() > 0


def test_separate_networks_share_nothing_and_a_trunk_is_one_module():
    apart = separate(8, 2)(SHAPES, rng())
    made = apart(torch.randn(6, 4, generator=rng()))
    for k, x in enumerate(made):
        for gradient in torch.autograd.grad(x.sum(), list(apart.parameters()), retain_graph=True):
            assert gradient[k].any()
            assert not gradient[[j for j in range(3) if j != k]].any()
    shared = shared_trunk(8, 2)(SHAPES, rng())
    assert len(list(shared.parameters())) == 2 * 2 + 2


def test_units_there_and_back_far_from_the_origin():
    means = (torch.full((2,), 1e4, dtype=torch.float64), torch.full((2,), -1e4, dtype=torch.float64))
    units = Units(means, 1e-3)
    us = tuple(torch.randn(100, 2, generator=rng()) for _ in range(2))
    back = units.from_data(units.to_data(us))
    for u, v in zip(us, back, strict=True):
        assert v.dtype == torch.float32
        assert torch.allclose(u, v, atol=1e-6)


def test_critics_of_samples_of_different_sizes_and_numbers_are_those_computed_one_by_one():
    critics = mlp_critics(16, 2)(Shapes(2, ((3,), (5,))), rng())
    us = (torch.randn(7, 3, generator=rng()), torch.randn(4, 5, generator=rng()))
    for k, (u, value) in enumerate(zip(us, critics(us), strict=True)):
        h = u.mT
        for layer in critics.networks:
            if hasattr(layer, "weight"):
                h = layer.weight[k][:, : len(h)] @ h
            else:
                a, b = h.chunk(2)
                h = torch.cat(((a + layer.bias[k]).abs(), b))
        assert torch.allclose(value, h[0], atol=1e-6)


def test_a_generator_in_data_units_is_the_affine_map():
    units = Units((torch.tensor([1.0, 2.0]),), 3.0)
    network = separate(4, 1)(Shapes(2, ((2,),)), rng())
    z = torch.randn(5, 2, generator=rng())
    assert torch.allclose(InDataUnits(network, units)(z)[0], 3 * network(z)[0] + torch.tensor([1.0, 2.0]))


def test_units_that_span_the_data_put_it_into_plus_minus_one():
    xs = (torch.tensor([[0.0, 4.0], [2.0, 1.0]]), torch.tensor([[10.0], [3.0]]))
    units = Units.spanning(xs, torch.float32)
    us = units.from_data(xs)
    assert min(float(u.min()) for u in us) == -1 and max(float(u.max()) for u in us) == 1
    assert all(torch.allclose(a, b) for a, b in zip(units.to_data(us), xs, strict=True))
    constant = Units.spanning((torch.ones(3, 2),), torch.float32)
    assert torch.equal(constant.from_data((torch.ones(3, 2),))[0], torch.zeros(3, 2))


def test_plain_units_leave_the_data_as_it_is():
    x = torch.tensor([[5.0, 7.0]])
    assert torch.equal(Units.plain((x,), torch.float32).from_data((x,))[0], x)
