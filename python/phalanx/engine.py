"""Opens the C++ engine, libphalanx_torch-<minor version of torch>.so, in this Python.

The engine is the file that PHALANX_LIBRARY names, else the one in the package's folder `lib` that was built for the
torch that is installed. Torch and engine are compared before anything is loaded.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path

import torch

_NAME = re.compile(r"libphalanx_torch-(\d+\.\d+)\.so")
# Every fused block runs it, so a device that has it has them all.
_SAMPLE_OPERATOR = "phalanx::_rms_norm_forward"
_DTYPES = (torch.float32, torch.bfloat16, torch.float64)


class EngineError(ImportError):
    """The engine is missing or does not fit the torch that is installed. The message says what to do."""


@functools.cache
def load() -> None:
    """Makes torch.ops.phalanx and torch.classes.phalanx usable. Throws EngineError."""
    library = find_library(torch.__version__)
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise EngineError(
            f"cannot load {library} with torch {torch.__version__}: {error}\n{_rebuild()}"
        ) from error


def find_library(torch_version: str) -> Path:
    """The engine for this version of torch. Throws EngineError when there is none."""
    minor = ".".join(torch_version.split(".")[:2])
    found = _libraries()
    for library in found:
        if _minor_of(library) == minor:
            return library
    built = ", ".join(f"{library} for torch {_minor_of(library)}" for library in found)
    raise EngineError(
        f"the engine was not built for torch {torch_version}, which is installed in {Path(torch.__file__).parent}. "
        f"There is {built}. {_rebuild()}\nor install the torch it was built for: "
        f"{sys.executable} -m pip install 'torch=={_minor_of(found[-1])}.*'"
    )


@functools.cache
def runs_on(device_type: str) -> bool:
    """Whether the engine has kernels for tensors of this device type ("cpu", "cuda")."""
    load()
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device_type)
    return key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(_SAMPLE_OPERATOR, key)


def why_not(x: torch.Tensor) -> str | None:
    """Why the engine cannot compute with `x` where it is, under the autocast that is on; None when it can."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter):
        return f"the input is a {type(x).__name__}"
    device = x.device.type
    if not runs_on(device):
        return f"the engine has no kernels for {device}"
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if dtype not in _DTYPES:
        return f"the engine does not compute in {dtype}"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a torch.func transform is at work"
    return None


def _libraries() -> list[Path]:
    if named := os.environ.get("PHALANX_LIBRARY"):
        library = Path(named)
        if not _NAME.fullmatch(library.name):
            raise EngineError(
                f"PHALANX_LIBRARY is {named}; expected the path of a file libphalanx_torch-<minor version of torch>.so"
            )
        if not library.exists():
            raise EngineError(
                f"PHALANX_LIBRARY is {named}, which does not exist; name the engine's file, or unset it to use the "
                "installed one"
            )
        return [library]
    folder = Path(__file__).parent / "lib"
    found = sorted(path for path in folder.glob("libphalanx_torch-*.so") if _NAME.fullmatch(path.name))
    if not found:
        raise EngineError(
            f"the engine is not installed: no libphalanx_torch-*.so in {folder}. Install it from the source folder: "
            f"{sys.executable} -m pip install .\nor name its file in PHALANX_LIBRARY"
        )
    return found


def _minor_of(library: Path) -> str:
    return _NAME.fullmatch(library.name)[1]


def _rebuild() -> str:
    return (
        "Build the engine for it, in the source folder: "
        f"{sys.executable} -m pip install --force-reinstall --no-deps ."
    )
