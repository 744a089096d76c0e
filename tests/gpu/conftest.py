"""The engine on the GPU: its operators, and tensors drawn so that both devices see the same values."""

import pytest
import torch

from engine_library import load_engine


@pytest.fixture(scope="session", autouse=True)
def engine():
    load_engine()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
