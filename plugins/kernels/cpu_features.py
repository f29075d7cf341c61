"""What the compiled code may use: the CPU's features as numba compiles for them."""

from functools import cache

from numba.core.registry import cpu_target


@cache
def features() -> frozenset[str]:
    """LLVM's names, such as ``avx2`` or ``avx512vnni``; a user's ``NUMBA_CPU_FEATURES`` and
    ``NUMBA_CPU_NAME`` are respected, as numba respects them."""
    enabled: str = cpu_target.target_context.codegen()._customize_tm_features()  # noqa: SLF001
    return frozenset(name[1:] for name in enabled.split(",") if name.startswith("+"))


def wide() -> bool:
    """Whether there are 32 vector registers of 16 lanes (AVX-512), not 16 of 8."""
    return "avx512f" in features()
