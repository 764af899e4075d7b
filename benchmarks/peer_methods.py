"""How each library solves a problem of the comparison: prepared without the clock, then timed."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer_jobs import JUDGED_AT_ONCE, Answer, Cannot, Job, Method, Solve, all_pairs, entropic, fitting
from peer_ott import ott_enot, ott_neural, ott_sinkhorn
from torchspot import SPOT, costs, engines, latents, presets

POT_EPSILON = 0.05
"""Of POT's Sinkhorn, which has no default: as a part of the mean cost."""
BLUR, SCALING = 0.05, 0.9
"""Of GeomLoss and FlashSinkhorn: their default, and what GeomLoss advises where the distance itself is wanted (with its
default of .5 errors in two dimensions were 9 % and 45 % instead of 1 % and 18 %)."""
MORE_STEPS, MANY_ROWS = 4, 100_000
"""torchspot takes up to so many times its usual steps where there is time for them and from so many rows on: its values
and pairs come nearer by it (docs/peers.md). Fewer rows it would learn by heart."""
PACED = 256
"""Steps by which torchspot's pace is found."""


def torchspot(job: Job) -> Solve:
    """A map from real samples, at defaults but for the steps: fewer where they do not fit, more where they do.

    Above 32 dimensions defaults are for a GPU; on a CPU networks and batches are those of lower dimensions.
    """
    known = {"euclidean": costs.euclidean, "squared_euclidean": costs.squared_euclidean}
    cost = known.get(job.cost, job.laws.cost)
    sizes = presets.anchored().sizes(job.dim if job.device.type == "cuda" else min(job.dim, 32))
    preset = replace(presets.anchored(), width=sizes.width, batch_size=sizes.batch_size)

    def fit(steps: int) -> SPOT:
        engine, latent = engines.choose_engine(str(job.device)), latents.anchored(noise_dim=0)
        return SPOT(cost=cost, latent=latent, preset=preset, steps=steps, engine=engine).fit(job.x, job.y)

    fit(8)  # what is done once in a process
    started = time.perf_counter()
    records = fit(PACED).history_
    took, (first, last) = time.perf_counter() - started, (records[len(records) // 2], records[-1])
    pace = (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])
    most = sizes.steps * (MORE_STEPS if job.n >= MANY_ROWS else 1)
    steps = fitting(job.seconds, took - PACED * pace, pace, most)

    def solve() -> Answer:
        spot = fit(steps)
        more = {"steps": float(steps), "value_at_step_0": spot.history_[0]["cost"]}
        return Answer(spot.distance_.value, lambda points: spot.plan_.transport(points).to(points), more)

    return solve


def pot_emd(job: Job) -> Solve:
    """Exact transport by network simplex; partners by POT's rule, the displacement of the nearest row."""
    import ot

    _on_cpu_only(job)
    job.needs_matrix(24)

    def solve() -> Answer:
        matrix = job.matrix().double().numpy() if job.cost == "learned" else _by_pot(job)
        plan, log = ot.emd([], [], matrix, numItermax=100_000_000, log=True)
        return Answer(float(log["cost"]), _nearest(job.x, job.y[torch.from_numpy(plan.argmax(1))]))

    return solve


def pot_emd_split(job: Job) -> Solve:
    """Exact transport less that of halves of the data to each other: a debiased distance, and no plan."""
    import ot

    _on_cpu_only(job)
    job.takes("euclidean", "squared_euclidean")
    job.needs_matrix(24)

    def solve() -> Answer:
        x, y = job.x.double().numpy(), job.y.double().numpy()
        found = ot.solve_sample(x, y, metric=_POT_NAMES[job.cost], debias="split", max_iter=100_000_000)
        return Answer(float(found.value), None)

    return solve


def pot_sinkhorn(job: Job) -> Solve:
    """ot.sinkhorn on the whole matrix, ε a twentieth of the mean cost; the cost of its plan."""
    import ot

    job.needs_matrix(32)

    def solve() -> Answer:
        dtype = torch.float64
        matrix = (job.matrix() if job.cost == "learned" else all_pairs(job.cost, job.x, job.y)).to(dtype)
        mass = torch.full((job.n,), 1 / job.n, dtype=dtype, device=job.device)
        epsilon = POT_EPSILON * float(matrix.mean())
        plan, log = ot.sinkhorn(mass, mass, matrix, epsilon, log=True)
        g = epsilon * log["v"].log()
        return Answer(float((plan * matrix).sum()), entropic(job, g, epsilon))

    return solve


def pot_lazy(job: Job) -> Solve:
    """POT's lazy Sinkhorn, which does not keep the matrix."""
    import ot

    job.takes("euclidean", "squared_euclidean")
    epsilon = POT_EPSILON * float(job.laws.cost(job.x, job.y).mean())  # rows are unpaired

    def solve() -> Answer:
        size = min(job.n, 4096)
        found = ot.solve_sample(
            job.x, job.y, reg=epsilon, lazy=True, batch_size=size, tol=1e-3, metric=_POT_NAMES[job.cost], grad="detach"
        )
        g = epsilon * torch.as_tensor(found.potentials[1], device=job.device)  # lazy ones are given over ε
        return Answer(float(found.value_linear), entropic(job, g, epsilon))

    return solve


def geomloss(job: Job) -> Solve:
    """The debiased divergence; potentials for partners from a second, plain solve."""
    from geomloss import SamplesLoss

    p = 1 if job.cost == "euclidean" else 2
    factor = 2.0 if job.cost == "squared_euclidean" else 1.0  # its cost is half the square
    if job.cost == "learned":
        job.needs_matrix(32)
        common = {"p": 2, "blur": BLUR, "scaling": SCALING, "backend": "tensorized", "cost": _on_batches(job.laws.cost)}
    else:
        whole = job.n <= (20_000 if job.device.type == "cuda" else 5000)
        common = {"p": p, "blur": BLUR, "scaling": SCALING, "backend": "tensorized" if whole else "online"}
        small = torch.randn(64, job.dim, device=job.device)
        SamplesLoss("sinkhorn", **common)(small, small + 1)  # compiles, once and for all

    def solve() -> Answer:
        value = factor * float(SamplesLoss("sinkhorn", **common)(job.x, job.y))
        plain = SamplesLoss("sinkhorn", debias=False, potentials=True, **common)
        g = factor * plain(job.x, job.y)[1].view(-1)
        return Answer(value, entropic(job, g, factor * BLUR**p))

    return solve


def flash_sinkhorn(job: Job) -> Solve:
    """As GeomLoss, in Triton kernels."""
    if job.device.type != "cuda":
        raise Cannot("runs on a GPU only")
    job.takes("squared_euclidean")
    from flash_sinkhorn import SamplesLoss

    common = {"blur": BLUR, "scaling": SCALING, "half_cost": True}

    def run(**more: Any) -> tuple[float, Tensor]:
        value = 2 * float(SamplesLoss("sinkhorn", debias=True, **common, **more)(job.x, job.y))
        potentials = SamplesLoss("sinkhorn", debias=False, potentials=True, **common, **more)(job.x, job.y)
        return value, 2 * potentials[1].view(-1)

    run(use_epsilon_scaling=False, n_iters=2, eps=BLUR**2)  # chooses and compiles its kernels for this size

    def solve() -> Answer:
        value, g = run()
        return Answer(value, entropic(job, g, 2 * BLUR**2))

    return solve


METHODS: dict[str, Method] = {
    "torchspot": torchspot,
    "pot-emd": pot_emd,
    "pot-emd-split": pot_emd_split,
    "pot-sinkhorn": pot_sinkhorn,
    "pot-lazy": pot_lazy,
    "geomloss": geomloss,
    "flash-sinkhorn": flash_sinkhorn,
    "ott-sinkhorn": ott_sinkhorn,
    "ott-neural": ott_neural,
    "ott-enot": ott_enot,
}

_POT_NAMES = {"euclidean": "euclidean", "squared_euclidean": "sqeuclidean"}


def _on_cpu_only(job: Job) -> None:
    if job.device.type != "cpu":
        raise Cannot("runs on a CPU only")


def _by_pot(job: Job) -> np.ndarray:
    import ot

    return ot.dist(job.x.double().numpy(), job.y.double().numpy(), metric=_POT_NAMES[job.cost])


def _on_batches(cost: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of rows for GeomLoss, which asks for (1, n, dim) and (1, m, dim) and wants (1, n, m)."""

    def matrix(x: Tensor, y: Tensor) -> Tensor:
        at_once = max(1, (1 << 24) // y[0].numel())
        parts = [
            cost(part.repeat_interleave(y.shape[1], 0), y[0].repeat(len(part), 1)).view(len(part), -1)
            for part in x[0].split(at_once)
        ]
        return torch.cat(parts)[None]

    return matrix


def _nearest(x: Tensor, partners: Tensor) -> Callable[[Tensor], Tensor]:
    """Moved as the nearest row is."""

    def partner(points: Tensor) -> Tensor:
        rows = [torch.cdist(part, x).argmin(1) for part in points.split(max(1, JUDGED_AT_ONCE // len(x)))]
        nearest = torch.cat(rows)
        return points + partners[nearest] - x[nearest]

    return partner
