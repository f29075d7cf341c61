"""What a stack chose, in words and figures: number formats, kernels, options."""

import json

import pytest
import torch

from enginebay.commands import main
from enginebay.conformance.tiny import write_tiny
from enginebay.hookspecs.executor import Holding
from enginebay.hookspecs.kernel import KVSpec
from enginebay.hookspecs.quant import QuantReport
from enginebay.ledger.decisions import decisions
from enginebay.plugins.kernels import quantized_linear

W8A8 = ("--stack", "cpu-w8a8", "--set", "options.quant.smoothquant.smoothing=false")
PLAIN = (
    "--set", 'kernels=["reference"]', "--set", "engine.kv_memory=1MiB",
    "--set", "engine.warm_up=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """A tiny model whose head is its embedding."""
    return str(write_tiny(tmp_path_factory.mktemp("tied") / "tied", tie_word_embeddings=True))


@pytest.fixture
def said(capsys):
    """Run a command and give what it printed."""

    def run(*words):
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return printed.out

    return run


@pytest.fixture
def explain(said, tied):
    """``enginebay explain`` over the tiny model, as text or as data."""

    def run(*words, text=False):
        printed = said("explain", "--model", tied, *PLAIN, *words, *(() if text else ("--json",)))
        return printed if text else json.loads(printed)

    return run


def test_nothing_is_loaded_unless_asked(explain, monkeypatch):
    """The table is resolved and the memory planned without a tensor read; ``--load`` finds
    the same kernels, formats and limits."""
    loaded = explain(*W8A8, "--load")

    def reads(*given):
        pytest.fail("a tensor was read")

    where = "enginebay.plugins.formats.safetensors.SafetensorsCheckpoint.load"
    monkeypatch.setattr(where, reads)
    told = explain(*W8A8)
    assert (told["loaded"], loaded["loaded"]) == (False, True)
    for same in ("kernels", "slots", "limits", "service_version", "row_invariant"):
        assert told[same] == loaded[same], same
    assert told["quantization"] == loaded["quantization"]
    assert told["memory"]["weights"] == loaded["memory"]["weights"]
    assert told["memory"]["kv"] == loaded["memory"]["kv"]


def test_the_three_decisions_and_both_copies_of_a_tied_weight(explain, said, tied):
    """Weights, activations, KV, each with its bytes and scales; in ``explain`` and in
    ``ledger``."""
    told = explain(*W8A8)["quantization"]
    weights, activations, kv = told["decisions"]
    assert (weights["choice"], activations["choice"], kv["choice"]) == (
        "w8a8",
        "int8 dynamic",
        "float32",
    )
    rows = 2 * ((64 + 2 * 32) + 64 + 2 * 128 + 64) + 300
    assert weights["metadata_bytes"] == 4 * rows
    assert "float32: embedding 75 KiB; w8a8 in int8: linear" in weights["note"]
    assert (kv["metadata_bytes"], activations["num_bytes"]) == (0, 0)
    both = (
        "model.embed_tokens.weight (float32, 75 KiB) and lm_head.weight (w8a8 in int8, 18.75 KiB)"
    )
    assert told["copies"] == both
    table = said("ledger", "--model", tied, *PLAIN, *W8A8)
    assert f"the tied weight is kept twice: {both}" in table
    assert "activations  int8 dynamic" in table
    floats = explain("--stack", "cpu")["quantization"]
    assert floats["copies"] == ""  # a float head shares its memory


def test_layers_left_in_float_say_why(explain):
    """By name, in data and in text."""
    words = (*W8A8, "--set", 'options.quant.smoothquant.head="float"')
    report = explain(*words)["quantization"]["report"]
    assert list(report["float_layers"]) == ["lm_head"]
    text = explain(*words, text=True)
    assert f"in float     lm_head: {report['float_layers']['lm_head']}" in text
    assert "1 layer left in float" in text


def test_quantized_keys_and_values_show_their_scales():
    """4 bytes of scale beside each head's row of codes."""
    kv = KVSpec(
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        block_size=4,
        max_model_len=64,
        cache_dtype="int8",
    )
    row = decisions((), QuantReport(scheme="float"), kv, 2000)[2]
    assert (row.choice, row.num_bytes, row.metadata_bytes) == ("int8", 1600, 400)


def test_groups_are_told_with_their_size():
    """And what could not be rehearsed says so."""
    held = (
        Holding("weights", "w", torch.empty(8, 8, dtype=torch.uint8), "linear", "int4"),
        Holding("weights", "w.scales", torch.empty(8), "metadata", "int4"),
    )
    kv = KVSpec(
        num_layers=1, num_heads=1, num_kv_heads=1, head_dim=4, block_size=1, max_model_len=8
    )
    report = QuantReport(scheme="int4", group_size=32, scales="group")
    row = decisions(held, report, kv, 0)[0]
    assert (row.num_bytes, row.metadata_bytes) == (64, 32)
    assert row.note == "int4 in uint8: linear 64 B; a scale a group of 32"
    assert decisions(held, None, kv, 0)[0].choice == "not rehearsed"


def test_options_that_a_stack_sets_are_shown(explain):
    """Every option in data; in text those that the stack sets."""
    words = (*W8A8, "--set", "options.scheduler.chunked.max_chunk=48")
    slot = explain(*words)["slots"]["scheduler"][0]
    assert (slot["options"]["max_chunk"], slot["set"]) == (48, ["max_chunk"])
    text = explain(*words, text=True)
    assert "scheduler    chunked (max_chunk = 48)" in text
    assert "quant        smoothquant (smoothing = False)" in text


def test_joined_ops_and_failed_proofs_are_shown(explain, monkeypatch):
    """A fused op that is left to its parts, and a product that is wrong here: both by name,
    and the next kernel takes over."""
    from dataclasses import replace

    from enginebay.plugins.kernels.reference import ReferenceKernels

    right = ReferenceKernels.offers

    def offers(self):
        for offer in right(self):
            if offer.name == "exact":
                proof = lambda signature: "greatest operands give 73440"  # noqa: E731
                yield replace(offer, name="pairs", prove=proof)
            if offer.op != "rms_norm_quantize":
                yield offer

    monkeypatch.setattr(ReferenceKernels, "offers", offers)
    kernels = {each["op"]: each for each in explain(*W8A8)["kernels"]}
    assert kernels["linear"]["kernel"] == "reference/exact"
    told = "reference/pairs failed its proof: greatest operands give 73440"
    assert told in kernels["linear"]["declined"]
    assert kernels["rms_norm_quantize"]["parts"] == ["rms_norm", "quantize"]
    text = explain(*W8A8, text=True)
    assert f"    declined: {told}" in text
    assert ": reference/torch + reference/torch, row-invariant, joined from rms_norm and" in text


def test_a_proof_runs_before_a_kernel_does(explain, monkeypatch):
    """A kernel that computes wrong is never called by the stack that it declined."""
    from dataclasses import replace

    from enginebay.plugins.kernels.reference import ReferenceKernels

    right = ReferenceKernels.offers

    def never(*given):
        pytest.fail("the wrong kernel was called")

    def offers(self):
        for offer in right(self):
            if offer.call in (quantized_linear.w8a8, quantized_linear.w8a8_logits):
                yield replace(offer, name="no", call=never, prove=lambda signature: "is wrong")
            yield offer

    monkeypatch.setattr(ReferenceKernels, "offers", offers)
    declined = [why for each in explain(*W8A8, "--load")["kernels"] for why in each["declined"]]
    assert "reference/no failed its proof: is wrong" in declined
