"""DASPOT's game: a plan between source and target, and classifiers that learn from labels and from the plan's pairs.

The section "SPOT for Domain Adaptation" of the paper. Critics and classifiers share layers, so that this is no minimax
problem: the judges minimise one loss (critics, risks and cost), the generator another (critics and cost).
"""

__all__ = ["Adaptation", "Clock", "Labelled", "PairRisk", "Parts", "SelfTraining", "Teacher"]

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from torchspot.errors import InvalidArgument
from torchspot.networks.augmentation import Change
from torchspot.networks.generators import InDataUnits
from torchspot.networks.judges import Judges
from torchspot.objectives.adversarial import Adversarial
from torchspot.types import Samples, Values

Numbers = Float[Tensor, "batch numbers"]
Scores = Float[Tensor, "batch classes"]

SOURCE, TARGET = 0, 1
_SHARE_DECAY = 0.01


@dataclass(frozen=True)
class PairRisk:
    """E[ℰ(D_Y(G_Y(z)), argmax_k D_X(G_X(z))_k)]: both ends of a generated pair are to have the same label (DA-risk)."""

    weight: float = 1.0
    """η_da."""
    start: float = 0.25
    """In this part of the run the weight is 0, until the generator is worth learning from."""
    confidence: float = 0.0
    """Pairs whose source end is not as sure as this do not count."""

    def __post_init__(self) -> None:
        _check_shares(self.weight, start=self.start, confidence=self.confidence)


@dataclass(frozen=True)
class SelfTraining:
    """A teacher, the average of the judges, labels target samples; where it is sure, the judges learn its labels.

    The teacher sees samples changed a little and the judges see them changed more, so that there is something to
    learn. No target label is ever seen.

    References: "Self-ensembling for visual domain adaptation", G. French, M. Mackiewicz and M. Fisher, 2018;
    "FixMatch: Simplifying semi-supervised learning with consistency and confidence", K. Sohn et al., 2020.
    """

    weight: float = 1.0
    start: float = 0.0
    """In this part of the run the weight is 0."""
    confidence: float = 0.9
    """Samples of which the teacher is less sure do not count."""
    alignment: float = 0.0
    """From 0, the teacher's labels as they are, to 1: weighed so that classes are as frequent as in the source."""

    def __post_init__(self) -> None:
        shares = {"start": self.start, "confidence": self.confidence, "alignment": self.alignment}
        _check_shares(self.weight, **shares)


@dataclass(frozen=True)
class Parts:
    """How much each part of the judges' loss counts, and what is optional."""

    critic: float = 1.0
    source: float = 1.0
    """η_s."""
    cost: float = 0.01
    pairs: PairRisk | None = None
    teaching: SelfTraining | None = None

    def __post_init__(self) -> None:
        if min(self.critic, self.source, self.cost) < 0:
            raise InvalidArgument(f"weights of losses must be at least 0, and are {self}.")


class Clock(nn.Module):
    """How much of the run is done, where captured steps can read it; and how frequent the teacher finds each class."""

    done: Tensor
    shares: Tensor

    def __init__(self, steps: int, shares: Float[Tensor, " classes"]) -> None:
        super().__init__()
        self.steps = steps
        self.register_buffer("done", torch.zeros(()))
        self.register_buffer("shares", shares.clone())

    def tick(self) -> None:
        """One step more."""
        self.done.add_(1 / self.steps)


class Teacher(nn.Module):
    """The exponential average of the judges. Its weights are buffers: they are saved, and nobody's to train.

    Statistics of batches are those of the judges; but of the target, where the teacher looks at target samples itself,
    its own: it sees them nearly as they are.
    """

    def __init__(self, judges: Judges, decay: float, *, looks: bool) -> None:
        super().__init__()
        self.decay, self._copied = decay, SOURCE + 1 if looks else TARGET + 1
        self.judges = copy.deepcopy(judges)
        for module in self.judges.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, parameter.detach().clone())

    @torch.no_grad()
    def follow(self, judges: Judges) -> None:
        """One step of the average."""
        mine, theirs = dict(self.judges.named_buffers()), dict(judges.named_buffers())
        moving = dict(judges.named_parameters())
        torch._foreach_lerp_([mine[name] for name in moving], list(moving.values()), 1 - self.decay)
        if theirs:
            kept = self._copied
            torch._foreach_copy_([mine[name][:kept] for name in theirs], [b[:kept] for b in theirs.values()])


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
    """Judges: critic · Σ_i ℓ(λ_i) + source · E ℰ(D(x), v) + cost · E c + pairs + teaching; G: critic pulls and cost.

    c(x, y) = ‖D_e(x) − D_e(y)‖² (DA-cost).
    """

    generator: InDataUnits
    judges: Judges
    teacher: Teacher
    clock: Clock
    parts: Parts
    adversarial: Adversarial
    change: Change
    """Through which judges see all samples; the teacher sees them through `change.slight`."""
    source_shares: Float[Tensor, " classes"]

    def judge_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """For batch = (z, labelled rows, y, numbers of changes), the numbers of x, y, pairs and the teacher's y."""
        z, rows, y, numbers = batch
        x, v = Labelled.parted(rows, tuple(y.shape[1:]))
        of_x, of_y, of_pairs, of_teacher = numbers.chunk(4, dim=1)
        real = self.generator.units.from_data((x, y))
        with torch.no_grad():
            fake = self.generator.standardised(z)
        at_x = self._judged(self.change(real[SOURCE], of_x), SOURCE, real=True)
        at_y = self._judged(self.change(real[TARGET], of_y), TARGET, real=True)
        pair = self._pair(fake, of_pairs)
        loss = self.parts.source * cross_entropy(at_x.scores, v) + self.parts.cost * _apart(pair)
        critics = self.adversarial.critic_loss(_stacked((at_x, at_y)), _stacked(pair)).sum()
        loss = loss + self.parts.critic * critics
        if self.parts.pairs is not None:
            loss = loss + self._pair_risk(pair, self.parts.pairs)
        if self.parts.teaching is not None:
            loss = loss + self._taught(at_y.scores, self.change.slight(real[TARGET], of_teacher), self.parts.teaching)
        return loss

    def generator_loss(self, batch: tuple[Tensor, ...]) -> Float[Tensor, ""]:
        """For batch = (z, numbers of changes)."""
        z, numbers = batch
        pair = self._pair(self.generator.standardised(z), numbers)
        return self.adversarial.pull(_stacked(pair)).sum() + self.parts.cost * _apart(pair)

    def after_judges(self) -> None:
        """The critics are kept Lipschitz, the teacher follows, and time goes on."""
        self.judges.after_step()
        self.teacher.follow(self.judges)
        self.clock.tick()

    def _pair(self, us: Samples, numbers: Numbers) -> tuple[_Judged, _Judged]:
        """Both ends of generated pairs, changed alike."""
        x, y = (self._judged(self.change(u, numbers), k, real=False) for k, u in enumerate(us))
        return x, y

    def _judged(self, u: Tensor, k: int, *, real: bool) -> _Judged:
        h = self.judges.embed(u, k, real=real)
        return _Judged(h, self.judges.scores(h).float(), self.judges.critic(h, k).float())

    def _pair_risk(self, pair: tuple[_Judged, _Judged], risk: PairRisk) -> Float[Tensor, ""]:
        sure, label = pair[SOURCE].scores.detach().softmax(1).max(1)
        each = cross_entropy(pair[TARGET].scores, label, reduction="none")
        return self._since(risk.start) * risk.weight * (each * (sure >= risk.confidence)).mean()

    def _taught(self, scores: Scores, y: Tensor, teaching: SelfTraining) -> Float[Tensor, ""]:
        """Cross-entropy to the teacher's labels, of samples of which it is sure."""
        with torch.no_grad():
            h = self.teacher.judges.embed(y, TARGET, real=True)
            said = self.teacher.judges.scores(h).float().softmax(1)
            self.clock.shares.lerp_(said.mean(0), _SHARE_DECAY)
            said = said * (self.source_shares / self.clock.shares) ** teaching.alignment
            sure, label = (said / said.sum(1, keepdim=True)).max(1)
        each = cross_entropy(scores, label, reduction="none")
        return self._since(teaching.start) * teaching.weight * (each * (sure >= teaching.confidence)).mean()

    def _since(self, start: float) -> Float[Tensor, ""]:
        """1 from this part of the run on, and 0 before."""
        return (self.clock.done >= start).float()


def _apart(pair: tuple[_Judged, _Judged]) -> Float[Tensor, ""]:
    """E c."""
    x, y = (end.embedded.float() for end in pair)
    return (x - y).square().sum(1).mean()


def _stacked(judged: tuple[_Judged, _Judged]) -> Float[Tensor, "marginals batch"]:
    return torch.stack([one.critic for one in judged])


def _check_shares(weight: float, **shares: float) -> None:
    if not weight >= 0:
        raise InvalidArgument(f"the weight of a loss must be at least 0, and is {weight}.")
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise InvalidArgument(f"{name} must be from 0 to 1, and is {value}.")
