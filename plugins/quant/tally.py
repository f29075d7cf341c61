"""What a quantizer has packed: layers of the right form, and their bytes."""

import weakref

import torch

from enginebay.hookspecs.quant import PackedLinear


class FloatBytes:
    """Bytes of float tensors, each counted once however many layers share it.

    A tensor is known again while it lives: a kernel may lay a layer's weight out anew and
    drop the original, whose address then comes back with other weights.
    """

    def __init__(self) -> None:
        self.total = 0
        self._seen: dict[int, weakref.ref[torch.Tensor]] = {}

    def add(self, weight: torch.Tensor) -> None:
        """Count a layer's weight."""
        known = self._seen.get(id(weight))
        if known is None or known() is not weight:
            self._seen[id(weight)] = weakref.ref(weight)
            self.total += weight.nbytes


class Tally:
    """Makes packed layers and counts them; a shared float tensor counts once."""

    def __init__(self) -> None:
        self.metadata_bytes = 0
        self.float_layers: dict[str, str] = {}
        self._codes = 0
        self._floats = FloatBytes()

    @property
    def weight_bytes(self) -> int:
        """Codes, and float weights of layers that were left alone."""
        return self._codes + self._floats.total

    def int8_layer(
        self,
        name: str,
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        input_scale: torch.Tensor | None = None,
    ) -> PackedLinear:
        """A layer of the scheme ``w8a8``.

        :param codes: int8 [N, K]
        :param scales: float32 [N]
        :param input_scale: float32 [1] of static activations; ``None``: a scale a token
        """
        extra = 0 if input_scale is None else input_scale.nbytes
        self._codes += codes.nbytes
        self.metadata_bytes += scales.nbytes + extra
        return PackedLinear(
            name=name,
            scheme="w8a8",
            in_features=codes.shape[1],
            out_features=codes.shape[0],
            tensors={"weight": codes, "scales": scales},
            bias=bias,
            inputs="int8",
            input_scale=input_scale,
        )

    def float_layer(
        self, name: str, weight: torch.Tensor, bias: torch.Tensor | None, reason: str
    ) -> PackedLinear:
        """A layer of the scheme ``float``: the caller's own tensor, not a copy."""
        self._floats.add(weight)
        self.float_layers[name] = reason
        return PackedLinear(
            name=name,
            scheme="float",
            in_features=weight.shape[1],
            out_features=weight.shape[0],
            tensors={"weight": weight},
            bias=bias,
        )
