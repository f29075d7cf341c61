"""Rotary embeddings: every spelling, every kind, and positions past the original length."""

import math

import pytest
import torch

from enginebay.conformance.batches import Stretch, make_batch
from enginebay.conformance.parity import Tolerance, check_parity, compare_logits, teacher_forced
from enginebay.errors import ModelError
from enginebay.plugins.models.rope import TABLE_BYTES, Rotary
from enginebay.plugins.models.rope_settings import read_rope
from enginebay.plugins.models.settings import Settings

ORIGINAL = 32
IDS = torch.randint(
    0, 300, (2 * ORIGINAL + 8,), generator=torch.Generator().manual_seed(3)
).tolist()
CLOSE = Tolerance(max_difference=1e-4, max_kl=1e-8)
LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
YARN = {"factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LONG = {
    "short_factor": [1.0 + 0.1 * pair for pair in range(8)],
    "long_factor": [2.0 + 0.5 * pair for pair in range(8)],
    "original_max_position_embeddings": ORIGINAL,
    "factor": 4.0,
}
SPELLINGS = {
    "null": None,
    "default": {"rope_type": "default"},
    "type": {"type": "linear", "factor": 4.0},
    "rope_type": {"rope_type": "linear", "factor": 4.0},
    "both": {"type": "linear", "rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", **LLAMA3},
    "yarn": {"rope_type": "yarn", **YARN},
    "yarn-attention": {"rope_type": "yarn", "attention_factor": 1.5, **YARN},
    "yarn-mscale": {"rope_type": "yarn", "mscale": 0.8, "mscale_all_dim": 0.5, **YARN},
    "yarn-betas": {"type": "yarn", "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, **YARN},
}
GROWING = {
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "longrope": {"rope_type": "longrope", **LONG},
}


def rope(head_dim=16, max_positions=512, **config):
    return read_rope(Settings(config, "test"), head_dim, max_positions)


def cos_sin(positions, **config):
    return Rotary(rope(**config), torch.device("cpu")).cos_sin(torch.tensor(positions))


@pytest.mark.parametrize("scaling", SPELLINGS.values(), ids=SPELLINGS)
def test_case_63_spellings_have_the_logits_of_transformers(tiny, scaling):
    """Case 63: below, at and beyond the original length, every spelling agrees."""
    model = tiny(rope_scaling=scaling, max_position_embeddings=4 * ORIGINAL)
    expected = model.reference(IDS)
    for chunk in (None, 1):
        logits = model.logits(IDS, chunk=chunk)
        for position in (1, ORIGINAL - 1, ORIGINAL, 2 * ORIGINAL):
            at = slice(position, position + 1)
            check_parity(compare_logits(logits[at], expected[at]), CLOSE, f"at {position}")
        check_parity(compare_logits(logits, expected), CLOSE)


@pytest.mark.parametrize("scaling", [GROWING["dynamic"], SPELLINGS["yarn"], None])
def test_case_63_rope_parameters_form(tiny, scaling):
    """Case 63: the form of transformers 5 gives what the older form gives, theta inside."""
    table = {**(scaling or {"rope_type": "default"}), "rope_theta": 5000.0}
    older = tiny(name="older", rope_scaling=scaling, rope_theta=5000.0)
    newer = tiny(name="newer", rope_scaling=None, rope_theta=None, rope_parameters=table)
    assert torch.equal(older.logits(IDS), newer.logits(IDS))
    check_parity(compare_logits(newer.logits(IDS), newer.reference(IDS)), CLOSE)


@pytest.mark.parametrize("scaling", GROWING.values(), ids=GROWING)
def test_case_63_growing_kinds_decode_like_transformers(tiny, scaling):
    """Case 63: dynamic and longrope agree with token-by-token decoding at all lengths.

    Up to the original length they agree with its prefill as well; past it that rotates
    every position as for the whole prompt, which a chunked engine can't know.
    """
    length = ORIGINAL if scaling["rope_type"] == "dynamic" else 4 * ORIGINAL
    model = tiny(rope_scaling=scaling, max_position_embeddings=length)
    decoded = model.reference(IDS, chunk=1)
    prefilled = model.reference(IDS[:ORIGINAL])
    for chunk in (None, 1, 19):
        logits = model.logits(IDS, chunk=chunk)
        check_parity(compare_logits(logits, decoded), CLOSE, f"chunks of {chunk}")
        check_parity(compare_logits(logits[:ORIGINAL], prefilled), CLOSE)


def test_case_63_su_is_longrope():
    """Case 63: Phi-3's older name means the same numbers."""
    positions = [0, 1, ORIGINAL - 1, ORIGINAL, 2 * ORIGINAL]
    named = [cos_sin(positions, rope_scaling={"type": name, **LONG}) for name in ("su", "longrope")]
    assert torch.equal(*named)
    plain = cos_sin(positions)
    assert not torch.allclose(named[0], plain)


@pytest.mark.parametrize(
    ("scaling", "told"),
    [
        ({"rope_type": "foo", "factor": 2.0}, "'rope_type' of 'rope_scaling' is 'foo'"),
        ({"type": "foo"}, "'type' of 'rope_scaling' is 'foo'"),
        ({"type": 3}, "'type' of 'rope_scaling' is 3"),
        ({"factor": 4.0}, "'rope_type' of 'rope_scaling' is missing"),
        ({"type": "linear"}, "'factor' of 'rope_scaling' is missing"),
        ({"type": "linear", "factor": "4"}, "'factor' of 'rope_scaling' is '4'"),
        ({"type": "linear", "factor": 0}, "'factor' of 'rope_scaling' is 0"),
        ({"rope_type": "llama3", "factor": 8.0}, "'low_freq_factor' of 'rope_scaling' is missing"),
        ({"type": "longrope", **LONG, "short_factor": [1.0]}, "list of 8 numbers"),
        ({"full_attention": {"rope_type": "default"}}, "differ by layer"),
        ("linear", "needs to be a table"),
    ],
)
def test_case_63_what_is_not_known_stops_the_start(scaling, told):
    """Case 63: an unknown kind or a missing parameter is an error, never unscaled."""
    with pytest.raises(ModelError, match=told):
        rope(rope_scaling=scaling)


def test_rope_type_counts_when_both_are_given():
    """As in transformers: ``type`` is the older spelling."""
    assert rope(rope_scaling={"type": "mrope", "rope_type": "default"}).kind == "default"


def test_original_length_beside_the_table_counts():
    """Phi-3 keeps it at the top of its configuration."""
    scaling = {"rope_type": "longrope", **LONG}
    read = rope(rope_scaling=scaling, original_max_position_embeddings=64)
    assert read.original_max_positions == 64


def test_longrope_factor_follows_from_the_lengths():
    """Without ``factor`` it is the ratio of both lengths; it sets the attention factor."""
    scaling = {"rope_type": "longrope", **LONG, "factor": None}
    read = rope(max_positions=128, rope_scaling=scaling)
    expected = math.sqrt(1 + math.log(4) / math.log(ORIGINAL))
    assert read.parameters["attention_factor"] == pytest.approx(expected)


def test_partial_rotation_needs_an_even_number_of_dimensions():
    """A factor that leaves half a pair, or nothing, is an error."""
    for factor in (0.3, 0.01, 1.5):
        with pytest.raises(ModelError, match="partial_rotary_factor"):
            rope(head_dim=10, partial_rotary_factor=factor)


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [
        (None, 64),
        ({"type": "linear", "factor": 4.0}, 256),
        ({"type": "dynamic", "factor": 4.0}, 256),
        ({"type": "yarn", "factor": 4.0}, 256),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"rope_type": "llama3", **LLAMA3}, 64),
    ],
)
def test_context_limit_includes_the_stretching(tiny, scaling, limit):
    """How far a stretched model reaches, from what its configuration says."""
    model = tiny(rope_scaling=scaling, max_position_embeddings=64)
    assert model.subject().spec.max_positions == limit


def test_case_64_a_long_prompt_leaves_no_state(tiny):
    """Case 64: short, then 200 tokens, then the same short prompt: the same bits."""
    ids = torch.randint(0, 300, (256,), generator=torch.Generator().manual_seed(5)).tolist()
    model = tiny(rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=64)
    subject = model.subject()
    assert subject.spec.max_positions == 256
    before = teacher_forced(subject, ids[:40])
    long = teacher_forced(subject, ids)
    after = teacher_forced(subject, ids[:40])
    assert torch.equal(before, after)
    assert torch.isfinite(long).all()
    check_parity(compare_logits(before, model.reference(ids[:40])), CLOSE)


def test_case_64_neighbours_do_not_matter(tiny):
    """Case 64: a short prompt beside a long one has the bits that it has alone."""
    ids = torch.randint(0, 300, (200,), generator=torch.Generator().manual_seed(6)).tolist()
    model = tiny(rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=64)
    subject = model.subject(row_invariant=True)
    alone = teacher_forced(subject, ids[:40])
    attention = subject.attention(400, 16)
    stretches = [Stretch(ids, 0, range(1, 14)), Stretch(ids[:40], 0, range(14, 17))]
    both = subject.decoder.forward(make_batch(stretches, 16), attention)
    assert torch.equal(both[200:], alone)


def test_case_64_a_cached_position_keeps_its_rotation():
    """Case 64: dynamic rotation of a position is the same whatever is computed with it."""
    config = {"max_positions": 64, "rope_scaling": {"type": "dynamic", "factor": 4.0}}
    together = cos_sin(list(range(200)), **config)
    for position in (0, 63, 64, 65, 150, 199):
        assert torch.equal(cos_sin([position], **config)[0], together[position])
    assert not torch.allclose(together[150], cos_sin([150], max_positions=64)[0])


@pytest.mark.parametrize("scaling", [*SPELLINGS.values(), *GROWING.values()])
def test_cosines_are_row_invariant(scaling):
    """A position's cosines have the same bits in any batch."""
    config = {"rope_scaling": scaling}
    alone = torch.cat([cos_sin([position], **config) for position in range(70)])
    for count in range(1, 71):
        assert torch.equal(cos_sin(list(range(count)), **config), alone[:count])


@pytest.mark.parametrize("scaling", [*SPELLINGS.values(), *GROWING.values()])
def test_a_table_has_the_bits_that_a_step_would_compute(scaling):
    """Looked up or computed: a position is rotated the same."""
    spec, kept = rope(rope_scaling=scaling), {}
    tabled = Rotary(spec, torch.device("cpu"), lambda n, t: kept.setdefault(n, t), 150)
    computed = Rotary(spec, torch.device("cpu"))
    assert [*kept] == ["rotary.table"]
    assert kept["rotary.table"] is tabled.table
    for positions in (torch.tensor([149, 3, 3]), torch.tensor([0]), torch.arange(150)):
        assert torch.equal(tabled.cos_sin(positions), computed.cos_sin(positions))


def test_a_table_that_would_be_too_large_is_not_made():
    """A long context costs no memory for positions that nobody asks for."""
    spec, kept = rope(head_dim=16), {}
    most = TABLE_BYTES // (4 * 16)
    long = Rotary(spec, torch.device("cpu"), lambda n, t: kept.setdefault(n, t), most + 1)
    assert (long.table, [*kept]) == (None, ["rotary.0"])
    assert long.cos_sin(torch.tensor([most])).shape == (1, 16)
