"""Programs that the tests start see the same package, engine and Python as the tests themselves.

The build under test is build/cpu, or the folder PHALANX_BUILD_DIR.
"""

import os
import pathlib
import sys

from tree import BUILD, ROOT


def prepend_path(variable: str, folder: pathlib.Path) -> None:
    parts = os.environ.get(variable, "").split(os.pathsep)
    if str(folder) not in parts:
        os.environ[variable] = os.pathsep.join([str(folder), *filter(None, parts)])


prepend_path("PYTHONPATH", ROOT / "python")
prepend_path("PATH", pathlib.Path(sys.executable).parent)
prepend_path("PATH", BUILD / "bin")
os.environ.setdefault("PHALANX_PYTHON", sys.executable)
for library in (BUILD / "lib").glob("libphalanx_torch-*.so"):
    os.environ.setdefault("PHALANX_LIBRARY", str(library))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
