"""Judges: what is shared, several batches at once, statistics of each marginal, and what keeps critics Lipschitz."""

import copy

import pytest
import torch

from torchspot.networks.adversaries import Adversaries
from torchspot.networks.convolutional import pictures
from torchspot.networks.generators import Shapes, separate
from torchspot.networks.judges import DomainNorm, Group, JudgeShapes, mlp_judges, picture_judges
from torchspot.networks.lipschitz import SpectralNorm
from torchspot.networks.specification import from_spec, to_spec
from torchspot.networks.translated import translated
from torchspot_paper.networks import cnn_judges

KINDS = {
    "vectors": (mlp_judges(16), (3,)),
    "pictures": (picture_judges(4, 8), (1, 12, 12)),
    "wide pictures": (picture_judges(4, 8), (3, 20, 33)),
    "appendix": (cnn_judges(), (1, 28, 28)),
}


def rng():
    return torch.Generator().manual_seed(0)


def made(kind, marginals=2):
    builder, shape = KINDS[kind]
    return builder(JudgeShapes((shape,) * marginals, 5), rng()).double(), shape


@pytest.mark.parametrize("kind", KINDS)
def test_several_batches_at_once_are_the_same_as_one_after_the_other(kind):
    together, shape = made(kind)
    apart = copy.deepcopy(together)
    us = [(k + 1) * torch.randn(6, *shape, generator=rng()).double() + k for k in range(4)]
    batches = list(zip(us, (0, 1, 0, 1), (True, True, False, False), strict=True))
    all_at_once = together.embed_all(batches)
    one_by_one = [apart.embed(u, k, real=real) for u, k, real in batches]
    for a, b in zip(all_at_once, one_by_one, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(together.buffers(), apart.buffers(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_gets_a_gradient_and_classes_and_critics_have_their_shapes(kind):
    judges, shape = made(kind)
    us = [torch.randn(6, *shape, generator=rng()).double() for _ in range(2)]
    hs = judges.embed_all([(u, k, True) for k, u in enumerate(us)])
    scores = [judges.scores(h) for h in hs]
    values = judges(tuple(us))
    assert [tuple(s.shape) for s in scores] == [(6, 5)] * 2
    assert [tuple(v.shape) for v in values] == [(6,)] * 2
    total = sum((s * torch.randn_like(s)).sum() for s in scores) + sum((v * torch.randn_like(v)).sum() for v in values)
    total.backward()
    assert not [name for name, p in judges.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]


def test_what_is_shared():
    ours, _ = made("pictures")
    assert ours.first[0] is ours.first[1] and ours.heads[0] is not ours.heads[1]
    vectors, _ = made("vectors")
    assert vectors.first[0] is not vectors.first[1]
    for a, b in zip(vectors.first[0].parameters(), vectors.first[1].parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_statistics_are_of_each_marginal_and_of_data_alone():
    norm = DomainNorm(3, 2, momentum=1.0).double()
    data = torch.randn(50, 3, generator=rng()).double() * 4 + 7
    norm(data, [_group(50, 1, real=True)])
    torch.testing.assert_close(norm.mean[1], data.mean(0))
    torch.testing.assert_close(norm.variance[1], data.var(0))
    assert norm.mean[0].eq(0).all() and norm.variance[0].eq(1).all()
    before = norm.mean.clone()
    norm(data + 100, [_group(50, 1, real=False)])
    assert norm.mean.equal(before)
    norm.eval()
    torch.testing.assert_close(
        norm(data, [_group(50, 1, real=False)]).mean(0), torch.zeros(3).double(), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("kind", KINDS)
def test_one_marginal_can_be_taken_as_another(kind):
    judges, shape = made(kind)
    judges.embed(torch.randn(9, *shape, generator=rng()).double() + 3, 0, real=True)
    with torch.no_grad():
        for p in judges.first[0].parameters():
            p.add_(0.1 * (judges.first[0] is not judges.first[1]))
    u = torch.randn(4, *shape, generator=rng()).double()
    judges.eval()
    assert not torch.allclose(judges.embed(u, 0), judges.embed(u, 1))
    judges.take_for(1, 0)
    torch.testing.assert_close(judges.embed(u, 0), judges.embed(u, 1))


def test_spectral_norm_of_judges_goes_on_after_each_step():
    judges = cnn_judges(SpectralNorm())(JudgeShapes(((1, 28, 28),) * 2, 10), rng())
    before = [b.clone() for b in judges.buffers()]
    judges.after_step()
    assert any(not a.equal(b) for a, b in zip(before, judges.buffers(), strict=True))


@pytest.mark.parametrize(("first", "shape"), [(separate(8, 2), (3,)), (pictures(4, 1), (1, 12, 12))])
def test_a_translation_starts_near_the_identity_and_can_be_learned(first, shape):
    generator = translated(first, 8)(Shapes(5, (shape, shape)), rng())
    x, y = generator(torch.randn(6, 5))
    assert x.shape == y.shape == (6, *shape)
    torch.testing.assert_close(y, (1.5 * x).tanh() if len(shape) > 1 else x)
    assert generator.translate(x).equal(y)
    (y * torch.randn_like(y)).sum().backward()
    last = list(generator.change.parameters())[-2]
    assert last.grad.abs().sum() > 0


def test_a_translation_starts_at_the_map_it_is_given_and_can_be_written():
    matrix = torch.randn(3, 3, generator=rng())
    shapes = Shapes(5, ((3,), (3,)))
    generator = translated(separate(8, 2), 8, matrix)(shapes, rng())
    x, y = generator(torch.randn(6, 5))
    torch.testing.assert_close(y, x @ matrix.T)
    again = from_spec(to_spec(generator), shapes)
    again.load_state_dict(generator.state_dict(), assign=True)
    torch.testing.assert_close(again.translate(x), y)
    with pytest.raises(ValueError, match="a translation of 'separate' between"):
        from_spec(to_spec(generator), Shapes(5, ((3,), (2,))))


def test_translated_vectors_pass_through_the_first_layers_of_the_target():
    judges = mlp_judges(8, 2)(JudgeShapes(((2,),) * 3, 4), rng())
    assert judges.first[2] is judges.first[1] and judges.first[1] is not judges.first[0]


def test_adversaries_take_maps_and_vectors():
    adversaries = Adversaries([(4, 9, 9), (7,)], rng())
    told = adversaries((torch.randn(5, 4, 9, 9), torch.randn(5, 7)))
    assert told.shape == (2, 5)
    told.sum().backward()
    assert all(p.grad is not None for p in adversaries.parameters())


def _group(size, marginal, *, real):
    return Group(size, marginal, real)
