"""DASPOT's losses against what the formulas give by hand; the teacher; parts that wait for their time."""

import copy
from dataclasses import replace

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import minimize
from torch.nn.functional import cross_entropy, softplus

from torchspot import presets
from torchspot.errors import InvalidArgument
from torchspot.networks.adversaries import Adversaries
from torchspot.networks.augmentation import Noise, Unchanged
from torchspot.networks.generators import InDataUnits, Shapes, Units, separate
from torchspot.networks.judges import JudgeShapes, mlp_judges, picture_judges
from torchspot.networks.translated import translated
from torchspot.objectives.adaptation import Adaptation
from torchspot.objectives.adaptation_parts import (
    ClassAlignment,
    DomainAdversary,
    PairRisk,
    Parts,
    SelfTraining,
    Translation,
)
from torchspot.objectives.adversarial import Logistic
from torchspot.objectives.teacher import Alignment, Clock, Teacher

SHARES = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
BATCH, SEPARATE = 12, separate(8, 2)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def game(parts, change=None, *, marginals=2, builder=SEPARATE):
    units = Units((torch.tensor([1.0, 2.0]),) * 2, 3.0, dtype=torch.float64)
    network = builder(Shapes(4, ((2,), (2,))), rng(1)).double()
    judges = mlp_judges(8)(JudgeShapes(((2,),) * marginals, 3), rng(2)).double()
    with torch.no_grad():
        for p in judges.first[1].parameters():
            p.add_(0.3)
    adversaries = Adversaries([(8,), (8,)], rng(3)).double() if parts.adversary else None
    teacher = Teacher(judges, 0.9, looks=parts.teaching is not None)
    clock, aligning = Clock(10).double(), parts.teaching and parts.teaching.alignment
    alignment = aligning and Alignment(SHARES, aligning, steps=3000)
    made = InDataUnits(network, units.double())
    return Adaptation(made, judges, teacher, clock, alignment, adversaries, parts, Logistic(), change or Unchanged())


def batch(changes=1):
    z, x, y = (torch.randn(BATCH, n, generator=rng(k)).double() for k, n in ((4, 4), (5, 2), (6, 2)))
    v = torch.randint(3, (BATCH,), generator=rng(7))
    numbers = torch.rand(BATCH, 4 * changes, generator=rng(8)).double() * 2 - 1
    return z, torch.cat((x, v[:, None].double()), dim=1), y, numbers


def by_hand(g):
    """Embeddings of (x, y, G_X, G_Y), and the labels."""
    z, rows, y, _ = batch()
    us = [(u - torch.tensor([1.0, 2.0])) / 3 for u in (rows[:, :2], y)] + list(g.generator.standardised(z))
    return [g.judges.trunk(g.judges.first[k % 2](u)) for k, u in enumerate(us)], rows[:, 2].long()


def test_losses_are_those_of_the_formulas():
    g = game(Parts(critic=0.7, pull=2.5, source=1.3, cost=0.11, pairs=PairRisk(0.5, start=0.0)))
    hs, v = by_hand(g)
    lam = [g.judges.heads[k % 2](h).flatten() for k, h in enumerate(hs)]
    critics = sum((softplus(lam[k]) + softplus(-lam[k + 2])).mean() for k in (0, 1))
    cost = (hs[2] - hs[3]).square().sum(1).mean()
    pairs = cross_entropy(g.judges.last(hs[3]), g.judges.last(hs[2]).argmax(1))
    risk = cross_entropy(g.judges.last(hs[0]), v)
    torch.testing.assert_close(g.judge_loss(batch()), 0.7 * critics + 1.3 * risk + 0.11 * cost + 0.5 * pairs)
    pull = sum(softplus(lam[k]).mean() for k in (2, 3))
    torch.testing.assert_close(g.generator_loss((batch()[0], batch()[3][:, :1])), 2.5 * pull + 0.11 * cost)


@pytest.mark.parametrize(("done", "weight"), [(0.0, 0.25), (0.4, 0.01), (1.0, 0.0)])
def test_the_ground_cost_is_the_generators_alone_and_fades(done, weight):
    plain, grounded = game(Parts()), game(Parts(ground=0.25))
    grounded.clock.done.fill_(done)
    z, _, _, numbers = batch()
    x, y = plain.generator.standardised(z)
    apart = (x - y).square().sum(1).mean() / 2
    torch.testing.assert_close(
        grounded.generator_loss((z, numbers[:, :1])), plain.generator_loss((z, numbers[:, :1])) + weight * apart
    )
    torch.testing.assert_close(grounded.judge_loss(batch()), plain.judge_loss(batch()))


def test_judges_do_not_move_the_generator_and_pseudo_labels_do_not_either():
    g = game(Parts(pairs=PairRisk(1.0, start=0.0)))
    g.judge_loss(batch()).backward()
    assert all(p.grad is None for p in g.generator.parameters())
    assert all(p.grad is not None for p in g.judges.parameters())


def test_a_part_waits_for_its_time_and_its_confidence():
    none = game(Parts()).judge_loss(batch())
    late = game(Parts(pairs=PairRisk(5.0, start=0.35)))
    torch.testing.assert_close(late.judge_loss(batch()), none)
    for _ in range(4):
        late.clock.tick()
    assert late.judge_loss(batch()) > none
    shy = game(Parts(pairs=PairRisk(5.0, start=0.0, confidence=1.0)))
    torch.testing.assert_close(shy.judge_loss(batch()), none)


def test_the_teacher_is_an_exponential_average():
    g = game(Parts())
    start = [p.detach().clone() for p in g.judges.parameters()]
    with torch.no_grad():
        for p in g.judges.parameters():
            p.add_(1.0)
    g.after_judges()
    for mine, before in zip(g.teacher.judges.buffers(), start, strict=True):
        torch.testing.assert_close(mine, before + 0.1)
    assert not list(g.teacher.parameters())
    assert float(g.clock.done) == pytest.approx(0.1)


def test_the_teacher_has_its_own_statistics_of_the_target_if_it_looks():
    judges = picture_judges(4, 8)(JudgeShapes(((1, 12, 12),) * 2, 3), rng())
    for looks in (True, False):
        teacher, student = Teacher(judges, 0.5, looks=looks), copy.deepcopy(judges)
        student.embed(torch.randn(8, 1, 12, 12) + 5, 0, real=True)
        student.embed(torch.randn(8, 1, 12, 12) + 5, 1, real=True)
        teacher.follow(student)
        mine, theirs = teacher.judges.first[0][1].mean, student.first[0][1].mean
        assert mine[0].equal(theirs[0])
        assert mine[1].equal(theirs[1]) != looks


def test_teaching_is_cross_entropy_to_sure_labels_of_the_teacher():
    g = game(Parts(teaching=SelfTraining(2.0, confidence=0.371)))
    plain = game(Parts())
    hs, _ = by_hand(g)
    said = g.judges.last(hs[1]).softmax(1)  # the teacher is what the judges are at the start
    sure, label = said.max(1)
    assert 0 < (sure > 0.371).sum() < BATCH
    each = cross_entropy(g.judges.last(hs[1]), label, reduction="none")
    expected = plain.judge_loss(batch()) + 2 * (each * (sure > 0.371)).mean()
    torch.testing.assert_close(g.judge_loss(batch()), expected)


def test_alignment_weighs_classes_and_ends():
    g = game(Parts(teaching=SelfTraining(1.0, confidence=0.0, alignment=ClassAlignment(20.0, steps=100))))
    first = game(Parts()).judge_loss(batch())
    hs, _ = by_hand(g)
    zero, label = torch.zeros(BATCH, dtype=torch.long), g.judges.last(hs[1]).argmax(1)
    for heard, expected in ((0, zero), (99, zero), (140, zero), (149, label), (10_000, label)):
        g.alignment.potentials.copy_(torch.tensor([20.0, 0.0, 0.0]).double())
        g.alignment.heard.fill_(heard)
        torch.testing.assert_close(g.judge_loss(batch()), first + cross_entropy(g.judges.last(hs[1]), expected))
        assert g.alignment.heard == heard + 1


@pytest.mark.parametrize(("steps", "full"), [(6000, 1000), (1500, 500), (2, 1)])
def test_alignment_is_over_by_the_middle_of_a_run(steps, full):
    alignment = Alignment(SHARES, ClassAlignment(steps=1000), steps)
    powers = []
    for heard in (0, full, 1.25 * full, 1.5 * full, steps + 2):
        alignment.heard.fill_(heard)
        powers.append(float(alignment.power))
    assert powers == [1, 1, 0.5, 0, 0]


def test_potentials_follow_what_the_teacher_says():
    g = game(Parts(teaching=SelfTraining(alignment=ClassAlignment(0.9))))
    hs, _ = by_hand(g)
    said = g.judges.last(hs[1]).softmax(1)
    g.judge_loss(batch())
    torch.testing.assert_close(g.alignment.potentials, 0.02 * 3 * (SHARES - said.mean(0)))


def aligned(said, bound):
    """After hearing the same batch again and again, until the potentials stay."""
    alignment = Alignment(SHARES, ClassAlignment(bound), steps=3000)
    for _ in range(5000):
        alignment.follow(said)
    return alignment


def test_with_wide_bounds_labels_are_those_of_entropic_transport():
    said = torch.randn(64, 3, generator=rng(11)).double().softmax(1)
    alignment = aligned(said, 10.0)
    plan = ot.sinkhorn(np.full(64, 1 / 64), SHARES.numpy(), -said.log().numpy(), reg=1.0)
    np.testing.assert_allclose(alignment.weighed(said, 1.0).numpy() / 64, plan, atol=1e-6)
    torch.testing.assert_close(alignment.weighed(said, 0.0), said)


def test_bounds_are_the_price_of_other_frequencies():
    said, bound = torch.randn(12, 3, generator=rng(11)).double().softmax(1), 0.2
    weighed = aligned(said, bound).weighed(said, 1.0)
    assert 0.01 < (weighed.mean(0) - SHARES).abs().max() < (said.mean(0) - SHARES).abs().max()

    def price(numbers):
        rows, off = numbers[:36], numbers[36:]
        return (rows * np.log(rows / said.numpy().ravel())).sum() / 12 + bound * off.sum()

    def frequencies(numbers):
        return numbers[:36].reshape(12, 3).mean(0) - SHARES.numpy()

    constraints = [
        {"type": "eq", "fun": lambda numbers: numbers[:36].reshape(12, 3).sum(1) - 1},
        {"type": "ineq", "fun": lambda numbers: numbers[36:] - frequencies(numbers)},
        {"type": "ineq", "fun": lambda numbers: numbers[36:] + frequencies(numbers)},
    ]
    start = np.append(said.numpy().ravel(), np.ones(3))
    best = minimize(price, start, bounds=[(1e-9, 1)] * 39, constraints=constraints, tol=1e-12)
    np.testing.assert_allclose(weighed.numpy().ravel(), best.x[:36], atol=1e-4)


def test_a_class_that_is_absent_does_not_take_over():
    said = torch.tensor([[0.599, 0.4, 0.001], [0.4, 0.599, 0.001]], dtype=torch.float64)
    assert aligned(said, 1.0).weighed(said, 1.0)[:, 2].max() < 0.02


def test_judges_see_changed_samples_and_both_ends_of_a_pair_changed_alike():
    noise = Noise(2, 0.5)
    g = game(Parts(critic=0.0, source=0.0, cost=1.0), noise)
    z, rows, y, numbers = batch(changes=2)
    ends = [u + 0.5 * numbers[:, 4:6] for u in g.generator.standardised(z)]
    hs = [g.judges.trunk(g.judges.first[k](u)) for k, u in enumerate(ends)]
    torch.testing.assert_close(g.judge_loss((z, rows, y, numbers)), (hs[0] - hs[1]).square().sum(1).mean())


def test_a_translation_has_a_critic_of_its_own_and_may_be_learned_from():
    parts = Parts(critic=1.0, source=0.0, cost=0.0, translation=Translation(weight=2.0, risk=3.0))
    g = game(parts, marginals=3, builder=translated(separate(8, 2), 8))
    without = replace(g, parts=replace(parts, translation=None))
    z, rows, y, numbers = batch()
    real = [(u - torch.tensor([1.0, 2.0])) / 3 for u in (rows[:, :2], y)]
    made = g.generator.generator.translate(real[0])
    h_y, h_t = (g.judges.trunk(g.judges.first[2](u)) for u in (real[1], made))
    lam_y, lam_t = (g.judges.heads[2](h).flatten() for h in (h_y, h_t))
    critic = (softplus(lam_y) + softplus(-lam_t)).mean()
    risk = cross_entropy(g.judges.last(h_t), rows[:, 2].long())
    torch.testing.assert_close(g.judge_loss(batch()), without.judge_loss(batch()) + 2 * critic + 3 * risk)
    pull = softplus(lam_t).mean()
    one = numbers[:, :1]
    torch.testing.assert_close(g.generator_loss((z, rows, one)), g.generator_loss((z, one)) + pull)


def test_adversaries_and_judges_pull_in_opposite_directions():
    g = game(Parts(adversary=DomainAdversary(0.5, shallow=True, deep=True)))
    plain = replace(g, parts=replace(g.parts, adversary=None))
    _, rows, y, numbers = batch()
    us = [(u - torch.tensor([1.0, 2.0])) / 3 for u in (rows[:, :2], y)]
    features = [(g.judges.first[k](u), g.judges.trunk(g.judges.first[k](u))) for k, u in enumerate(us)]
    told = [g.adversaries(each) for each in features]
    pulled = plain.judge_loss(batch()) + 0.5 * softplus(told[1]).mean(1).sum()
    torch.testing.assert_close(g.judge_loss(batch()), pulled)
    expected = (softplus(told[0]) + softplus(-told[1])).mean(1).sum()
    torch.testing.assert_close(g.adversary_loss((rows, y, numbers[:, :2])), expected)
    g.adversary_loss((rows, y, numbers[:, :2])).backward()
    assert all(p.grad is None for p in g.judges.parameters())


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Parts(cost=-1),
        lambda: PairRisk(start=2),
        lambda: SelfTraining(confidence=-0.1),
        lambda: ClassAlignment(float("nan")),
        lambda: ClassAlignment(steps=0),
        lambda: Translation(risk=float("nan")),
        lambda: Translation(weight=-1),
        lambda: DomainAdversary(shallow=False),
    ],
)
def test_parts_are_checked(bad):
    with pytest.raises(InvalidArgument):
        bad()


@pytest.mark.parametrize(
    ("recipe", "ratio"), [(presets.adaptation_paper(), 100), (presets.adaptation_reference(), 100)]
)
def test_critics_count_a_hundred_times_as_much_as_the_cost_for_both_players(recipe, ratio):
    assert recipe.parts.pull / recipe.parts.cost == recipe.parts.critic / recipe.parts.cost == ratio
    assert recipe.parts.source / recipe.parts.cost == 10 * ratio
