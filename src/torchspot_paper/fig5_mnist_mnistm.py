"""Figure 5: paired digits of MNIST and MNIST-M from unpaired data, SPOT beside CoGAN."""

__all__ = ["draw", "run", "settings"]

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchspot import SPOT, costs, latents, presets
from torchspot.baselines import CoGAN
from torchspot.estimators.presets import Bursts, Preset
from torchspot.networks.lipschitz import Clipping, OperatorNorm
from torchspot.networks.tied import tied, tied_critics
from torchspot.training.optimizers import OptimisticAdam, RMSprop
from torchspot.training.schedules import Cosine
from torchspot_paper.datasets import PATCH, as_source, resized
from torchspot_paper.networks import no_sharing_critics, no_sharing_generators
from torchspot_paper.picture_tables import draw_numbers, sheet_name
from torchspot_paper.pictures import (
    Resized,
    Task,
    engine_for_pictures,
    judged,
    mnist_task,
    spot_of_pictures,
    steepest,
    write_sheet,
)
from torchspot_paper.recipe import Call, Outcome, Rows

EXPERIMENT = "fig5"
STEPS, LITERAL_STEPS = 20_000, 3_000
PRECISION_STEPS = 4_000
"""Of the runs that compare float32 with bfloat16, all else equal."""
PRECISIONS = ("float32", "bfloat16")
LITERAL_SIZE = 64
"""The appendix' networks of section 5.3 make pictures of 64 × 64."""


@dataclass(frozen=True)
class Setting:
    """A method, how it is trained, and its seed."""

    method: str
    preset: str
    seed: int

    def __str__(self) -> str:
        return f"{self.method}/{self.preset}/seed={self.seed}"

    @property
    def literal(self) -> bool:
        """Whether the networks are those of the appendix."""
        return self.method in ("spot-paper", "spot-reference")


def settings(quick: bool) -> list[Setting]:
    """SPOT, CoGAN with its own recipe and with ours, and the paper's own settings."""
    seeds = range(1) if quick else range(3)
    return [
        *(Setting("spot", "default", seed) for seed in seeds),
        *(Setting("cogan", "its own", seed) for seed in seeds),
        *([] if quick else [Setting("cogan", "ours", 0), *(Setting("spot", name, 0) for name in PRECISIONS)]),
        Setting("spot-paper", "paper", 0),
        Setting("spot-reference", "reference", 0),
    ]


def run(call: Call, setting: Setting) -> list[Outcome]:
    """Trains, judges, and writes the contact sheet of seed 0."""
    task = mnist_task(call)
    started = time.perf_counter()
    fitted = FITS[setting.method](call, setting, task)
    plan, seconds = fitted.plan_, time.perf_counter() - started
    shown = Resized(plan, PATCH) if setting.literal else plan
    if setting.seed == 0:
        write_sheet(shown, task, call.out / "sheets" / sheet_name(EXPERIMENT, setting.method, setting.preset))
    facts = {"task": task.name, "method": setting.method, "preset": setting.preset, "seed": setting.seed}
    numbers = judged(shown, task, call) | ({} if call.quick and setting.literal else steepest(fitted))
    return [Outcome(facts | {"steps": plan.facts["steps"]}, numbers, 1, seconds)]


def draw(rows: Rows, file: Path) -> None:
    """Pairing and quality of each method."""
    draw_numbers(rows, ("contour_ratio", "label_agreement", "frechet_x", "frechet_y"), file)


def _spot(call: Call, setting: Setting, task: Task) -> SPOT | CoGAN:
    engine = call.engine() if setting.preset == "float32" else None
    steps = PRECISION_STEPS if setting.preset in PRECISIONS else STEPS
    return spot_of_pictures(call, task, seed=setting.seed, steps=steps, engine=engine)


def _cogan(call: Call, setting: Setting, task: Task) -> SPOT | CoGAN:
    own: dict[str, Any] = {"batch_size": 8} if call.quick else {}
    if setting.preset == "ours":
        ours = presets.pictures()
        own |= {
            "critics": tied_critics(control=OperatorNorm()),
            "latent": latents.pieces(116),
            "adversarial": ours.adversarial,
            "optimizer": OptimisticAdam(ours.rates(tied().width)[0], ours.betas, Cosine()),
            "averaging": ours.averaging,
        }
    cogan = CoGAN(
        cost=task.cost,
        steps=4 if call.quick else STEPS,
        seed=setting.seed,
        engine=engine_for_pictures(call),
        **own,
    )
    return cogan.fit(*task.sources())


def paper_recipe() -> Preset:
    """Section 5.3 as printed: batches of 32, spectral norm; what it does not say is as in section 5.1.

    η = 350 a sample is what the authors' scripts have for pictures.
    """
    return replace(presets.paper(1e-4), marginal_weight=350.0, batch_size=32, steps=LITERAL_STEPS)


def reference_recipe() -> Preset:
    """What the authors' scripts do: clipping at ±.01, RMSprop at 5·10⁻⁵, bursts of critic steps."""
    return replace(
        paper_recipe(),
        learning_rate=5e-5,
        critic_learning_rate=5e-5,
        optimizer=RMSprop,
        betas=(0.0, 0.99),
        control=Clipping(0.01),
        critic_steps=Bursts(),
    )


def _literal(call: Call, setting: Setting, task: Task) -> SPOT | CoGAN:
    recipe = paper_recipe() if setting.method == "spot-paper" else reference_recipe()
    cost = costs.contour if setting.method == "spot-paper" else costs.signed_contour
    spot = SPOT(
        cost=cost,
        preset=recipe,
        generator=no_sharing_generators,
        critics=no_sharing_critics(recipe.control),
        latent=latents.normal(100),
        steps=2 if call.quick else None,
        batch_size=4 if call.quick else None,
        seed=setting.seed,
        engine=call.engine(),
    )
    return spot.fit(*(as_source(resized(x, LITERAL_SIZE)) for x in task.train))


FITS: dict[str, Callable[[Call, Setting, Task], SPOT | CoGAN]] = {
    "spot": _spot,
    "cogan": _cogan,
    "spot-paper": _literal,
    "spot-reference": _literal,
}
