"""Model: a configuration becomes a spec, weight names and one readable decoder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..flow import Frozen
from .markers import hookspec

if TYPE_CHECKING:
    import torch

    from ..batch import Batch
    from .format import Checkpoint
    from .kernel import Attention, OpSignature
    from .quant import PackedLinear


class Limits(Frozen, frozen=True, kw_only=True):
    """The bounds of one engine, all from the stack file and the model."""

    max_model_len: int
    """Prompt and generated tokens of one sequence together."""
    max_step_tokens: int
    max_sequences: int
    """Seats: sequences that may hold KV blocks at a time."""
    block_size: int
    num_blocks: int
    vocab_size: int = 0
    num_swap_blocks: int = 0
    """KV blocks that host memory holds for preempted sequences."""


class RopeSpec(Frozen, frozen=True, kw_only=True):
    """Rotary position embedding (Su et al., RoFormer; arXiv 2104.09864)."""

    kind: str = "default"
    """``default``, ``linear``, ``llama3``, ``yarn``, ``dynamic``, ``longrope``."""
    theta: float = 10000.0
    dim: int = 0
    """Rotated dimensions of a head; smaller than ``head_dim`` when partial."""
    factor: float = 1.0
    original_max_positions: int = 0
    parameters: dict[str, Any] = {}
    """What the kind needs besides (``low_freq_factor``, ``beta_fast``, ...)."""


class ModelSpec(Frozen, frozen=True, kw_only=True):
    """Everything about a decoder's shape that the engine needs."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    norm_eps: float = 1e-6
    rope: RopeSpec = RopeSpec()
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    """Positions a query sees at most, itself included."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    dtype: str = "float32"
    """As the checkpoint was trained; what runs is the stack's choice."""


Role = Literal["embedding", "norm", "linear", "bias", "head"]


class Weight(Frozen, frozen=True, kw_only=True):
    """One tensor that a model needs: its name, shape, shard axis and quant role."""

    name: str
    shape: tuple[int, ...]
    role: Role
    shard_axis: int | None = None
    """The axis that tensor parallelism would split; ``None``: replicated."""


class Builder(Protocol):
    """What a model family builds its decoder with."""

    def tensor(self, name: str) -> "torch.Tensor":
        """A tensor of the checkpoint in the stack's compute dtype, on its device."""

    def linear(self, name: str, parts: tuple[str, ...], role: Role = "linear") -> "PackedLinear":
        """Weights ``parts`` stacked by rows, packed by the quantization plugin and laid out
        by the kernel that the table chose for ``PackedLinear.signature(role, dtype)``.

        A part's bias is the tensor named like it with ``.bias`` for ``.weight``,
        when the weight map lists it.
        """

    def keep(self, name: str, tensor: "torch.Tensor") -> "torch.Tensor":
        """Enter a tensor that the decoder made itself in the memory ledger. Every tensor
        that stays between steps and came from nowhere else must be told.

        :return: the tensor
        """

    def op(self, signature: "OpSignature") -> Callable[..., Any]:
        """The chosen kernel for an op; see ``enginebay.hookspecs.kernel``."""

    def program(self, body: Callable[..., None]) -> Callable[..., None]:
        """The decoder's layers, in the form that the kernels run fastest.

        :param body: (hidden [T, H], cos_sin [T, D], attention); changes ``hidden`` in place by
            table ops and views alone
        """


class Decoder(Protocol):
    """A causal decoder with its weights."""

    def forward(self, batch: "Batch", attention: "Attention") -> "torch.Tensor":
        """Compute every row of the batch and write its keys and values.

        :return: float32 logits [len(batch.logit_rows), vocab_size]
        """


class ModelFamily(Protocol):
    """One or several architectures that share a spec mapping and a decoder."""

    @property
    def architectures(self) -> tuple[str, ...]:
        """Names as in ``config.json``'s ``architectures``."""

    def spec(self, config: Mapping[str, Any]) -> ModelSpec:
        """Read a ``config.json``. Raise ``ModelError`` on a value it can't honour."""

    def weights(self, spec: ModelSpec) -> tuple[Weight, ...]:
        """Every tensor the model needs; tied heads are not listed."""

    def build(self, spec: ModelSpec, builder: Builder) -> Decoder: ...


@dataclass(frozen=True)
class ModelContext:
    """What a model family is built with: nothing yet."""


@hookspec(firstresult=True)
def enginebay_model(options: Any, context: ModelContext) -> ModelFamily:  # type: ignore[empty-body]
    """Build a model family. Called once for each family that the stack lists.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: nothing yet
    """


def check_weights(checkpoint: "Checkpoint", weights: tuple[Weight, ...]) -> tuple[str, ...]:
    """Hold a checkpoint against a weight map.

    :return: names that the checkpoint has and the model does not need
    :raises ModelError: a tensor is missing or misshapen; names file and tensor
    """
    from ..errors import ModelError

    for weight in weights:
        info = checkpoint.tensors.get(weight.name)
        if info is None:
            msg = (
                f"{checkpoint.location}: tensor {weight.name!r} is missing; "
                "is the download complete?"
            )
            raise ModelError(msg)
        if tuple(info.shape) != weight.shape:
            msg = (
                f"{info.file}: tensor {weight.name!r} has shape {list(info.shape)}, "
                f"the configuration needs {list(weight.shape)}"
            )
            raise ModelError(msg)
    needed = {weight.name for weight in weights}
    return tuple(name for name in checkpoint.tensors if name not in needed)
