"""An engine of four seats as admission sees it."""

import pytest

from enginebay.hookspecs.admission import AdmissionContext, Ask, Load
from enginebay.hookspecs.model import Limits

LIMITS = Limits(max_model_len=64, max_step_tokens=16, max_sequences=4, block_size=16, num_blocks=8)


@pytest.fixture
def context_of():
    def context(chain="budget", longest_token=0):
        return AdmissionContext(
            name="member", limits=LIMITS, chain=chain, longest_token=longest_token
        )

    return context


@pytest.fixture
def ask_of():
    def ask(request_id="r", **facts):
        usual = {"tenant": "t", "n": 1, "arrival": 0.0, "num_prompt_tokens": 4, "max_tokens": 4}
        return Ask(request_id=request_id, **usual | facts)

    return ask


@pytest.fixture
def load_of():
    def load(now=0.0, **facts):
        usual = {
            "num_waiting": 0,
            "num_running": 0,
            "waiting_tokens": 0,
            "num_free_blocks": 8,
            "num_blocks": 8,
            "requests_per_second": 0.0,
            "num_seats": 4,
        }
        return Load(now=now, **usual | facts)

    return load
