"""The grouped GEMM kernels on a Hopper GPU, through the shared library of a CUDA build (./dev test --gpu makes it)."""

import sys

import pytest

from tree import BUILD, ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import grouped_gemm_check as checks
from grouped_gemm_library import Library

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def library():
    return Library(BUILD / "lib/libphalanx_grouped_gemm.so")


def test_fixed_shapes(library):
    checks.check_fixed_shapes(library)


def test_random_shapes(library):
    checks.check_random_shapes(library, 200)


def test_equal_inputs_give_equal_bits(library):
    checks.check_repeats(library)


def test_a_captured_launch_serves_other_counts(library):
    checks.check_graph_replay(library)


def test_what_cannot_be_computed_is_refused(library):
    checks.check_refusals(library)
