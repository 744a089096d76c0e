"""The grouped GEMM kernels as functions on torch tensors, and what they are compared with.

Legend: E experts, M rows of all experts sorted by expert, ends [E] int32 the end of each expert's rows.
"""

import ctypes

import torch

BF16, FP32 = torch.bfloat16, torch.float32
POINTER, INT = ctypes.c_void_p, ctypes.c_int


class Library:
    """Own kernels, from the shared library that benchmarks/kernels builds."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)

    def _call(self, name, ends, rows, *arguments):
        function = getattr(self.library, name)
        function.restype = ctypes.c_char_p
        values = [ends, ends.numel(), rows, *arguments, torch.cuda.current_stream().cuda_stream]
        tensors = [isinstance(value, torch.Tensor) for value in values]
        function.argtypes = [POINTER if tensor else INT for tensor in tensors[:-1]] + [POINTER]
        message = function(
            *[v.data_ptr() if tensor else v for v, tensor in zip(values, tensors, strict=True)]
        )
        if message is not None:
            raise RuntimeError(message.decode())

    def gemm(self, x, weight, ends, y, in_out):
        """y = x W, weight [E, N, K], or [E, K, N] if in_out."""
        n = weight.shape[2] if in_out else weight.shape[1]
        self._call("phalanx_grouped_gemm", ends, x.shape[0], x, weight, y, n, x.shape[1], int(in_out))

    def weight_grad(self, dy, x, ends, dw, accumulate=False):
        """dw[e] (+)= dy^T x over the rows of e."""
        fp32 = int(dw.dtype == FP32)
        shape = dy.shape[1], x.shape[1], fp32, int(accumulate)
        self._call("phalanx_grouped_gemm_weight_grad", ends, x.shape[0], dy, x, dw, *shape)

    def swiglu(self, x, weight, ends, z, a):
        self._call("phalanx_swiglu_gemm", ends, x.shape[0], x, weight, z, a, a.shape[1], x.shape[1])

    def swiglu_grad(self, dy, weight, z, scale, ends, dz, scaled_a, ds_partials):
        sizes = scaled_a.shape[1], dy.shape[1]
        outputs = dz, scaled_a, ds_partials
        self._call("phalanx_swiglu_grad_gemm", ends, dy.shape[0], dy, weight, z, scale, *outputs, *sizes)

    def swiglu_grad_partials(self, intermediate):
        return self.library.phalanx_swiglu_grad_partials(intermediate)


def random_bf16(*shape, scale=1.0):
    return torch.randn(*shape, device="cuda", dtype=FP32).mul_(scale).to(BF16)


def ends_of(counts):
    return torch.tensor(counts, device="cuda").cumsum(0).to(torch.int32)


def spans(ends):
    """(expert, first row, end) of each expert that has rows."""
    first = 0
    for expert, end in enumerate(ends.tolist()):
        if end > first:
            yield expert, first, end
        first = end


def reference_gemm(x, weight, ends, in_out):
    """fp32, one matrix product per expert."""
    n = weight.shape[2] if in_out else weight.shape[1]
    y = torch.zeros(x.shape[0], n, device="cuda")
    for e, first, end in spans(ends):
        w = weight[e].float()
        y[first:end] = x[first:end].float() @ (w if in_out else w.T)
    return y


def reference_weight_grad(dy, x, ends):
    dw = torch.zeros(ends.numel(), dy.shape[1], x.shape[1], device="cuda")
    for e, first, end in spans(ends):
        dw[e] = dy[first:end].float().T @ x[first:end].float()
    return dw


def reference_swiglu(z):
    gate, up = z.float().chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


def reference_swiglu_grad(dy, weight, z, scale, ends):
    """dz, s a and the summands of ds [M, I] (with a as forward rounds it), by autograd in fp32."""
    leaf = z.float().requires_grad_()
    a = reference_swiglu(leaf)
    da = reference_gemm(dy, weight, ends, in_out=True)
    (dz,) = torch.autograd.grad(a, leaf, da * scale[:, None])
    return dz, a.detach() * scale[:, None], da * a.detach().to(BF16).float()


def relative_error(result, reference):
    """||result - reference|| / ||reference||; NaN anywhere gives NaN."""
    return ((result.float() - reference).norm() / reference.norm().clamp_min(1e-20)).item()


def median_ms(function, repeats=20, warm_up=4):
    for _ in range(warm_up):
        function()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]
