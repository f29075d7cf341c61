"""What prefix reuse saves: a whole engine on imagined hardware and time, no model."""

from statistics import mean

import msgspec
import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.hash_model import continuation
from enginebay.conformance.traffic import VOCAB_SIZE, Arrival, request_of
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.hookspecs.allocator import AllocatorContext
from enginebay.plugins.allocators import contiguous, paged, prefix_hash, prefix_radix
from enginebay.plugins.schedulers.chunked import Chunked, Options

SHARED = [1 + (7 * place * place + place) % 96 for place in range(1000)]
OWN = 24
REUSING = [prefix_hash, prefix_radix]


def harness_of(plugin, drafter=None, **bounds):
    """The default policy over one allocator; observers collect request records."""
    limits = limits_of(
        **{"max_step_tokens": 512, "max_sequences": 64, "block_size": 16, "num_blocks": 4000}
        | {"max_model_len": 1200}
        | bounds
    )

    def build(num_blocks, block_size):
        context = AllocatorContext(num_blocks, block_size, limits.max_model_len)
        return plugin.enginebay_allocator(plugin.Options(), context)

    records = Records()
    harness = Harness(
        lambda given: Chunked(Options(), given),
        limits,
        make_allocator=build,
        observers=[("records", records)],
        drafter=drafter,
        verify=False,
    )
    return harness, records


class Records:
    """Request records by id."""

    def __init__(self):
        self.of = {}

    def on_step(self, record):
        """Nothing."""

    def on_request(self, record):
        self.of[record.request_id] = record

    def on_refusal(self, refusal):
        """Nothing."""


def long_request(name, tenant="default", number=0):
    """The shared prefix and an end of its own."""
    own = [1 + (number * 31 + place * 5) % 96 for place in range(OWN)]
    return request_of(name, num_prompt=0, max_tokens=6, tenant=tenant, prompt=[*SHARED, *own])


def serve(plugin, times, warm=True):
    """Fifty requests with the shared prefix; prefill positions computed, and TTFTs."""
    harness, records = harness_of(plugin)
    coming = [
        Arrival(time, long_request(f"r{number}", number=number))
        for number, time in enumerate(times)
    ]
    if warm:
        harness.submit(long_request("warm", number=60))
        harness.finish()
    harness.play(coming)
    require_all_well(harness, "flow/prefix")
    asked = [records.of[f"r{number}"] for number in range(len(times))]
    computed = sum(record.prefill_computed_tokens for record in asked)
    return computed, [record.first_token - record.arrival for record in asked], asked


@pytest.mark.parametrize("plugin", REUSING)
@pytest.mark.parametrize("pace", [0.0, 0.2])
def test_a_shared_prefix_is_computed_once(plugin, pace):
    """After one warm request, fifty compute a tenth of the tokens at most, all at once or
    one by one, and the first token comes three times sooner at least."""
    times = [1.0 + pace * number for number in range(50)]
    without, slow, _ = serve(paged, times)
    computed, quick, asked = serve(plugin, times)
    assert without == 50 * (1000 + OWN)
    assert computed == 50 * (1000 % 16 + OWN)
    assert computed < 0.1 * without
    assert mean(slow) >= 3 * mean(quick)
    assert max(slow) >= 3 * max(quick)
    assert {record.usage.cached_tokens for record in asked} == {992}


@pytest.mark.parametrize("plugin", REUSING)
def test_a_cold_cache_computes_one_prefix(plugin):
    """Fifty at once and nothing cached: the first computes the prefix, the rest wait."""
    computed, _, asked = serve(plugin, [1.0] * 50, warm=False)
    shared = computed - 50 * (1000 % 16 + OWN)
    assert 0 < shared <= 2 * 1000
    assert sum(record.usage.cached_tokens for record in asked) == 49 * 992


@pytest.mark.parametrize("plugin", REUSING)
def test_cached_tokens_are_what_was_not_computed(plugin):
    """Of prompts that end with a block, the last block is computed again (case 50)."""
    harness, records = harness_of(plugin)
    prompts = {"cold": 64, "again": 64, "shorter": 40, "longer": 100}
    for name, count in prompts.items():
        harness.submit(request_of(name, num_prompt=0, max_tokens=4, prompt=SHARED[:count]))
        harness.finish()
    cached = {name: harness.answers.of[name].ended.usage.cached_tokens for name in prompts}
    assert cached == {"cold": 0, "again": 48, "shorter": 32, "longer": 64}
    for name, count in prompts.items():
        assert records.of[name].prefill_computed_tokens == count - cached[name]
    hits = [e for e in harness.intake.timeline.of("longer") if e["what"] == "prefix_hit"]
    assert [event["num_tokens"] for event in hits] == [64]


@pytest.mark.parametrize("plugin", REUSING)
def test_a_conversation_goes_on_where_it_was(plugin):
    """The answer's own blocks are found by the next turn, but for its last token."""
    harness, _ = harness_of(plugin)
    harness.submit(request_of("first", num_prompt=0, max_tokens=40, prompt=SHARED[:100]))
    harness.finish()
    prompt = [*SHARED[:100], *harness.answers.of["first"].tokens[0], 5, 6, 7]
    harness.submit(request_of("second", num_prompt=0, max_tokens=4, prompt=prompt))
    harness.finish()
    assert harness.answers.of["second"].ended.usage.cached_tokens == 139 // 16 * 16


@pytest.mark.parametrize("plugin", REUSING)
def test_tenants_learn_nothing_of_each_other(plugin):
    """With a stranger's prefix cached a request takes exactly as long as with none; with
    one of its own tenant it is quicker (case 52)."""
    delays = {}
    for before in ("nobody", "stranger", "same"):
        harness, records = harness_of(plugin)
        if before != "nobody":
            harness.submit(long_request("before", tenant="b" if before == "same" else "a"))
            harness.finish()
        harness.play([Arrival(10.0, long_request("asked", tenant="b"))])
        record = records.of["asked"]
        delays[before] = round(record.first_token - record.arrival, 9), record.usage.cached_tokens
    assert delays["nobody"] == delays["stranger"]
    assert delays["nobody"][1] == 0
    assert delays["same"][1] == 1008
    assert delays["nobody"][0] >= 3 * delays["same"][0]


@pytest.mark.parametrize("plugin", [paged, *REUSING])
def test_choices_share_the_prompt_until_they_part(plugin):
    """Four choices hold fewer blocks than four prompts; the block where they part is each
    one's own, the full ones before it everybody's."""
    harness, _ = harness_of(plugin, num_blocks=64)
    harness.submit(request_of("r", num_prompt=0, max_tokens=40, n=4, prompt=SHARED[:100]))
    while len(harness.roster.seats) < 4 or harness.answers.of["r"].num_tokens < 8:
        harness.turn()
    tables = [list(sequence.table) for sequence in harness.roster.seats.values()]
    naive = sum(len(table) for table in tables)
    used = 64 - harness.allocator.num_free
    assert (naive, used) == (28, 10)
    for place in range(7):
        owners = len({table[place] for table in tables})
        assert owners == (1 if place < 99 // 16 else 4)
    harness.finish()
    require_all_well(harness, "flow/prefix")


class Seer:
    """A drafter that knows what will be drawn."""

    def __init__(self, prompt, seed):
        self.answer = continuation(prompt, 40, seed=seed, vocab_size=VOCAB_SIZE)

    def propose(self, sequences, k):
        return [tuple(self.answer[s.num_generated : s.num_generated + k]) for s in sequences]


@pytest.mark.parametrize("plugin", REUSING)
def test_drafts_past_the_end_are_not_published(plugin):
    """A sequence that stops within its accepted drafts has computed more than it said: the
    rest is of no use to others."""
    prompt = SHARED[:30]
    request = request_of("r", num_prompt=0, max_tokens=30, prompt=prompt)
    seer = Seer(prompt, request.sampling.seed)
    stop = seer.answer[8]
    sampling = msgspec.structs.replace(request.sampling, stop_token_ids=(stop,))
    harness, _ = harness_of(plugin, drafter=seer, block_size=4)
    harness.submit(msgspec.structs.replace(request, sampling=sampling))
    harness.finish()
    tokens = harness.answers.of["r"].tokens[0]
    assert (harness.engine.state, tokens) == ("ready", seer.answer[:9])
    harness.submit(request_of("s", num_prompt=0, max_tokens=2, prompt=[*prompt, *seer.answer]))
    harness.finish()
    cached = harness.answers.of["s"].ended.usage.cached_tokens
    assert cached == (len(prompt) + len(tokens)) // 4 * 4


def test_regions_waste_what_pages_do_not():
    """The baseline runs few at once where paging runs many: its regions are mostly idle."""
    most = {}
    for plugin in (contiguous, paged):
        harness, _ = harness_of(plugin, num_blocks=160, max_model_len=640)
        for number in range(16):
            harness.submit(request_of(f"r{number}", num_prompt=40, max_tokens=20))
        harness.finish()
        require_all_well(harness, "flow/prefix")
        most[plugin] = harness.audit.most_seats
    assert most == {contiguous: 4, paged: 16}


@pytest.mark.parametrize("plugin", REUSING)
def test_a_small_pool_evicts_and_goes_on(plugin):
    """Prompts of many kinds through a pool that holds few: what is cached makes room."""
    harness, records = harness_of(plugin, num_blocks=24, max_model_len=300)
    for number in range(40):
        prompt = [1 + number % 5, *SHARED[: 60 + number % 3]]
        harness.submit(request_of(f"r{number}", num_prompt=0, max_tokens=12, prompt=prompt))
    harness.finish()
    require_all_well(harness, "flow/prefix")
    assert harness.engine.blocks.num_evicted > 0
    assert sum(record.usage.cached_tokens for record in records.of.values()) > 0
