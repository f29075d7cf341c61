"""The ledger's arithmetic, its messages, and its books over an imagined engine."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.errors import CapacityError, StackError
from enginebay.hookspecs.executor import Holding
from enginebay.hookspecs.model import Limits
from enginebay.ledger.audit import audit, live
from enginebay.ledger.block_sizes import contiguous, read_lengths, rounding
from enginebay.ledger.books import Books
from enginebay.ledger.holders import MOST_ROWS
from enginebay.ledger.lines import Line, Plan
from enginebay.ledger.planning import Asked, Numbers, plan_numbers
from enginebay.ledger.process import available, resident
from enginebay.ledger.room import check_room
from enginebay.ledger.shortage import on_line
from enginebay.ledger.storages import bytes_by_line
from enginebay.ledger.table import plan_table, size
from enginebay.plugins.formats.gguf_blocks import metadata_bytes
from enginebay.plugins.schedulers.chunked import Chunked, Options

GIB = 2**30


def limits(**changes):
    given = {
        "max_model_len": 256,
        "max_step_tokens": 64,
        "max_sequences": 64,
        "block_size": 4,
        "num_blocks": 256,
    }
    return Limits(**(given | changes))


def harness(**changes):
    return Harness(lambda given: Chunked(Options(), given), limits(**changes))


def test_the_worked_case_to_the_byte():
    """7e9 parameters in bfloat16 and 16 requests of 4,096 tokens beside 3 and 4 GiB."""
    model = Numbers(parameters=7 * 10**9, layers=32, kv_heads=8, head_dim=128)
    asked = Asked(
        tokens=4096, requests=16, runtime=3 * GIB, reserve=4 * GIB, device_memory=40 * GIB
    )
    plan = plan_numbers(model, asked)
    assert plan.line("weights").planned == 14 * 10**9
    assert plan.token_bytes == 128 * 1024
    assert plan.request_bytes == GIB // 2
    assert plan.line("kv").planned == 8 * GIB
    assert plan.total == 14 * 10**9 + 15 * GIB
    assert plan.left == 40 * GIB - plan.total
    assert plan.fits == (33 * GIB - 14 * 10**9) // (GIB // 2)
    shown = plan_table(plan)
    for figure in ("13.04 GiB", "128 KiB a token", "0.50 GiB", "8.00 GiB", "28.04 GiB"):
        assert figure in shown


@pytest.mark.parametrize(
    ("layers", "tokens", "requests", "each", "all_of_them"),
    [(80, 32768, 1, 10_737_418_240, 10_737_418_240), (32, 8192, 32, GIB, 32 * GIB)],
)
def test_kv_of_long_requests(layers, tokens, requests, each, all_of_them):
    """8 KV heads of 128 in 2 bytes: 10.7 GB, and 1 GiB a sequence."""
    model = Numbers(layers=layers, kv_heads=8, head_dim=128)
    plan = plan_numbers(model, Asked(tokens=tokens, requests=requests))
    assert (plan.request_bytes, plan.line("kv").planned) == (each, all_of_them)


def test_physical_kv_is_whole_blocks():
    """A request of 17 tokens takes two blocks of 16, and no more of it fits than do."""
    model = Numbers(layers=1, kv_heads=1, head_dim=8, block_size=16)
    plan = plan_numbers(model, Asked(tokens=17, requests=3, device_memory=32 * 32 * 5 + 1))
    assert plan.token_bytes == 32
    assert plan.line("kv").planned == 3 * 2 * 16 * 32
    assert plan.fits == 5


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"dtype": "int3"}, "--dtype 'int3'"), ({"layers": -1}, "--layers -1"),
     ({"block_size": 0}, "--block-size 0")],
)  # fmt: skip
def test_numbers_that_mean_nothing(changes, told):
    """The option is named."""
    with pytest.raises(StackError, match=told):
        plan_numbers(Numbers(**changes), Asked())


def test_block_sizes_of_the_worked_example():
    """17, 33 and 65 tokens: slots and table entries at 16 and at 4, regions of 65."""
    lengths = [17, 33, 65]
    at_16, at_4 = rounding(lengths, 16), rounding(lengths, 4)
    assert (at_16.slots, at_16.entries, at_16.waste) == (160, 10, 45)
    assert (at_4.slots, at_4.entries, at_4.waste) == (124, 31, 9)
    whole = contiguous(lengths, 65)
    assert (whole.slots, whole.entries) == (195, 3)
    with pytest.raises(StackError, match="--max-length 64: a sequence has 65"):
        contiguous(lengths, 64)


@pytest.mark.parametrize(
    "text",
    ["17\n33\n\n65\n", "length\n17\n33\n65\n", "id,tokens\na,17\nb,33\nc,65\n",
     '{"num_prompt": 10, "max_tokens": 7}\n{"length": 33}\n{"total_tokens": 65}\n'],
    ids=["lines", "headed", "csv", "jsonl"],
)  # fmt: skip
def test_lengths_of_a_file(tmp_path, text):
    """One a line, CSV and JSONL say the same."""
    path = tmp_path / "trace"
    path.write_text(text)
    assert read_lengths(str(path)) == [17, 33, 65]


@pytest.mark.parametrize(
    ("text", "told"),
    [("17\nmany\n", "line 2: 'many'"), ('{"size": 3}\n', "line 1: no column"), ("0\n", "1 token"),
     ('{"length": 3\n', "line 1: not JSON"), ("tokens,x\nmany,1\n", "row 2: tokens is not")],
)  # fmt: skip
def test_lengths_that_are_none(tmp_path, text, told):
    """File and line are named."""
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(StackError, match=told):
        read_lengths(str(path))
    with pytest.raises(StackError, match="neither numbers"):
        read_lengths("a,b")


def test_sizes_as_people_read_them():
    """Powers of two, two digits."""
    assert [size(n) for n in (0, 900, 131072, 5 * 2**20, 14 * 10**9)] == [
        "0 B", "900 B", "128 KiB", "5.00 MiB", "13.04 GiB",
    ]  # fmt: skip


def test_views_of_one_storage_count_once():
    """Tensors on a device, without bytes, and arrays."""
    tensor, array = torch.zeros(10), np.zeros(7)
    nothing = torch.empty(6, device="meta")
    held = [
        Holding("weights", "a", tensor), Holding("weights", "b", tensor[2:].view(2, 4)),
        Holding("runtime", "c", array), Holding("runtime", "d", array[1:]),
        Holding("kv", "e", nothing), Holding("kv", "f", nothing.view(2, 3)),
        Holding("kv", "g", torch.empty(1, device="meta")),
    ]  # fmt: skip
    assert bytes_by_line(held) == {"weights": 40, "runtime": 56, "kv": 28}


def test_the_audit_finds_what_has_no_owner_or_two():
    """A tensor on no line, one on two, and one that is gone, each in words."""
    before = live()
    owned, shared, lost = torch.zeros(11), torch.zeros(12), torch.zeros(13)
    held = [Holding("weights", "owned", owned), Holding("kv", "pool", shared)]
    findings = audit(before, [*held, Holding("weights", "too", shared[1:])])
    assert findings.doubled == ["weights: too is also kv: pool"]
    assert findings.unowned == ["torch.float32 [13] on cpu, 52 bytes"]
    assert findings.bytes_by_line == {"weights": 44, "kv": 48}
    assert audit(before, [*held, Holding("kv", "lost", lost)]).sound


def test_out_of_memory_is_named_and_other_errors_pass():
    """Phase, line and fix, for the errors that are about memory."""
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        with (
            pytest.raises(CapacityError, match=r"load: out of memory on the ledger line kv.*; x"),
            on_line("load", "kv", "x"),
        ):
            raise error
    with pytest.raises(RuntimeError, match="shapes"), on_line("load", "kv", "x"):
        raise RuntimeError("the shapes differ")


def test_what_the_system_has_to_give(tmp_path):
    """The kernel's estimate, or what the group's limit leaves; inactive files count free."""
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 100 kB\nMemAvailable:   40 kB\n")
    assert available(memory, tmp_path / "none") == 40 * 1024
    group = tmp_path / "group"
    group.mkdir()
    for name, text in {"memory.max": "20480", "memory.current": "15000",
                       "memory.stat": "anon 10000\ninactive_file 3000\n"}.items():  # fmt: skip
        (group / name).write_text(text)
    assert available(memory, group) == 20480 - 15000 + 3000
    (group / "memory.max").write_text("max\n")
    assert available(memory, group) == 40 * 1024
    assert available(tmp_path / "none", tmp_path / "none") is None
    assert resident()[0] > 2**20


def test_a_plan_larger_than_the_machine_is_refused():
    """Before anything is taken, with the plan and a size that would do."""
    kv = Line(name="kv", planned=2**60)
    with pytest.raises(CapacityError, match=r"line kv does not fit.*kv_memory to \d+MiB") as told:
        check_room(Plan(lines=(Line(name="weights", planned=1), kv), block_bytes=1), "cpu")
    assert "total" in str(told.value)
    with pytest.raises(CapacityError, match=r"line weights does not fit.*smaller model"):
        check_room(Plan(lines=(Line(name="weights", planned=2**60),)), "cpu")
    check_room(Plan(lines=(Line(name="kv", planned=2**20),)), "cpu")


def test_blocks_are_whole_and_shared_ones_count_once():
    """Four choices share a prompt: rows add up to the pool, and so do the positions."""
    world = harness()
    world.submit(request_of("a", num_prompt=41, max_tokens=30, n=4, tenant="red"))
    world.submit(request_of("b", num_prompt=10, max_tokens=30, tenant="blue"))
    books, looked = Books(world.engine), 0
    while world.engine.busy:
        world.turn()
        told = books.read()
        kv, rows = told["kv"], told["requests"]
        assert kv["used_blocks"] + kv["cached_blocks"] + kv["free_blocks"] == kv["num_blocks"]
        positions = kv["logical_tokens"] + kv["rounding_waste_tokens"]
        assert (kv["used_blocks"] + kv["shared_blocks"]) * kv["block_size"] == positions
        for column in ("requests", "tenants"):
            own = sum(row["blocks"] - row["shared_blocks"] for row in told[column])
            assert own == kv["used_blocks"]
        looked += any(row["request_id"] == "a" and row["shared_blocks"] >= 30 for row in rows)
    assert looked > 10
    assert {"red", "blue"} >= {row["tenant"] for row in told["tenants"]}
    assert told["kv"]["used_blocks"] == 0


def test_rows_are_bounded():
    """The largest are named; the others are one row, and nothing is lost."""
    world = harness(max_step_tokens=256, num_blocks=512)
    for number in range(40):
        world.submit(request_of(f"r{number}", num_prompt=3, max_tokens=9, tenant=f"t{number}"))
    world.turn()
    told = Books(world.engine).read()
    for column in ("requests", "tenants"):
        rows = told[column]
        assert len(rows) == MOST_ROWS + 1
        assert rows[-1]["others"] == 40 - MOST_ROWS
        assert sum(row["blocks"] for row in rows) == told["kv"]["used_blocks"] == 40
    world.finish()


@pytest.mark.parametrize(
    ("num_prompt", "phase"), [(5, "decode growth"), (4 * 8 + 1, "prefill admission")]
)
def test_an_end_by_capacity_says_phase_line_and_fix(num_prompt, phase):
    """The pool holds 32 positions; the reader is told what was missing."""
    world = harness(num_blocks=8)
    world.submit(request_of("a", num_prompt=num_prompt, max_tokens=100))
    world.finish()
    end = world.answers.of["a"].finished[0]
    assert end.reason == "capacity"
    told = f"{phase}: out of memory on the ledger line kv: with 33 tokens 1 KV block is missing"
    assert end.message.startswith(told)
    assert "raise engine.kv_memory" in end.message


@pytest.mark.parametrize(
    ("kind", "block_bytes", "scales"),
    [("Q4_1", 20, 4), ("Q8_0", 34, 2), ("Q4_K", 144, 16), ("Q6_K", 210, 18), ("IQ4_NL", 18, 2),
     ("F16", 2, 0), ("BF16", 2, 0)],
)  # fmt: skip
def test_scales_of_stored_blocks(kind, block_bytes, scales):
    """What a block carries beside its codes, by ggml's own layouts."""
    stored = GGMLQuantizationType[kind]
    assert metadata_bytes(stored, 3 * block_bytes) == 3 * scales
