"""The C++ engine seen from Python tests."""

import os

import torch


def load_engine():
    """Loads the engine of the build under test (see tests/conftest.py)."""
    torch.ops.load_library(os.environ["PHALANX_LIBRARY"])
