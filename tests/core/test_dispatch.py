"""The kernel table: order, reasons, proofs, and fused ops made of their parts."""

import pytest
import torch

from enginebay.dispatch import DISPROVED, KernelTable
from enginebay.errors import PluginError
from enginebay.hookspecs.kernel import Offer, OpSignature

LINEAR = OpSignature(op="linear", scheme="w8a8", sizes=(("in", 8), ("out", 4)))
FUSED = OpSignature(op="rms_norm_quantize", scheme="int8", sizes=(("size", 8),))


class Plugin:
    """A kernel plugin that offers what it is given."""

    def __init__(self, *offers):
        self.given = offers

    def offers(self):
        return self.given


def offer(name, op="linear", row_invariant=True, **more):
    """An offer whose callable answers its own name, and what it was given."""
    return Offer(op, name, lambda *given: (name, *given), row_invariant, **more)


def table(*offers, **options):
    return KernelTable([("mine", Plugin(*offers))], **options)


def test_the_first_that_takes_it_is_chosen_and_the_others_say_why():
    """Order of plugins, then order of offers; every reason is kept by name."""
    no = offer("no", supports=lambda signature: f"has no {signature.scheme}")
    kernels = KernelTable([("a", Plugin(no)), ("b", Plugin(offer("yes"), offer("later")))])
    choice = kernels.choose(LINEAR)
    assert (choice.kernel, choice.declined) == ("b/yes", (("a/no", "has no w8a8"),))
    assert kernels.resolve(LINEAR)(1) == ("yes", 1)


def test_nobody_at_all_is_told_with_every_reason():
    """The message names op, scheme, sizes and who declined."""
    no = offer("no", supports=lambda signature: "does not multiply")
    with pytest.raises(PluginError, match=r"'linear' of scheme 'w8a8' .*'in': 8.*mine/no does not"):
        table(no).resolve(LINEAR)
    with pytest.raises(PluginError, match="nobody offers it"):
        table().resolve(LINEAR)


def test_a_kernel_that_computes_wrong_here_declines_and_the_next_takes_over():
    """By name, with what came out; the table goes on to the next offer."""
    wrong = offer("pairs", prove=lambda signature: "73440 instead of 9290304")
    choice = table(wrong, offer("exact", prove=lambda signature: None)).choose(LINEAR)
    assert choice.kernel == "mine/exact"
    assert choice.declined == (("mine/pairs", f"{DISPROVED}: 73440 instead of 9290304"),)


def test_a_proof_that_breaks_is_none():
    """A crash in ``prove`` declines as well: it says nothing good about the kernel."""

    def crash(signature):
        raise RuntimeError("could not create a primitive")

    choice = table(offer("new", prove=crash), offer("old")).choose(LINEAR)
    assert choice.kernel == "mine/old"
    assert "its proof raised RuntimeError: could not create" in choice.declined[0][1]


def test_a_proof_is_asked_once_a_signature_and_only_where_it_may_matter():
    """After ``supports`` and after row invariance; never twice for equal signatures."""
    asked = []

    def prove(signature):
        asked.append(dict(signature.sizes)["in"])

    odd = lambda signature: None if dict(signature.sizes)["in"] % 2 == 0 else "is odd"  # noqa: E731
    kernels = table(offer("it", supports=odd, prove=prove), offer("other"))
    for size in (8, 8, 7, 8, 6):
        kernels.choose(OpSignature(op="linear", sizes=(("in", size),)))
    assert asked == [8, 6]
    strict = table(
        offer("it", row_invariant=False, prove=prove), offer("other"), require_row_invariant=True
    )
    assert strict.choose(LINEAR).kernel == "mine/other"
    assert asked == [8, 6]


def test_a_fused_op_that_nobody_offers_is_joined_from_its_parts():
    """One after the other, the last two arguments to the second; both parts are named."""
    norm = Offer("rms_norm", "plain", lambda x, weight, eps: x * weight + eps, row_invariant=True)
    rounded = lambda x, scale, group: (x / scale).round() + group  # noqa: E731
    rows = Offer("quantize", "round", rounded, row_invariant=True)
    no = offer("fast", op="rms_norm_quantize", supports=lambda signature: "needs AVX-512")
    kernels = KernelTable([("a", Plugin(norm, no)), ("b", Plugin(rows))])
    choice = kernels.choose(FUSED)
    assert [part.signature.op for part in choice.parts] == ["rms_norm", "quantize"]
    assert [part.signature.scheme for part in choice.parts] == ["", "int8"]
    assert (choice.kernel, choice.offer.row_invariant) == ("a/plain + b/round", True)
    assert choice.declined == (("a/fast", "needs AVX-512"),)
    assert choice.offer.call(torch.tensor(6.0), 2.0, 0.5, 5.0, 3) == 5  # 12.5 / 5, half to even


def test_a_join_is_as_row_invariant_as_its_parts():
    """And one that is offered whole is taken whole."""
    parts = (offer("n", op="rms_norm", row_invariant=False), offer("q", op="quantize"))
    assert not table(*parts).choose(FUSED).offer.row_invariant
    whole = table(*parts, offer("whole", op="rms_norm_quantize")).choose(FUSED)
    assert (whole.kernel, whole.parts) == ("mine/whole", ())


def test_a_fused_op_without_parts_names_the_part():
    """What is missing is the part, and whose part it is."""
    with pytest.raises(PluginError, match=r"'rms_norm_quantize' .*nor its parts: .*'quantize' of"):
        table(offer("n", op="rms_norm")).choose(FUSED)


def test_a_whole_table_is_row_invariant_when_every_choice_is():
    """The promise is of what was chosen, not of what was offered."""
    kernels = table(offer("n", op="rms_norm"), offer("mm", row_invariant=False))
    kernels.resolve(OpSignature(op="rms_norm"))
    assert kernels.row_invariant
    kernels.resolve(LINEAR)
    assert not kernels.row_invariant
