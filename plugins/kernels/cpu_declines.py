"""Why a CPU kernel declines an op: the reasons that several kernels share."""

from collections.abc import Callable

from enginebay.hookspecs.kernel import OpSignature

Supports = Callable[[OpSignature], str | None]


def float32_only(signature: OpSignature) -> str | None:
    """Why not, for another compute dtype."""
    if signature.dtype != "float32":
        return f"computes in float32, not {signature.dtype}"
    return None


def scheme_only(scheme: str) -> Supports:
    """Why not, for another dtype or scheme."""

    def supports(signature: OpSignature) -> str | None:
        if signature.scheme not in ((scheme, "") if scheme == "float" else (scheme,)):
            return f"runs the scheme {scheme!r}, not {signature.scheme!r}"
        return float32_only(signature)

    return supports


def without_offsets(scheme: str) -> Supports:
    """Why not, for another dtype or scheme, or for int8 codes with offsets."""

    def supports(signature: OpSignature) -> str | None:
        if signature.scheme == scheme and "offsets" in signature.features:
            return "runs int8 codes without offsets"
        return scheme_only(scheme)(signature)

    return supports


def groups_only(otherwise: Supports, step: int) -> Supports:
    """Why not, for groups of columns that are no multiple of ``step`` or differ between
    weights and rows; else what ``otherwise`` says."""

    def supports(signature: OpSignature) -> str | None:
        sizes = dict(signature.sizes)
        size = sizes.get("group", sizes.get("in", step))
        if sizes.get("group") != sizes.get("input_group"):
            return "wants the same groups of columns for weights and rows"
        if size % step:
            return f"runs groups of a multiple of {step} columns, not of {size}"
        return otherwise(signature)

    return supports
