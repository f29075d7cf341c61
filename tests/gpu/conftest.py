"""Lanes for GPU kernels. Each needs something of its process, and is skipped without:

``interpret``  Triton's interpreter on a CPU     TRITON_INTERPRET=1 pytest tests/gpu
``aot``        machine code without a GPU        pytest tests/gpu   (with triton installed)
``gpu``        the same numbers on a real GPU    pytest tests/gpu

The interpreter and the compiler can't work in one process.
"""

import os
from importlib.util import find_spec

import pytest
import torch

INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"
TRITON = find_spec("triton") is not None
REASONS = {
    "interpret": "" if INTERPRET and TRITON else "needs triton and TRITON_INTERPRET=1",
    "aot": "" if TRITON and not INTERPRET else "needs triton, and no TRITON_INTERPRET",
    "gpu": "" if torch.cuda.is_available() and not INTERPRET else "needs a GPU",
}


def pytest_collection_modifyitems(items):
    """Skip the lanes that this process can't run."""
    for item in items:
        for lane, reason in REASONS.items():
            if reason and item.get_closest_marker(lane):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def poison():
    """Memory that nobody has written is NaN, so an output that was forgotten shows."""
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(was)
