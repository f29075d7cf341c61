"""compressed-tensors checkpoints: every form against a formula, everything else refused."""

import pytest
import torch

from enginebay.hookspecs.format import Quantized, StoredForm

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
Q, K, GATE = (f"model.layers.0.{name}_proj" for name in ("self_attn.q", "self_attn.k", "mlp.gate"))
DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
STATIC = DYNAMIC | {"strategy": "tensor", "dynamic": False}


def group(targets=("Linear",), inputs=None, **weights):
    usual = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    return {"targets": list(targets), "weights": usual | weights, "input_activations": inputs}


def entry(*groups, layout="int-quantized", ignore=(HEAD,), **entries):
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {f"group_{number}": each for number, each in enumerate(groups)},
        "ignore": list(ignore),
        "kv_cache_scheme": None,
        "global_compression_ratio": 1.5,
        **entries,
    }


def quantize(weight, bits, size, symmetric=True):
    """Codes [N, K] (signed, int64), scales and zero points [N, groups], and the values."""
    grouped = weight.double().view(len(weight), -1, size)
    top = 2 ** (bits - 1)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scales = grouped.abs().amax(-1) / (top - 0.5) if symmetric else (high - low) / (2 * top - 1)
    scales = scales.bfloat16()
    zeros = torch.zeros_like(low) if symmetric else (-top - low / scales.double()).round()
    zeros = zeros.clamp(-top, top - 1)
    codes = (grouped / scales.double().unsqueeze(-1)).round() + zeros.unsqueeze(-1)
    codes = codes.clamp(-top, top - 1)
    values = (codes - zeros.unsqueeze(-1)) * scales.double().unsqueeze(-1)
    return codes.view_as(weight).long(), scales, zeros.long(), values.view_as(weight).float()


def plain(bits=8, size=None, symmetric=True, skip=(EMBEDDING, HEAD), **more):
    """Convert to int8 tensors; ``more``: further parts of every weight."""

    def convert(module, weight):
        if module in skip:
            return None
        made = quantize(weight, bits, size or weight.shape[1], symmetric)
        codes, scales, zeros, values = made
        parts = {"weight": codes.to(torch.int8), "weight_scale": scales, **more}
        if not symmetric:
            parts["weight_zero_point"] = zeros.to(torch.int8)
        return {end: part.clone() for end, part in parts.items()}, values

    return convert


def packed(pack, bits, size=None, symmetric=True, skip=(EMBEDDING, HEAD)):
    """Convert to packed words."""

    def convert(module, weight):
        if module in skip:
            return None
        made = quantize(weight, bits, size or weight.shape[1], symmetric)
        codes, scales, zeros, values = made
        top = 2 ** (bits - 1)
        parts = {
            "weight_packed": pack(codes + top, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            parts["weight_zero_point"] = pack((zeros + top).T, bits).T
        return parts, values

    return convert


def check(model, **form):
    """Values, logits and the form of one weight."""
    checkpoint = model.open()
    assert isinstance(checkpoint, Quantized)
    assert set(checkpoint.tensors) == set(model.values)
    for name, value in model.values.items():
        info = checkpoint.tensors[name]
        assert info.shape == tuple(value.shape)
        assert torch.equal(checkpoint.load(name), value), name
    stored = checkpoint.stored(f"{Q}.weight")
    assert checkpoint.form(f"{Q}.weight") == stored.form == StoredForm(**form)
    assert torch.equal(stored.dequantized(), model.values[f"{Q}.weight"])
    assert checkpoint.form(f"{EMBEDDING}.weight") is None
    ours, floats = model.logits()
    assert torch.equal(ours, floats)
    return checkpoint, stored


def test_int8_per_channel_with_dynamic_inputs(quantized):
    """Case 72: W8A8 as smoothing tools write it; the ignored head stays plain."""
    model = quantized(entry(group(inputs=DYNAMIC)), plain())
    checkpoint, stored = check(model, bits=8, group_size=64, inputs="int8")
    info = checkpoint.tensors[f"{Q}.weight"]
    assert (info.dtype, info.num_bytes, info.metadata_bytes) == ("int8", 64 * 64 + 128, 128)
    assert (stored.codes.dtype, stored.scales.shape) == (torch.int8, (64, 1))
    assert (stored.offsets, stored.input_scale) == (None, None)


def test_a_quantized_head(quantized):
    """The head of an untied model is a weight like any other."""
    model = quantized(entry(group(inputs=DYNAMIC), ignore=[]), plain(skip=(EMBEDDING,)))
    checkpoint, _ = check(model, bits=8, group_size=64, inputs="int8")
    assert checkpoint.stored("lm_head.weight").codes.shape == (300, 64)


def test_static_inputs_keep_their_scale(quantized):
    """Case 72: one activation scale a tensor, stored as a number or as a list of one."""
    model = quantized(entry(group(inputs=STATIC)), plain(input_scale=torch.tensor([0.25])))
    _, stored = check(model, bits=8, group_size=64, inputs="int8", static=True)
    assert torch.equal(stored.input_scale, torch.tensor([0.25]))


def test_one_scale_a_tensor(quantized):
    """Case 72: it serves every row."""

    def convert(module, weight):
        if module in (EMBEDDING, HEAD):
            return None
        codes, scales, _, values = quantize(weight.reshape(1, -1), 8, weight.numel())
        parts = {"weight": codes.view_as(weight).to(torch.int8), "weight_scale": scales.view(1)}
        return parts, values.view_as(weight)

    model = quantized(entry(group(strategy="tensor", inputs=DYNAMIC)), convert)
    _, stored = check(model, bits=8, group_size=64, inputs="int8")
    assert stored.scales.shape == (64, 1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_groups_of_integers(quantized, bits, symmetric):
    """Case 72: groups of 32, with and without zero points, one code an int8."""
    weights = group(num_bits=bits, strategy="group", group_size=32, symmetric=symmetric)
    model = quantized(
        entry(weights, layout="naive-quantized"), plain(bits, 32, symmetric=symmetric)
    )
    _, stored = check(model, bits=bits, group_size=32, offsets=not symmetric)
    assert (int(stored.codes.min()) >= 0) is (bits == 4 and not symmetric)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("symmetric", "size"), [(True, 32), (False, 16), (True, -1), (False, -1)])
def test_packed_words(quantized, pack, bits, symmetric, size):
    """Case 72: words of 4- and 8-bit codes; group size -1 is one scale a row."""
    weights = group(num_bits=bits, strategy=None, group_size=size, symmetric=symmetric)
    width = None if size == -1 else size
    convert = packed(pack, bits, width, symmetric)
    model = quantized(entry(weights, layout="pack-quantized"), convert)
    _, stored = check(model, bits=bits, group_size=width or 64, offsets=not symmetric)
    assert stored.codes.shape == (64, 64)
