"""The same operator on the CPU in fp32 and on the GPU."""

import torch

TOLERANCE = {
    torch.float32: 2e-5,
    torch.bfloat16: 6e-3,
}  # ||difference|| / ||expected||; bf16: a few roundings


def relative_error(found, expected):
    """NaN anywhere gives NaN, which no bound accepts."""
    found, expected = found.detach().cpu().double(), expected.detach().double()
    assert found.shape == expected.shape
    return ((found - expected).norm() / expected.norm().clamp_min(1e-20)).item()


def cosines(found, expected):
    """Cosine of each gradient by name. One that is noise beside all of them together must stay so, and counts as 1."""
    total = torch.stack([gradient.double().norm() for gradient in expected.values()]).norm()

    def cosine(name):
        a, b = found[name].detach().cpu().double().flatten(), expected[name].detach().double().flatten()
        if b.norm() <= 1e-6 * total:
            return float(a.norm() <= 1e-3 * total)
        return (a @ b / (a.norm() * b.norm())).item()

    return {name: cosine(name) for name in expected}


def on_both(operator, dtype, *arguments):
    """The operator's results from equal values: (GPU in `dtype`, CPU in fp32). Floating tensors take the dtype."""

    def tensors(result):
        return result if isinstance(result, tuple | list) else (result,)

    floating = [argument.to(dtype) if is_floating(argument) else argument for argument in arguments]
    expected = operator(*[a.float() if is_floating(a) else a for a in floating])
    found = operator(*[a.cuda() if isinstance(a, torch.Tensor) else a for a in floating])
    return tensors(found), tensors(expected)


def is_floating(argument):
    return isinstance(argument, torch.Tensor) and argument.is_floating_point()


def expect_equal_values(operator, dtype, *arguments):
    """Floating results agree within the dtype's rounding, integers to the bit."""
    for found, expected in zip(*on_both(operator, dtype, *arguments), strict=True):
        assert found.is_cuda
        if found.is_floating_point():
            assert relative_error(found, expected) <= TOLERANCE[dtype]
        else:
            assert torch.equal(found.cpu(), expected)
