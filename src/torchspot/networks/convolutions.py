"""Convolutions under a Lipschitz control: what is done to their kernels, and how steep they really are."""

__all__ = [
    "Convolution",
    "KernelNormConvolution",
    "OperatorNormConvolution",
    "OrthogonalConvolution",
    "PlainConvolution",
    "Window",
    "convolved_norm",
]

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

Maps = Float[Tensor, "batch channels height width"]
Kernel = Float[Tensor, "outputs inputs height width"]

_WARM_UP, _MEASURED, _SPREAD, _TINY = 15, 100, 0.02, 1e-12


@dataclass(frozen=True)
class Window:
    """What a convolution looks at: channels in and out, the window, its stride, and the pictures it runs over."""

    inputs: int
    outputs: int
    kernel: tuple[int, int]
    stride: int
    padding: int
    size: tuple[int, int]
    """Height and width of what comes in."""

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of what goes out."""
        height, width = (
            (n + 2 * self.padding - k) // self.stride + 1 for n, k in zip(self.size, self.kernel, strict=True)
        )
        return height, width

    @property
    def overlap(self) -> int:
        """√ of the number of windows that a pixel is in, rounded up: ‖convolution‖ ≤ this · ‖kernel as a matrix‖."""
        height, width = (min(math.ceil(k / self.stride), n) for k, n in zip(self.kernel, self.out_size, strict=True))
        return math.ceil(math.sqrt(height * width))

    @property
    def kernel_shape(self) -> tuple[int, int, int, int]:
        return (self.outputs, self.inputs, *self.kernel)

    @property
    def whole(self) -> bool:
        """Whether there is but one window, all of the picture: a matrix product, which is done as such."""
        return self.padding == 0 and self.kernel == self.size

    def over(self, x: Maps, kernel: Kernel, bias: Tensor | None = None) -> Maps:
        """The convolution of these maps."""
        if self.whole:
            return functional.linear(x.flatten(1), kernel.flatten(1), bias)[..., None, None]
        return functional.conv2d(x, kernel, bias, self.stride, self.padding)

    def back(self, y: Maps, kernel: Kernel) -> Maps:
        """Its transpose."""
        if self.whole:
            return (y.flatten(1) @ kernel.flatten(1)).view(-1, self.inputs, *self.size)
        missing = [
            n - ((m - 1) * self.stride - 2 * self.padding + k)
            for n, m, k in zip(self.size, self.out_size, self.kernel, strict=True)
        ]
        return functional.conv_transpose2d(y, kernel, None, self.stride, self.padding, missing)

    def seen(self, y: Maps, x: Maps) -> Kernel:
        """∂⟨y, convolution of x⟩ / ∂kernel, of one picture: for each entry, what it multiplies, weighed by y."""
        windows = functional.unfold(x, self.kernel, padding=self.padding, stride=self.stride)[0]
        return (y[0].flatten(1) @ windows.mT).view(self.kernel_shape)


class Convolution(nn.Module, ABC):
    """A convolution under a control."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> None:
        super().__init__()
        self.window = window
        self.weight = nn.Parameter(self._start(window, rng))
        self.bias = nn.Parameter(torch.zeros(window.outputs)) if bias else None

    def _start(self, window: Window, rng: torch.Generator) -> Tensor:
        return torch.empty(window.kernel_shape).normal_(0, _SPREAD, generator=rng)

    @abstractmethod
    def effective_kernel(self) -> Kernel:
        """What the pictures are convolved with."""

    def forward(self, x: Maps) -> Maps:
        return self.window.over(x, self.effective_kernel(), self.bias)

    def operator_norm(self) -> float:
        """The measured largest singular value of the whole convolution, not of its kernel."""
        return convolved_norm(self.effective_kernel().detach(), self.window)


class PlainConvolution(Convolution):
    """As it is; its control may clip it."""

    def effective_kernel(self) -> Kernel:
        return self.weight


class OrthogonalConvolution(Convolution):
    """A kernel whose rows (or columns) are orthonormal as a matrix, divided by how often windows overlap.

    Where they do not (stride = kernel) all singular values of the convolution are 1; where they do, none is above.
    """

    def _start(self, window: Window, rng: torch.Generator) -> Tensor:
        rows = math.prod(window.kernel_shape[1:])
        u, _, vh = torch.linalg.svd(torch.randn(window.outputs, rows, generator=rng), full_matrices=False)
        return (u @ vh)[None]  # (1, outputs, inputs · height · width)

    def effective_kernel(self) -> Kernel:
        return self.weight.view(self.window.kernel_shape) / self.window.overlap


class KernelNormConvolution(Convolution):
    """The kernel over its largest singular value as a matrix, as spectral normalisation is usually done.

    The convolution itself may be up to `window.overlap` times steeper than 1.
    """

    u: Tensor
    v: Tensor

    def __init__(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> None:
        super().__init__(window, rng, bias=bias)
        rows, columns = self.weight.flatten(1).shape
        self.register_buffer("u", functional.normalize(torch.randn(rows, generator=rng), dim=0))
        self.register_buffer("v", functional.normalize(torch.randn(columns, generator=rng), dim=0))
        for _ in range(_WARM_UP):
            self.iterate()

    def effective_kernel(self) -> Kernel:
        with torch.autocast(self.weight.device.type, enabled=False):
            return self.weight / (self.u @ self.weight.flatten(1) @ self.v)

    @torch.no_grad()
    def iterate(self) -> None:
        """v ← Wᵀu / ‖Wᵀu‖, u ← Wv / ‖Wv‖."""
        matrix = self.weight.flatten(1)
        self.v.copy_(functional.normalize(matrix.mT @ self.u, dim=0))
        self.u.copy_(functional.normalize(matrix @ self.v, dim=0))


class OperatorNormConvolution(Convolution):
    """The kernel over the largest singular value of the convolution itself, followed by power iteration on pictures.

    The gradient sees the division. Kernels divided after each step instead, as orthogonal ones are, would be pushed
    along their steepest direction again and again, all others shrinking with each division.
    """

    u: Tensor
    v: Tensor
    slope: Tensor

    def __init__(self, window: Window, rng: torch.Generator, *, bias: bool = True) -> None:
        super().__init__(window, rng, bias=bias)
        self.register_buffer("u", _unit(torch.randn(1, window.outputs, *window.out_size, generator=rng)))
        self.register_buffer("v", _unit(torch.randn(1, window.inputs, *window.size, generator=rng)))
        self.register_buffer("slope", torch.zeros(window.kernel_shape))
        for _ in range(_WARM_UP):
            self.iterate()

    def effective_kernel(self) -> Kernel:
        """W / σ, where σ = ⟨u, Wv⟩ is linear in W: ∂σ / ∂W is kept, and no pass costs a convolution more."""
        return self.weight / (self.slope * self.weight).sum()

    @torch.no_grad()
    def iterate(self) -> None:
        """v ← Wᵀu / ‖Wᵀu‖, u ← Wv / ‖Wv‖, W the convolution; and ∂⟨u, Wv⟩ / ∂W."""
        self.v.copy_(_unit(self.window.back(self.u, self.weight)))
        self.u.copy_(_unit(self.window.over(self.v, self.weight)))
        self.slope.copy_(self.window.seen(self.u, self.v))


def convolved_norm(kernel: Kernel, window: Window) -> float:
    """The largest singular value of a convolution, by 100 power iterations on pictures in float64."""
    kernel = kernel.double()
    rng = torch.Generator().manual_seed(0)
    v = _unit(torch.randn(1, window.inputs, *window.size, generator=rng, dtype=torch.float64).to(kernel.device))
    for _ in range(_MEASURED):
        v = _unit(window.back(window.over(v, kernel), kernel))
    return float(window.over(v, kernel).norm())


def _unit(x: Maps) -> Maps:
    return x / x.norm().clamp(min=_TINY)
