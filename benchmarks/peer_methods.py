"""How each library solves a problem of the comparison: prepared without the clock, then timed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer_problems import Laws
from torchspot import SPOT, costs, engines, latents, presets

POT_EPSILON = 0.05
"""Of POT's Sinkhorn, which has no default: as a part of the mean cost."""
BLUR, SCALING = 0.05, 0.9
"""Of GeomLoss and FlashSinkhorn: their default, and what GeomLoss advises where the distance itself is wanted (with its
default of .5 errors in two dimensions were 9 % and 45 % instead of 1 % and 18 %)."""
OTT_ONLINE = 8192
"""Rows above which OTT does not keep the matrix of costs."""
MORE_STEPS, MANY_ROWS = 4, 100_000
"""torchspot takes up to so many times its usual steps where there is time for them and from so many rows on: its values
and pairs come nearer by it (docs/peers.md). Fewer rows it would learn by heart."""
PACED = 256
"""Steps by which torchspot's pace is found."""
NEURAL_STEPS, NEURAL_BATCH = 20_000, 1024
JUDGED_AT_ONCE = 1 << 27


class Cannot(Exception):
    """Why a library has no answer here."""


@dataclass(frozen=True)
class Job:
    """A problem as a library is given it."""

    laws: Laws
    cost: str
    x: Tensor
    y: Tensor
    seconds: float
    """Within which it has to be done."""
    room: float
    """Bytes of memory that it may take."""

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    def matrix(self) -> Tensor:
        """c(x_i, y_j) for all i and j, of the function of rows that a learned cost is."""
        at_once = max(1, (1 << 24) // (self.n * self.dim))
        return torch.cat([self._against_all(part) for part in self.x.split(at_once)])

    def _against_all(self, part: Tensor) -> Tensor:
        size, n = len(part), self.n
        return self.laws.cost(part.repeat_interleave(n, 0), self.y.repeat(size, 1)).view(size, n)

    def needs_matrix(self, bytes_an_entry: int) -> None:
        """Raises if a matrix of all pairs does not fit."""
        needed = float(self.n) ** 2 * bytes_an_entry
        if needed > self.room:
            raise Cannot(f"memory: all pairs take {needed / 1e9:,.0f} GB")

    def takes(self, *known: str) -> None:
        """Raises if the cost is none of these."""
        if self.cost not in known:
            raise Cannot(f"cost not supported: {self.cost}")


@dataclass(frozen=True)
class Answer:
    """The distance, and the partners of points that were not given."""

    value: float
    partner: Callable[[Tensor], Tensor] | None
    more: dict[str, float] = field(default_factory=dict)


Solve = Callable[[], Answer]
Method = Callable[[Job], Solve]


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
    steps = _fitting(job.seconds, took - PACED * pace, pace, most)

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
        matrix = (job.matrix() if job.cost == "learned" else _all_pairs(job.cost, job.x, job.y)).to(dtype)
        mass = torch.full((job.n,), 1 / job.n, dtype=dtype, device=job.device)
        epsilon = POT_EPSILON * float(matrix.mean())
        plan, log = ot.sinkhorn(mass, mass, matrix, epsilon, log=True)
        g = epsilon * log["v"].log()
        return Answer(float((plan * matrix).sum()), _entropic(job, g, epsilon))

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
        return Answer(float(found.value_linear), _entropic(job, g, epsilon))

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
        return Answer(value, _entropic(job, g, factor * BLUR**p))

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
        return Answer(value, _entropic(job, g, 2 * BLUR**2))

    return solve


def ott_sinkhorn(job: Job) -> Solve:
    """The Sinkhorn divergence at OTT's own ε, and its potentials."""
    import jax
    from ott.geometry import costs as known
    from ott.geometry import pointcloud
    from ott.tools import sinkhorn_divergence

    functions = {"euclidean": known.Euclidean, "squared_euclidean": known.SqEuclidean}
    cost = functions[job.cost]() if job.cost in functions else _in_jax(job)
    x, y = _jax(job.x), _jax(job.y)
    online = OTT_ONLINE if job.n > OTT_ONLINE else None

    def solve() -> Answer:
        value, out = jax.jit(
            lambda a, b: sinkhorn_divergence.sinkhorn_divergence(
                pointcloud.PointCloud, a, b, cost_fn=cost, batch_size=online
            )
        )(x, y)
        g, epsilon = np.array(out.potentials[0][1]), float(out.geoms[0].epsilon)
        return Answer(float(value), _entropic(job, torch.from_numpy(g).to(job.device), epsilon))

    return solve


def ott_neural(job: Job) -> Solve:
    """OTT's neural dual for W2 with convex networks that start at the Gaussian map, as in its tutorial."""
    job.takes("squared_euclidean")
    import optax
    from ott.neural.methods import neuraldual
    from ott.neural.networks import icnn

    x, y = _jax(job.x), _jax(job.y)
    first = (x[:NEURAL_BATCH], y[:NEURAL_BATCH])

    def solver(steps: int) -> Any:
        networks = [
            icnn.ICNN(dim_data=job.dim, dim_hidden=[64] * 4, pos_weights=True, gaussian_map_samples=pair)
            for pair in (first, first[::-1])
        ]
        rates = optax.cosine_decay_schedule(1e-3, steps, alpha=1e-2)
        optimizers = [optax.adam(rates, b1=0.5, b2=0.5) for _ in range(2)]
        return neuraldual.W2NeuralDual(job.dim, *networks, *optimizers, num_train_iters=steps)

    return _neural(job, x, y, solver)


def ott_enot(job: Job) -> Solve:
    """OTT's dual by expectiles, which needs no conjugate, at its defaults."""
    job.takes("squared_euclidean")
    from ott.neural.methods.expectile_neural_dual import ExpectileNeuralDual

    return _neural(job, _jax(job.x), _jax(job.y), lambda steps: ExpectileNeuralDual(job.dim, num_train_iters=steps))


def _neural(job: Job, x: Any, y: Any, solver: Callable[[int], Any]) -> Solve:
    """As many steps of one of OTT's neural solvers as fit."""
    import jax

    def batches(rows: Any, seed: int) -> Iterator[Any]:
        key = jax.random.PRNGKey(seed)
        take = jax.jit(lambda rows, key: rows[jax.random.randint(key, (NEURAL_BATCH,), 0, len(rows))])
        while True:
            key, now = jax.random.split(key)
            yield take(rows, now)

    def fit(steps: int) -> Any:
        potentials = solver(steps)(batches(x, 0), batches(y, 1), batches(x, 2), batches(y, 3))
        return potentials, float(potentials.distance(x[:20_000], y[:20_000]))

    steps = _within(job.seconds, fit, NEURAL_STEPS)

    def solve() -> Answer:
        potentials, value = fit(steps)
        return Answer(value, lambda points: _torch(potentials.transport(_jax(points)), points), {"steps": float(steps)})

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


def _within(seconds: float, fit: Callable[[int], Any], usual: int) -> int:
    """As many steps as this time has room for, by runs that grow until their steps take a twentieth of it."""
    few = more = 8
    fit(few)  # what is done once in a process
    begun, steps_took = _taken(fit, few), 0.0
    while steps_took < 0.05 * seconds and more < usual:
        more *= 4
        steps_took = _taken(fit, more) - begun
    pace = max(1e-5, steps_took / (more - few))
    return _fitting(seconds, begun - few * pace, pace, usual)


def _fitting(seconds: float, fixed: float, pace: float, usual: int) -> int:
    """Steps that take nine tenths of the time, at most the usual number."""
    return min(usual, max(8, int((0.9 * seconds - fixed) / pace)))


def _taken(fit: Callable[[int], Any], steps: int) -> float:
    started = time.perf_counter()
    fit(steps)
    return time.perf_counter() - started


def _on_cpu_only(job: Job) -> None:
    if job.device.type != "cpu":
        raise Cannot("runs on a CPU only")


def _by_pot(job: Job) -> np.ndarray:
    import ot

    return ot.dist(job.x.double().numpy(), job.y.double().numpy(), metric=_POT_NAMES[job.cost])


def _all_pairs(cost: str, x: Tensor, y: Tensor) -> Tensor:
    apart = torch.cdist(x, y)
    return apart if cost == "euclidean" else apart.square_()


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


def _entropic(job: Job, g: Tensor, epsilon: float) -> Callable[[Tensor], Tensor]:
    """By the entropic plan's law of y given x: its mean; for the Euclidean cost, whose plans are no maps, a draw."""

    def partner(points: Tensor) -> Tensor:
        here = job.laws.embed(job.y)
        made = []
        for part in points.split(max(1, JUDGED_AT_ONCE // job.n)):
            cost = _all_pairs(job.cost, job.laws.embed(part), here)
            logits = (g.to(cost) - cost) / epsilon
            if job.cost == "euclidean":
                noise = -torch.empty_like(logits).exponential_().log()
                made.append(job.y[(logits + noise).argmax(1)])
            else:
                made.append(logits.softmax(1) @ job.y)
        return torch.cat(made)

    return partner


def _jax(x: Tensor) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(x.detach().cpu().numpy())


def _torch(x: Any, like: Tensor) -> Tensor:
    return torch.from_numpy(np.array(x)).to(like)


def _in_jax(job: Job) -> Any:
    """The learned cost, written again for JAX."""
    import jax
    import jax.numpy as jnp
    from ott.geometry import costs as known

    couplings = job.laws.cost.couplings
    first = couplings.first
    layers = [[_jax(p.detach()) for p in shift.parameters()] for shift in couplings.shifts]

    def embed(x: Any) -> Any:
        a, b = x[:first], x[first:]
        for k, (w1, b1, w2, b2) in enumerate(layers):
            shift = w2 @ jnp.tanh(w1 @ (a if k % 2 == 0 else b) + b1) + b2
            a, b = (a, b + shift) if k % 2 == 0 else (a + shift, b)
        return jnp.concatenate((a, b))

    @jax.tree_util.register_static
    class Learned(known.CostFn):
        def __call__(self, x: Any, y: Any) -> Any:
            return jnp.sum((embed(x) - embed(y)) ** 2)

    return Learned()
