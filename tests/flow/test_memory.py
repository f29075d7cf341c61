"""P6 over whole engines: every storage on one line, as planned, while requests run."""

import gc

import msgspec
import pytest
import torch

from enginebay import LLM, SamplingParams
from enginebay.conformance.tiny import write_tiny
from enginebay.errors import CapacityError
from enginebay.ledger.audit import audit, live
from enginebay.ledger.storages import bytes_by_line

SOME = SamplingParams(max_tokens=12, ignore_eos=True)
SWAPPING = {"engine.num_blocks": 24, "engine.swap_memory": "64KiB", "engine.max_sequences": 8}


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """A tiny model whose head is its embedding table, with stretched rotary positions."""
    stretched = {"rope_type": "dynamic", "factor": 2.0}
    return str(
        write_tiny(
            tmp_path_factory.mktemp("tied") / "tied", tie_word_embeddings=True,
            rope_scaling=stretched,
        )
    )  # fmt: skip


def run(llm):
    """Long enough for several steps and more sequences than the pool holds."""
    prompts = [[5 + number] * 40 for number in range(10)]
    return llm.generate(prompts, SOME)


@pytest.mark.parametrize("model", ["tiny", "tied"])
@pytest.mark.parametrize("stack", ["cpu", "reference"])
def test_every_storage_stands_on_one_line(request, stack, model):
    """From before the load until after requests fought for the pool."""
    before = live()
    llm = LLM(request.getfixturevalue(model), stack=stack, overrides=SWAPPING)
    try:
        executor = llm.assembly.executor
        assert audit(before, executor.holdings()).sound
        run(llm)
        found = audit(before, executor.holdings())
        assert (found.unowned, found.doubled, found.gone) == ([], [], [])
        assert found.bytes_by_line.pop("runtime") > 0
        planned = {line.name: line.planned for line in executor.plan.lines}
        assert found.bytes_by_line == {name: planned[name] for name in ("weights", "kv", "swap")}
        memory = executor.memory()
        assert memory == bytes_by_line(executor.holdings())
    finally:
        llm.close()
    assert executor.num_swap_blocks == 64 * 1024 // executor.attention.bytes_per_block
    del llm, executor, found
    gc.collect()


def test_a_tensor_on_no_line_is_found(tiny):
    """What a model keeps without telling shows, with its size."""
    before = live()
    llm = LLM(tiny, stack="reference", overrides={"engine.num_blocks": 64})
    executor = llm.assembly.executor
    executor.decoder.secret = torch.zeros(77)
    assert audit(before, executor.holdings()).unowned == ["torch.float32 [77] on cpu, 308 bytes"]
    llm.close()


def test_both_copies_of_tied_weights_are_listed(tied):
    """A scheme that copies gives the head a line of its own, planned and real."""
    from enginebay.plugins.quant.none import Float

    class Copies(Float):
        def pack(self, name, role, weight, bias):
            return super().pack(name, role, weight.clone(), bias)

    before, after = {}, {}
    for kind, roles in ((Float, before), (Copies, after)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("enginebay.plugins.quant.none.Float", kind)
            llm = LLM(tied, stack="reference", overrides={"engine.num_blocks": 64})
        lines = {line["name"]: line for line in llm.client.snapshot().ledger["lines"]}
        assert lines["weights"]["planned"] == lines["weights"]["allocated"]
        roles |= {part["name"]: part["num_bytes"] for part in lines["weights"]["parts"]}
        llm.close()
    assert "head" not in before
    assert after["head"] == after["embedding"] == 300 * 64 * 4


def test_the_ledger_while_requests_run(start):
    """Rows of a running engine: planned, reserved, allocated; shares add up."""
    llm = start(stack="cpu", engine__swap_memory="64KiB")
    seen = []
    engine = llm.assembly.engine
    commit = engine._commit

    def look(*given):
        commit(*given)
        seen.append(llm.client.snapshot().ledger)

    engine._commit = look
    run(llm)
    busiest = max(seen, key=lambda ledger: ledger["kv"]["used_blocks"])
    lines = {line["name"]: line for line in busiest["lines"]}
    kv, swap = busiest["kv"], lines["swap"]
    assert kv["physical_bytes"] == lines["kv"]["allocated"] > 0
    assert sum(row["physical_bytes"] for row in busiest["requests"]) == kv["physical_bytes"]
    assert kv["logical_bytes"] == kv["logical_tokens"] * kv["token_bytes"]
    assert len(busiest["requests"]) == 10
    assert busiest["tenants"][0]["requests"] == 10
    assert lines["kv"]["planned"] == lines["kv"]["reserved"] == kv["num_blocks"] * kv["block_bytes"]
    assert (swap["planned"], swap["allocated"]) == (swap["reserved"], 0)
    assert lines["runtime"]["allocated"] == llm.assembly.executor.step_peak[0] > 0
    assert 0 < lines["runtime"]["reserved"] < 2**20
    assert busiest["process"]["own_bytes"] > busiest["process"]["before_load_bytes"] > 0
    assert isinstance(busiest["process"]["residual_bytes"], int)
    assert msgspec.json.decode(msgspec.json.encode(busiest)) == busiest
    assert llm.client.snapshot("unknown").ledger == {}


def test_the_peak_of_a_step_is_that_of_its_largest_tensors(start):
    """Twice the tokens in a step, about twice the temporary memory; at least what the
    feed-forward alone takes, and the same whenever it is measured."""
    sizes = {}
    for tokens in (64, 128):
        llm = start(stack="reference", engine__max_step_tokens=tokens, engine__max_sequences=1)
        sizes[tokens], measured = llm.assembly.executor.step_peak
        assert measured == tokens
        assert sizes[tokens] >= tokens * 4 * (64 + 3 * 128)
        llm.assembly.executor.warm_up()
        assert llm.assembly.executor.step_peak == (sizes[tokens], tokens)
    assert 1.5 < sizes[128] / sizes[64] < 2.5


def test_a_pool_beyond_the_machine_is_refused_with_the_plan(start):
    """Not promised by the system now and missed by a request later."""
    with pytest.raises(CapacityError) as told:
        start(engine__num_blocks=0, engine__kv_memory="900TiB", engine__max_sequences=10**12)
    message = str(told.value)
    assert message.startswith("load: line kv does not fit")
    for figure in ("weights", "total", "KV: 512 B a token", "engine.kv_memory to"):
        assert figure in message


@pytest.mark.parametrize(
    ("line", "where", "told"),
    [
        ("weights", "enginebay.weights.torch.empty", "smaller model"),
        ("kv", "enginebay.plugins.kernels.reference_store.torch.zeros", "engine.kv_memory"),
        ("swap", "enginebay.plugins.kernels.reference_store.ReferenceStore.reserve_host",
         "engine.swap_memory"),
        ("runtime", "enginebay.runner.Runner.run", "engine.max_step_tokens"),
    ],
)  # fmt: skip
def test_out_of_memory_at_the_load_names_the_line(start, monkeypatch, line, where, told):
    """Weights, pool, host slots and the first step: each says what to lower."""

    def refuses(*given, device=None, **named):
        if device is not None and str(device) == "meta":
            return empty(*given, device=device, **named)
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")

    empty = torch.empty
    monkeypatch.setattr(where, refuses)
    with pytest.raises(
        CapacityError, match=f"^load: out of memory on the ledger line {line}: .*{told}"
    ):
        start(engine__swap_memory="64KiB")
