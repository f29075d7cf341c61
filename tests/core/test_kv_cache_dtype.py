"""``engine.kv_cache_dtype``: keys and values in int8, whatever else the stack does."""

import pytest

from enginebay.assembler import Assembler
from enginebay.config import load_stack
from enginebay.conformance.tiny import write_tiny
from enginebay.errors import StackError
from enginebay.ledger.planning import plan_stack
from enginebay.preparation import prepare


@pytest.mark.parametrize("stack", ["cpu", "reference"])
def test_a_plan_counts_codes_and_scales(tmp_path, stack):
    """A byte an element and four a token and KV head; the line says how it is kept."""
    changes = {"engine.model": str(write_tiny(tmp_path)), "engine.num_blocks": 8}
    plans = {}
    for kept in ("auto", "int8"):
        loaded = load_stack(stack, {**changes, "engine.kv_cache_dtype": kept})
        plans[kept] = plan_stack(prepare(Assembler(loaded)).context)
    assert plans["auto"].token_bytes == 2 * 2 * 2 * 16 * 4
    assert plans["int8"].token_bytes == 2 * 2 * 2 * (16 + 4)
    for plan in plans.values():
        assert plan.line("kv").planned == 8 * 16 * plan.token_bytes
    assert "int8" in plans["int8"].line("kv").note
    assert "int8" not in plans["auto"].line("kv").note


def test_another_form_is_refused_by_name():
    """With what there is to choose from."""
    with pytest.raises(StackError, match=r"engine\.kv_cache_dtype.*'int4'"):
        load_stack("cpu", {"engine.kv_cache_dtype": "int4"})
