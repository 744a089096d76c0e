"""Row-wise and elementwise device operators on the GPU: against the CPU's, repeated to the bit, never waiting."""

import itertools

import pytest
import torch
from row_cases import BF16, EPS, FP32, Inputs, row_cases

operators = torch.ops.phalanx

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
CASES = [
    pytest.param(case, id=f"{case.label}-{str(dtype).removeprefix('torch.')}")
    for dtype in (FP32, BF16)
    for case in row_cases(dtype)
]


@pytest.fixture(autouse=True)
def dirty_memory():
    """Memory that the operators get for their results holds NaN: what they leave unwritten shows."""
    blocks = [
        torch.full((size,), torch.nan, device=GPU) for size in (100, 1000, 50_000, 250_000, 16_000_000) * 3
    ]
    del blocks


def results(case, arguments):
    """What the operator returns and what it writes in place, of which it gets a copy."""
    in_place = case.operator in ("_weigh_activation_", "_cross_entropy_rows")
    first = arguments[0].clone() if in_place else arguments[0]
    returned = getattr(operators, case.operator)(first, *arguments[1:])
    returned = returned if isinstance(returned, (tuple, list)) else [returned]
    return [*returned, *([first] if in_place else [])]


def assert_close(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if not expected.is_floating_point() or expected.numel() == 0:
        assert torch.equal(found.cpu(), expected)
        return
    # Both round once from fp32: in bf16 that is at most the last bit, next to cancellation the error of fp32.
    relative = 2**-7 if expected.dtype == BF16 else 1e-5
    absolute = 4e-6 * expected.abs().max().item()
    torch.testing.assert_close(found.cpu(), expected, rtol=relative, atol=absolute)
    distance = (found.cpu().double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30)
    assert distance < (1e-3 if expected.dtype == BF16 else 1e-5)


@pytest.mark.parametrize("case", CASES)
def test_gives_what_the_cpu_gives(case):
    on_cpu = results(case, case.arguments(torch.device("cpu")))
    for found, expected in zip(results(case, case.arguments(GPU)), on_cpu, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            assert_close(found, expected)


@pytest.mark.parametrize("case", CASES)
def test_repeats_to_the_bit(case):
    arguments = case.arguments(GPU)
    expected = [tensor for tensor in results(case, arguments) if tensor is not None]
    for _ in range(40):
        found = [tensor for tensor in results(case, arguments) if tensor is not None]
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("case", CASES)
def test_does_not_wait_for_the_device(case):
    arguments = case.arguments(GPU)
    torch.cuda.set_sync_debug_mode("error")
    try:
        getattr(operators, case.operator)(*arguments)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_fp64_is_refused_by_name():
    x = torch.randn(4, 8, dtype=torch.float64, device=GPU)
    with pytest.raises(RuntimeError, match=r"swiglu.*float64 runs on the CPU"):
        operators._swiglu_forward(x)
    with pytest.raises(RuntimeError, match=r"rms_norm.*float64 runs on the CPU"):
        operators._rms_norm_forward(x, x[0], EPS)


# Of parameters: none, one, odd, several chunks. One more is a view whose first element is not aligned to 16 bytes.
SIZES = (0, 1, 31, 96 * 8, 40003, 262144 + 8)
PRECISIONS = {"fp32": (FP32, FP32), "master": (BF16, BF16), "master_fp32_gradients": (BF16, FP32),
              "stochastic": (BF16, BF16), "stochastic_fp32_gradients": (BF16, FP32)}  # fmt: skip


class Training:
    """Parameters and moments of AdamW on one device."""

    def __init__(self, device, precision, moments="fp32"):
        self.inputs = Inputs(device, FP32)
        self.dtype, self.gradient_dtype = PRECISIONS[precision]
        values = [self.inputs.normal(size) for size in SIZES] + [self.inputs.normal(1004)[3:]]
        self.parameters = [value.to(self.dtype) for value in values[:-1]] + [values[-1].to(self.dtype)[1:]]
        values[-1] = values[-1][1:]
        self.stochastic = precision.startswith("stochastic")
        self.master = values if precision.startswith("master") else []
        kind = {"fp32": FP32, "bf16": BF16, "8bit": torch.uint8}[moments]
        self.states = [[torch.zeros(len(v), dtype=kind, device=device) for v in values] for _ in range(2)]
        blocks = [-(-len(value) // 128) for value in values] if moments == "8bit" else []
        self.scales = [[torch.zeros(n, dtype=kind, device=device) for n in blocks] for _ in range(2)]
        self.decay = [0.1 * (i % 2) for i in range(len(values))]

    def step(self, step):
        gradients = [
            self.inputs.normal(parameter.numel(), dtype=self.gradient_dtype) for parameter in self.parameters
        ]
        operators._adamw_(
            self.parameters, gradients, *self.states, *self.scales, self.master, self.decay,
            range(len(self.decay)), 1e-3, 0.9, 0.95, 1e-8, step, 0.37, self.stochastic, 1234567890123,
        )  # fmt: skip

    def tensors(self):
        return [*self.parameters, *self.master, *itertools.chain(*self.states, *self.scales)]


@pytest.mark.parametrize("moments", ["fp32", "bf16", "8bit"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_adamw_gives_the_bits_of_the_cpu(precision, moments):
    ours, expected = (Training(device, precision, moments) for device in (GPU, torch.device("cpu")))
    for step in range(1, 4):
        ours.step(step)
        expected.step(step)
    for found, wanted in zip(ours.tensors(), expected.tensors(), strict=True):
        assert torch.equal(found.cpu(), wanted)


def test_adamw_passes_non_finite_values_on_as_the_cpu_does():
    found = []
    for device in (GPU, torch.device("cpu")):
        value = torch.tensor(
            [1.0, float("inf"), float("nan"), -float("inf"), 3e38] * 3, dtype=BF16, device=device
        )
        gradient = torch.tensor([float("nan"), 1.0, 1.0, 1.0, -1e30] * 3, device=device)
        states = [[torch.zeros(15, device=device)] for _ in range(2)]
        operators._adamw_(
            [value], [gradient], *states, [], [], [], [0.0], [0], 0.5, 0.9, 0.95, 1e-8, 1, 1.0, True, 5
        )
        found.append(value.float().cpu())
    torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)


def test_adamw_does_not_wait_for_the_device():
    training = Training(GPU, "stochastic")
    gradients = [torch.ones_like(parameter) for parameter in training.parameters]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in (1, 2):
            operators._adamw_(training.parameters, gradients, *training.states, [], [], [], training.decay,
                              range(len(training.decay)), 1e-3, 0.9, 0.95, 1e-8, step, 1.0, True, 3)  # fmt: skip
    finally:
        torch.cuda.set_sync_debug_mode("default")


def gradients_of_two_dtypes(device):
    tensors = [Inputs(device, BF16 if size % 2 else FP32).normal(size) * 100 for size in SIZES]
    return [*tensors, Inputs(device, BF16).columns(50, 70)]


def test_global_norm_gives_what_the_cpu_gives():
    expected = operators._global_norm(gradients_of_two_dtypes(torch.device("cpu")))
    tensors = gradients_of_two_dtypes(GPU)
    torch.cuda.set_sync_debug_mode("error")
    try:
        norms = [operators._global_norm(tensors) for _ in range(40)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert norms[0].device.type == "cuda" and norms[0].dtype == FP32 and norms[0].shape == ()
    torch.testing.assert_close(norms[0].cpu(), expected, rtol=1e-7, atol=0)
    assert all(torch.equal(norm, norms[0]) for norm in norms)


def test_global_norm_does_not_overflow():
    huge = torch.full((1000,), 1e30, device=GPU)
    assert operators._global_norm([huge]).item() == pytest.approx(1e30 * 1000**0.5, rel=1e-6)
    assert operators._global_norm([huge[:0]]).item() == 0.0
