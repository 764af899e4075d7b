"""How OTT solves a problem of the comparison: prepared without the clock, then timed."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer_jobs import Answer, Job, Solve, entropic, fitting

OTT_ONLINE = 8192
"""Rows above which OTT does not keep the matrix of costs."""
NEURAL_STEPS, NEURAL_BATCH = 20_000, 1024
VALUED_AT_ONCE = 20_000
"""Rows of each law by which a value is found; of several such parts the mean."""


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
        return Answer(float(value), entropic(job, torch.from_numpy(g).to(job.device), epsilon))

    return solve


def ott_neural(job: Job) -> Solve:
    """OTT's neural dual for W2 with convex networks that start at the Gaussian map, as in its tutorial."""
    job.takes("squared_euclidean")
    import optax
    from ott.neural.methods import neuraldual

    x, y = _jax(job.x), _jax(job.y)
    first = (x[:NEURAL_BATCH], y[:NEURAL_BATCH])
    networks = [_convex(job.dim, *pair) for pair in (first, first[::-1])]

    def solver(steps: int) -> Any:
        rates = optax.cosine_decay_schedule(1e-3, steps, alpha=1e-2)
        optimizers = [optax.adam(rates, b1=0.5, b2=0.5) for _ in range(2)]
        return neuraldual.W2NeuralDual(job.dim, *networks, *optimizers, num_train_iters=steps)

    return _neural(job, x, y, solver, valued=1)  # each row takes a solver


def _convex(dim: int, source: Any, target: Any) -> Any:
    """The tutorial's network, whose Gaussian map is computed here and not again whenever it is called."""
    from flax.linen import initializers
    from ott.neural.networks import icnn
    from ott.neural.networks.layers import posdef

    class Convex(icnn.ICNN):
        def _get_pos_def_potentials(self, rank: int) -> Any:
            factor, mean = self.gaussian_map_samples
            return posdef.PosDefPotentials(
                num_potentials=1,
                rank=self.dim_data,
                use_linear=True,
                use_bias=True,
                kernel_diag_init=initializers.zeros,
                kernel_lr_init=lambda *_, **__: factor,
                kernel_linear_init=lambda *_, **__: mean.T,
                bias_init=initializers.zeros,
            )

    known = posdef._compute_gaussian_map_params(source, target)
    return Convex(dim_data=dim, dim_hidden=[64] * 4, pos_weights=True, gaussian_map_samples=known)


def ott_enot(job: Job) -> Solve:
    """OTT's dual by expectiles, which needs no conjugate, at its defaults."""
    job.takes("squared_euclidean")
    from ott.neural.methods.expectile_neural_dual import ExpectileNeuralDual

    x, y = _jax(job.x), _jax(job.y)
    return _neural(job, x, y, lambda steps: ExpectileNeuralDual(job.dim, num_train_iters=steps), valued=10)


def _neural(job: Job, x: Any, y: Any, solver: Callable[[int], Any], valued: int) -> Solve:
    """As many steps of one of OTT's neural solvers as fit, and the value by so many parts of the rows."""
    import jax

    def batches(rows: Any, seed: int) -> Iterator[Any]:
        key = jax.random.PRNGKey(seed)
        take = jax.jit(lambda rows, key: rows[jax.random.randint(key, (NEURAL_BATCH,), 0, len(rows))])
        while True:
            key, now = jax.random.split(key)
            yield take(rows, now)

    def fit(steps: int) -> Any:
        potentials = solver(steps)(batches(x, 0), batches(y, 1), batches(x, 2), batches(y, 3))
        float(potentials.f(x[0]))  # waits for the device
        return potentials

    def value(potentials: Any) -> float:
        starts = range(0, min(job.n, valued * VALUED_AT_ONCE), VALUED_AT_ONCE)
        parts = [slice(start, start + VALUED_AT_ONCE) for start in starts]
        return statistics.fmean(float(potentials.distance(x[part], y[part])) for part in parts)

    steps = _within(job.seconds, fit, value, NEURAL_STEPS)

    def solve() -> Answer:
        potentials = fit(steps)
        found = value(potentials)
        return Answer(found, lambda points: _torch(potentials.transport(_jax(points)), points), {"steps": float(steps)})

    return solve


def _within(seconds: float, fit: Callable[[int], Any], value: Callable[[Any], float], usual: int) -> int:
    """As many steps as this time has room for, by runs that grow until their steps take a twentieth of it."""
    few = more = 1
    potentials = fit(few)
    value(potentials)  # what is done once in a process
    valuing, begun, steps_took = _taken(value, potentials), _taken(fit, few), 0.0
    while steps_took < 0.05 * seconds and more < usual:
        more *= 4
        steps_took = _taken(fit, more) - begun
    pace = max(1e-5, steps_took / (more - few))
    return fitting(seconds, valuing + begun - few * pace, pace, usual)


def _taken(work: Callable[[Any], Any], given: Any) -> float:
    started = time.perf_counter()
    work(given)
    return time.perf_counter() - started


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
