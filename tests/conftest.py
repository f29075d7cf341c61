"""Fixtures shared by all tests."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import structlog
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_log():
    """Commands configure the log: not for the tests after theirs."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def same_numbers():
    """A test that fails by the numbers it drew fails again with them."""
    torch.manual_seed(0)
