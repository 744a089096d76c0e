"""The memory-bound kernels under compute-sanitizer, where this machine has one that reaches the GPU, and without it."""

import shutil
import subprocess

import pytest

from tree import BUILD

pytestmark = pytest.mark.gpu
PROGRAM = BUILD / "bin/gpu_memory_check"


def sanitizer():
    """Its path, or None: some virtual machines lend the GPU but not its debugger interface."""
    path = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if path is None:
        return None
    probe = subprocess.run([path, PROGRAM, "--nothing"], capture_output=True, text=True)
    return path if probe.returncode == 0 else None


def test_kernels_run_without_torch():
    result = subprocess.run([PROGRAM], capture_output=True, text=True)
    assert result.returncode == 0 and "all kernels ran" in result.stdout, result.stderr


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
def test_sanitizer_finds_nothing(tool):
    path = sanitizer()
    if path is None:
        pytest.skip("no compute-sanitizer that reaches this GPU")
    result = subprocess.run(
        [path, "--tool", tool, "--error-exitcode", "9", PROGRAM], capture_output=True, text=True
    )
    assert result.returncode == 0 and "SUMMARY" in result.stdout, result.stdout[-4000:]
