"""Where the source tree and the build under test are."""

import os
import pathlib

ROOT = pathlib.Path(__file__).parents[2]
BUILD = pathlib.Path(os.environ.get("PHALANX_BUILD_DIR", ROOT / "build/cpu"))
