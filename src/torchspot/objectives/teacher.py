"""The teacher of a domain adaptation, and what captured steps must know of the run."""

__all__ = ["SOURCE", "TARGET", "Alignment", "Clock", "Teacher"]

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchspot.networks.judges import DomainNorm, Judges
from torchspot.objectives.adaptation_parts import ClassAlignment

SOURCE, TARGET = 0, 1
"""Numbers of the marginals."""

_RATE = 0.02


class Clock(nn.Module):
    """How much of the run is done, where captured steps can read it."""

    done: Tensor

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.register_buffer("done", torch.zeros(()))

    def tick(self) -> None:
        """One step more."""
        self.done.add_(1 / self.steps)


class Alignment(nn.Module):
    """Weights e^φ of the classes with which the teacher finds them about as frequent as they are wanted.

    φ are potentials of the entropic transport of target samples to classes, where a pair costs −log of what the teacher
    says and bound · Σ_k |frequency_k − wanted_k| is added: its plan is closest to what the teacher says but for that.
    They maximise Σ_k wanted_k φ_k − E log Σ_k said_k e^{φ_k} over |φ_k| ≤ bound, and climb it a little with each batch.
    So a class that the teacher takes for another is found again, and one that is more frequent in truth keeps all
    samples of which the teacher is sure.

    Reference: "Stochastic Optimization for Large-scale Optimal Transport", A. Genevay et al., 2016.
    """

    wanted: Tensor
    potentials: Tensor
    heard: Tensor

    def __init__(self, wanted: Float[Tensor, " classes"], part: ClassAlignment, steps: int) -> None:
        super().__init__()
        self.bound, self.full = part.bound, max(1.0, min(part.steps, steps / 3))
        self.register_buffer("wanted", wanted.clone())
        self.register_buffer("potentials", torch.zeros_like(wanted))
        self.register_buffer("heard", torch.zeros_like(wanted[0]))

    @property
    def power(self) -> Float[Tensor, ""]:
        """How much the potentials count: in full at first, and no more after half as many steps again."""
        return (3 - 2 * self.heard / self.full).clamp(0, 1)

    @torch.no_grad()
    def follow(self, said: Float[Tensor, "batch classes"]) -> None:
        """One step of the potentials, for what the teacher says of a batch."""
        lacking = len(self.wanted) * (self.wanted - self.weighed(said, 1.0).mean(0))
        self.potentials.add_(_RATE * lacking).clamp_(-self.bound, self.bound)
        self.heard.add_(1)

    def weighed(self, said: Float[Tensor, "batch classes"], power: Tensor | float) -> Float[Tensor, "batch classes"]:
        """What the teacher says, with weights e^(power · φ)."""
        said = said * (power * self.potentials).exp()
        return said / said.sum(1, keepdim=True)


class Teacher(nn.Module):
    """The exponential average of the judges. Its weights are buffers: they are saved, and nobody's to train.

    Statistics of batches are those of the judges; but of the target, where the teacher looks at target samples itself,
    its own: it sees them nearly as they are.
    """

    def __init__(self, judges: Judges, decay: float, *, looks: bool) -> None:
        super().__init__()
        self.decay, self._looks = decay, looks
        self.judges = copy.deepcopy(judges)
        for module in self.judges.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, parameter.detach().clone())

    @torch.no_grad()
    def follow(self, judges: Judges) -> None:
        """One step of the average."""
        mine, moving = dict(self.judges.named_buffers()), dict(judges.named_parameters())
        torch._foreach_lerp_([mine[name] for name in moving], list(moving.values()), 1 - self.decay)
        own = self._own_statistics()
        pairs = [
            pair
            for name, buffer in judges.named_buffers()
            for pair in (_without_target(mine[name], buffer) if name in own else [(mine[name], buffer)])
        ]
        if pairs:
            torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])

    def _own_statistics(self) -> set[str]:
        """Names of buffers of which the target's row is the teacher's own."""
        norms = [name for name, module in self.judges.named_modules() if isinstance(module, DomainNorm)]
        return {f"{name}.{kind}" for name in norms for kind in ("mean", "variance")} if self._looks else set()


def _without_target(mine: Tensor, theirs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The rows (of each marginal) before and after the target's."""
    both = [(mine[:TARGET], theirs[:TARGET]), (mine[TARGET + 1 :], theirs[TARGET + 1 :])]
    return [pair for pair in both if len(pair[0])]
