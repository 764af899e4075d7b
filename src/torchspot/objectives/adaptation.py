"""DASPOT's game: a plan between source and target, and classifiers that learn from labels and from the plan's pairs.

The section "SPOT for Domain Adaptation" of the paper. Critics and classifiers share layers, so that this is no minimax
problem: the judges minimise one loss (critics, risks and cost), the generator another (critics and cost).
"""

__all__ = ["Adaptation", "Labelled"]

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from torchspot.networks.adversaries import Adversaries
from torchspot.networks.augmentation import Change
from torchspot.networks.generators import InDataUnits
from torchspot.networks.judges import Judges
from torchspot.objectives.adaptation_parts import DomainAdversary, PairRisk, Parts, SelfTraining, Translation
from torchspot.objectives.adversarial import Adversarial
from torchspot.objectives.teacher import SOURCE, TARGET, Alignment, Clock, Teacher
from torchspot.types import Samples, Values

Numbers = Float[Tensor, "batch numbers"]
Scores = Float[Tensor, "batch classes"]

TRANSLATED = 2
"""The number of the marginal that holds translated source samples to the target."""


class Labelled(NamedTuple):
    """Rows of numbers whose last is the number of their class."""

    x: Float[Tensor, "batch *shape"]
    v: Int[Tensor, " batch"]

    @classmethod
    def parted(cls, rows: Float[Tensor, "batch numbers"], shape: tuple[int, ...]) -> "Labelled":
        """Of rows as they are drawn."""
        return cls(rows[:, :-1].reshape(-1, *shape), rows[:, -1].long())


class _Judged(NamedTuple):
    """A batch as the judges see it."""

    embedded: Float[Tensor, "batch dim"]
    scores: Scores
    critic: Values


@dataclass(frozen=True)
class Adaptation:
    """Judges: critic · Σ_i ℓ(λ_i) + source · E ℰ(D(x), v) + cost · E c + pairs + …; G: pull · Σ_i pulls + cost · E c.

    c(x, y) = ‖D_e(x) − D_e(y)‖² (DA-cost).
    """

    generator: InDataUnits
    judges: Judges
    teacher: Teacher
    clock: Clock
    alignment: Alignment | None
    """Of what the teacher says, where the parts ask for it."""
    adversaries: Adversaries | None
    """Of the domains, where the parts ask for some."""
    parts: Parts
    adversarial: Adversarial
    change: Change
    """Through which judges see all samples; the teacher sees them through `change.slight`."""

    def judge_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """For batch = (z, labelled rows, y, numbers of changes), the numbers of x, y, pairs and the teacher's y."""
        z, rows, y, numbers = batch
        x, v = Labelled.parted(rows, tuple(y.shape[1:]))
        of_x, of_y, of_pairs, of_teacher = numbers.chunk(4, dim=1)
        real = self.generator.units.from_data((x, y))
        with torch.no_grad():
            fake = self.generator.standardised(z)
        numbers = torch.cat((of_x, of_y, of_pairs, of_pairs))
        at_x, at_y, *ends = self._judged((*real, *fake), numbers, (SOURCE, TARGET) * 2, real=(True, True, False, False))
        pair = (ends[SOURCE], ends[TARGET])
        loss = self.parts.source * cross_entropy(at_x.scores, v) + self.parts.cost * _apart(pair)
        critics = self.adversarial.critic_loss(_stacked((at_x, at_y)), _stacked(pair)).sum()
        loss = loss + self.parts.critic * critics
        if self.parts.pairs is not None:
            loss = loss + self._pair_risk(pair, self.parts.pairs)
        if self.parts.teaching is not None:
            loss = loss + self._taught(at_y.scores, self.change.slight(real[TARGET], of_teacher), self.parts.teaching)
        if self.parts.translation is not None:
            loss = loss + self._translation_loss((real, (of_x, of_y)), v, self.parts.translation)
        if self.parts.adversary is not None and self.adversaries is not None:
            told = self._whole(self.adversaries(self._features(self.change(real[TARGET], of_y), TARGET)))
            loss = loss + self.parts.adversary.weight * self.adversarial.pull(told).sum()
        return loss

    def generator_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """For batch = (z, labelled rows, numbers of changes), the rows only where there is a translation."""
        z, *rows, numbers = batch
        x, y = self.generator.standardised(z)
        pair = self._pair((x, y), numbers)
        loss = self.parts.pull * self.adversarial.pull(_stacked(pair)).sum() + self.parts.cost * _apart(pair)
        if self.parts.ground:
            fading = (1 - 2 * self.clock.done).clamp(min=0).square()
            loss = loss + self.parts.ground * fading * (x - y).square().mean()
        for drawn in rows:
            real, _ = Labelled.parted(drawn, tuple(self.generator.units.means[SOURCE].shape))
            made = self._translated(self.generator.units.from_data((real,), (SOURCE,))[0])
            (judged,) = self._judged((made,), numbers, (TRANSLATED,), real=(False,))
            loss = loss + self.parts.pull * self.adversarial.pull(judged.critic[None]).sum()
        return loss

    def adversary_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """Of the adversaries of the domains, for batch = (labelled rows, y, numbers of changes of both)."""
        rows, y, numbers = batch
        assert self.adversaries is not None  # or nobody would ask
        x, _ = Labelled.parted(rows, tuple(y.shape[1:]))
        both = zip(self.generator.units.from_data((x, y)), numbers.chunk(2, dim=1), strict=True)
        with torch.no_grad():
            features = [self._features(self.change(u, n), k) for k, (u, n) in enumerate(both)]
        of_x, of_y = (self._whole(self.adversaries(each)) for each in features)
        return self.adversarial.critic_loss(of_x, of_y).sum()

    def after_judges(self) -> None:
        """The critics are kept Lipschitz, the teacher follows, and time goes on."""
        self.judges.after_step()
        self.teacher.follow(self.judges)
        self.clock.tick()

    def _pair(self, us: Samples, numbers: Numbers) -> tuple[_Judged, _Judged]:
        """Both ends of generated pairs, changed alike."""
        x, y = self._judged(us, torch.cat((numbers, numbers)), (SOURCE, TARGET), real=(False, False))
        return x, y

    def _judged(
        self, us: Samples, numbers: Numbers, marginals: tuple[int, ...], *, real: tuple[bool, ...]
    ) -> list[_Judged]:
        """Several batches, changed by these numbers, of these marginals, data or not."""
        changed = self.change(torch.cat(us), numbers).chunk(len(us))
        embedded = self.judges.embed_all(tuple(zip(changed, marginals, real, strict=True)))
        scores = torch.split(self._whole(self.judges.scores(torch.cat(embedded))), [len(h) for h in embedded])
        critics = (self._whole(self.judges.critic(h, k)) for h, k in zip(embedded, marginals, strict=True))
        return [_Judged(*each) for each in zip(map(self._whole, embedded), scores, critics, strict=True)]

    def _whole(self, x: Tensor) -> Tensor:
        """In the precision of the weights, from that of products."""
        return x.to(self.generator.units.dtype)

    def _pair_risk(self, pair: tuple[_Judged, _Judged], risk: PairRisk) -> Float[Tensor, ""]:
        sure, label = pair[SOURCE].scores.detach().softmax(1).max(1)
        each = cross_entropy(pair[TARGET].scores, label, reduction="none")
        return self._since(risk.start) * risk.weight * (each * (sure >= risk.confidence)).mean()

    def _taught(self, scores: Scores, y: Tensor, teaching: SelfTraining) -> Float[Tensor, ""]:
        """Cross-entropy to the teacher's labels, of samples of which it is sure."""
        with torch.no_grad():
            h = self.teacher.judges.embed(y, TARGET, real=True)
            said = self._whole(self.teacher.judges.scores(h)).softmax(1)
            if self.alignment is not None:
                self.alignment.follow(said)
                said = self.alignment.weighed(said, self.alignment.power)
            sure, label = said.max(1)
        each = cross_entropy(scores, label, reduction="none")
        return self._since(teaching.start) * teaching.weight * (each * (sure >= teaching.confidence)).mean()

    def _translation_loss(
        self, seen: tuple[Samples, tuple[Numbers, Numbers]], v: Int[Tensor, " batch"], part: Translation
    ) -> Float[Tensor, ""]:
        """A critic tells target samples from translated ones, which also count as labelled, if they are to."""
        real, (of_x, of_y) = seen
        with torch.no_grad():
            made = self._translated(real[SOURCE])
        both, numbers = (real[TARGET], made), torch.cat((of_y, of_x))
        true, false = self._judged(both, numbers, (TRANSLATED, TRANSLATED), real=(True, False))
        critic = self.adversarial.critic_loss(true.critic[None], false.critic[None]).sum()
        return part.weight * self.parts.critic * critic + part.risk * cross_entropy(false.scores, v)

    def _translated(self, x: Tensor) -> Tensor:
        """T of standardised source samples."""
        network: Any = self.generator.generator
        return network.translate(x)

    def _features(self, u: Tensor, k: int) -> tuple[Tensor, ...]:
        """What the adversaries look at."""
        part = self.parts.adversary or DomainAdversary()
        looks = ((part.shallow, self.judges.shallow), (part.deep, self.judges.embed))
        return tuple(look(u, k) for wanted, look in looks if wanted)

    def _since(self, start: float) -> Float[Tensor, ""]:
        """1 from this part of the run on, and 0 before."""
        return (self.clock.done >= start).to(self.clock.done.dtype)


def _apart(pair: tuple[_Judged, _Judged]) -> Float[Tensor, ""]:
    """E c."""
    x, y = (end.embedded for end in pair)
    return (x - y).square().sum(1).mean()


def _stacked(judged: tuple[_Judged, _Judged]) -> Float[Tensor, "marginals batch"]:
    return torch.stack([one.critic for one in judged])
