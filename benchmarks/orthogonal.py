"""Ways to keep weights orthogonal: what each costs a critic step, and the singular values it leaves.

    python benchmarks/orthogonal.py [--device cuda] [--out results/orthogonal_cpu.jsonl]

Four square matrices (two critics, two hidden layers) take 120 steps of random signs times the critics' first rate,
which is what Adam does to them at its fastest; after each step the method brings them back. "largest" and "smallest"
are the extreme singular values seen over the last 60 steps. Methods that only work inside the forward pass are timed
with their backward pass.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from torchspot.networks.lipschitz import orthogonalise
from torchspot.training.engine import Eager

RATE, STEPS, REPEATS = 5e-3, 120, 7


def one_by_one(w: Tensor) -> Tensor:
    return torch.cat([orthogonalise(matrix[None], 1) for matrix in w])


def schatten_bound(w: Tensor) -> Tensor:
    """Two iterations after dividing by the Schatten 8-norm over 2: what the library did first."""
    gram = w @ w.mT
    shrink = (torch.linalg.matrix_norm(gram @ gram).sqrt().sqrt()[..., None, None] / 2).clamp(min=1)
    w, gram = w / shrink, gram / shrink.square()
    w = 1.5 * w - 0.5 * gram @ w
    return 1.5 * w - 0.5 * w @ (w.mT @ w)


def safe_start(w: Tensor) -> Tensor:
    """Five iterations after dividing by √(‖W‖₁‖W‖∞), stateless: fit for a forward pass."""
    bound = (w.abs().sum(-1).amax(-1) * w.abs().sum(-2).amax(-1)).sqrt()[..., None, None]
    w = w / bound
    for _ in range(5):
        w = 1.5 * w - 0.5 * w @ (w.mT @ w)
    return w


def in_forward_pass(w: Tensor) -> Tensor:
    """The same, with gradients through it."""
    leaf = w.detach().requires_grad_()
    made = safe_start(leaf)
    torch.autograd.grad(made, leaf, torch.ones_like(made))
    return w


def householder(w: Tensor) -> Tensor:
    """The Q of a QR decomposition, signs put back."""
    q, r = torch.linalg.qr(w)
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def polar(w: Tensor) -> Tensor:
    """The nearest orthogonal matrix, by singular values."""
    u, _, vh = torch.linalg.svd(w)
    return u @ vh


def cayley(w: Tensor, before: Tensor) -> Tensor:
    """(I + A)⁻¹ (I − A) W, A the skew part of the step seen from the matrix before it."""
    step = w - before
    skew = 0.25 * (before @ step.mT - step @ before.mT)
    identity = torch.eye(w.shape[-1], device=w.device, dtype=w.dtype).expand_as(w)
    return torch.linalg.solve(identity + skew, (identity - skew) @ before)


class PowerIteration:
    """Spectral norm, for comparison: one product with a vector each way, kept from step to step."""

    def __init__(self) -> None:
        self.u: dict[torch.Size, Tensor] = {}

    def __call__(self, w: Tensor, before: Tensor) -> Tensor:
        u = self.u.setdefault(w.shape, torch.ones_like(w[..., :1]))
        v = torch.nn.functional.normalize(w.mT @ u, dim=-2)
        u.copy_(torch.nn.functional.normalize(w @ v, dim=-2))
        return w / (u.mT @ w @ v)


METHODS = {
    "Björck, 1 iteration after the step (the default)": lambda w, b: orthogonalise(w, 1),
    "  the same, matrix by matrix": lambda w, b: one_by_one(w),
    "Björck, 2 iterations after the step": lambda w, b: orthogonalise(w, 2),
    "Björck, 3 iterations after the step": lambda w, b: orthogonalise(w, 3),
    "Björck, 2 iterations, Schatten bound": lambda w, b: schatten_bound(w),
    "Björck, 5 iterations in the forward pass": lambda w, b: in_forward_pass(w),
    "Cayley (linear solve)": cayley,
    "Householder (QR)": lambda w, b: householder(w),
    "polar (SVD)": lambda w, b: polar(w),
    "spectral norm (no orthogonality)": PowerIteration(),
}


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def eager_ms(function, device: torch.device) -> float:
    times, count = [], 3
    function()
    for _ in range(REPEATS):
        synchronise(device)
        started = time.perf_counter()
        for _ in range(count):
            function()
        synchronise(device)
        times.append((time.perf_counter() - started) / count)
    return 1e3 * statistics.median(times)


def captured_ms(function, device: torch.device) -> float | None:
    """Inside a CUDA graph; None where the method cannot be recorded."""
    if device.type != "cuda":
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            function()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return eager_ms(graph.replay, device)


def singular_values(method, start: Tensor, rng: torch.Generator) -> tuple[float, float]:
    w, seen = start.clone(), []
    for step in range(STEPS):
        moved = w + RATE * torch.randn(w.shape, generator=rng).sign().to(w)
        w = method(moved, w)
        if step >= STEPS - 60 and step % 15 == 0:
            used = safe_start(w) if method is METHODS["Björck, 5 iterations in the forward pass"] else w
            seen.append(torch.linalg.svdvals(used.double()))
    values = torch.stack(seen)
    return float(values.max()), float(values.min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--widths", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = Eager(options.device).device
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, one thread"
    rows = []
    for width in options.widths:
        rng = torch.Generator().manual_seed(0)
        start = torch.linalg.qr(torch.randn(4, width, width, generator=rng)).Q.to(device)
        moved = start + RATE * torch.randn(start.shape, generator=rng).sign().to(device)
        for name, method in METHODS.items():
            largest, smallest = singular_values(method, start, torch.Generator().manual_seed(1))
            ms, graph = (how(lambda: method(moved, start), device) for how in (eager_ms, captured_ms))  # noqa: B023
            row = {"benchmark": "orthogonal", "hardware": hardware, "width": width, "method": name.strip()}
            rows.append(row | {"ms": ms, "captured_ms": graph, "largest": largest, "smallest": smallest})
            if options.out:
                options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
            inside = "" if graph is None else f" captured {graph:7.4f} ms"
            print(f"{width:4} {name:50} {ms:8.3f} ms{inside}  σ {smallest:.4f} … {largest:.6f}", flush=True)


if __name__ == "__main__":
    main()
