"""Inputs for the row-wise and elementwise device operators, over the shapes where kernels change their way of working.

A case is a name and a function of a device that gives the operator's arguments: equal values on every device, views
where the engine passes views. Legend: T tokens, h and g query and key/value heads, d head size, D rotary dimensions.
"""

from dataclasses import dataclass

import torch

BF16, FP32 = torch.bfloat16, torch.float32
EPS = 1e-6


@dataclass
class Case:
    operator: str
    name: str
    arguments: object  # device -> list

    @property
    def label(self):
        return f"{self.operator}-{self.name}"


class Inputs:
    """Random tensors, drawn on the CPU whatever device they end on."""

    def __init__(self, device, dtype):
        self.generator = torch.Generator().manual_seed(7)
        self.device, self.dtype = device, dtype

    def normal(self, *shape, dtype=None):
        values = torch.randn(*shape, generator=self.generator)
        return values.to(dtype or self.dtype).to(self.device)

    def columns(self, rows, width):
        """[rows, width] inside a wider tensor."""
        return self.normal(rows, width + 24)[:, 8 : 8 + width]

    def permutation(self, count):
        return torch.randperm(count, generator=self.generator).to(torch.int32).to(self.device)

    def integers(self, high, count):
        return torch.randint(high, (count,), generator=self.generator).to(self.device)


def rms_norm_cases(dtype):
    shapes = [(0, 96), (1, 96), (7, 1), (5, 2049), (600, 128), (33, 2048), (9, 2880), (5, 7168), (3, 16384)]

    def forward(rows, width, strided):
        def arguments(device):
            inputs = Inputs(device, dtype)
            x = inputs.columns(rows, width) if strided else inputs.normal(rows, width)
            return [x, inputs.normal(width), EPS]

        return arguments

    def backward(rows, width, residual):
        def arguments(device):
            inputs = Inputs(device, dtype)
            grad_y, x, weight = inputs.normal(rows, width), inputs.normal(rows, width), inputs.normal(width)
            rstd = (x.cpu().float().pow(2).mean(-1) + EPS).rsqrt().to(device)
            return [grad_y, x, weight, rstd, inputs.normal(rows, width) if residual else None]

        return arguments

    for rows, width in shapes:
        yield Case("_rms_norm_forward", f"{rows}x{width}", forward(rows, width, False))
        yield Case("_rms_norm_backward", f"{rows}x{width}", backward(rows, width, True))
    yield Case("_rms_norm_forward", "columns", forward(40, 96, True))
    yield Case("_rms_norm_backward", "no_residual", backward(1000, 2048, False))


def qk_norm_rope_cases(dtype):
    shapes = [  # T, h, g, d, D
        (0, 4, 2, 128, 128), (1, 4, 2, 128, 128), (257, 32, 4, 128, 128), (700, 2, 2, 64, 64), (5, 3, 1, 96, 96),
        (17, 4, 4, 80, 32), (6, 2, 2, 30, 10), (4, 2, 1, 33, 16), (3, 2, 1, 256, 256), (3, 2, 1, 512, 64),
    ]  # fmt: skip

    def common(inputs, tokens, h, g, d, rotary, norm):
        fused = inputs.normal(tokens, (h + 2 * g) * d)
        q = fused[:, : h * d].view(tokens, h, d)
        k = fused[:, h * d : (h + g) * d].view(tokens, g, d)
        norms = [inputs.normal(d), inputs.normal(d)] if norm else [None, None]
        angles = inputs.normal(tokens, rotary // 2, dtype=FP32)
        return [q, k, *norms, angles.cos(), angles.sin(), EPS]

    def forward(*shape):
        return lambda device: common(Inputs(device, dtype), *shape)

    def backward(tokens, h, g, d, rotary, norm):
        def arguments(device):
            inputs = Inputs(device, dtype)
            # Attention hands back gradients whose heads lie outermost.
            grads = [inputs.normal(heads, tokens, d).transpose(0, 1) for heads in (h, g, g)]
            return grads + common(inputs, tokens, h, g, d, rotary, norm)

        return arguments

    for shape in shapes:
        name = "x".join(map(str, shape))
        yield Case("_qk_norm_rope_forward", name, forward(*shape, True))
        yield Case("_qk_norm_rope_backward", name, backward(*shape, True))
    yield Case("_qk_norm_rope_forward", "no_norm", forward(50, 4, 2, 128, 128, False))
    yield Case("_qk_norm_rope_backward", "no_norm", backward(50, 4, 2, 128, 128, False))


def swiglu_cases(dtype):
    shapes = [(0, 96), (1, 96), (5, 7), (300, 1), (1000, 768), (33, 2049), (3, 14336)]

    def forward(rows, width, strided):
        def arguments(device):
            inputs = Inputs(device, dtype)
            return [inputs.columns(rows, 2 * width) if strided else inputs.normal(rows, 2 * width) * 4]

        return arguments

    def backward(rows, width, activation):
        def arguments(device):
            inputs = Inputs(device, dtype)
            return [inputs.normal(rows, width), inputs.normal(rows, 2 * width) * 4, activation]

        return arguments

    def weigh(rows, width):
        def arguments(device):
            inputs = Inputs(device, dtype)
            pair = [inputs.normal(rows, width), inputs.normal(rows, width)]
            return [*pair, inputs.normal(rows, 1), inputs.permutation(rows)]

        return arguments

    for rows, width in shapes:
        name = f"{rows}x{width}"
        yield Case("_swiglu_forward", name, forward(rows, width, False))
        yield Case("_swiglu_backward", name, backward(rows, width, True))
        yield Case("_weigh_activation_", name, weigh(rows, width))
    yield Case("_swiglu_forward", "columns", forward(40, 96, True))
    yield Case("_swiglu_backward", "no_activation", backward(1000, 768, False))


def cross_entropy_cases(dtype):
    def rows(count, vocab, gradient, entropy, value=None):
        def arguments(device):
            inputs = Inputs(device, dtype)
            logits = inputs.normal(count, vocab) * 3
            labels = inputs.integers(vocab, count)
            if count > 2:  # the largest logit is the label's own
                logits[1, labels[1]] = 20
            if value is not None:  # every logit the largest: only the first counts as chosen
                logits.fill_(value)
                labels[0] = 0
            return [logits, labels, inputs.normal(count, dtype=FP32).abs(), gradient, entropy]

        return arguments

    for count, vocab in [(0, 96), (1, 96), (3, 1), (9, 50257), (300, 1000), (150, 32000), (4, 151936)]:
        yield Case("_cross_entropy_rows", f"{count}x{vocab}", rows(count, vocab, True, True))
    yield Case("_cross_entropy_rows", "no_gradient", rows(9, 32000, False, False))
    yield Case("_cross_entropy_rows", "ties", rows(5, 4099, True, True, value=2.0))


def row_cases(dtype):
    yield from rms_norm_cases(dtype)
    yield from qk_norm_rope_cases(dtype)
    yield from swiglu_cases(dtype)
    yield from cross_entropy_cases(dtype)
