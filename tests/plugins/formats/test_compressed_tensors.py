"""compressed-tensors checkpoints: every form against a formula, everything else refused."""

import json
from typing import ClassVar

import pytest
import torch

from enginebay.hookspecs.format import Quantized, StoredForm
from enginebay.hookspecs.model import ModelContext
from enginebay.plugins.models import llama
from enginebay.plugins.quant.none import Float
from enginebay.plugins.quant.smoothquant import Options, SmoothQuant

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


def test_rows_that_fill_no_word(quantized, pack):
    """Codes and zero points that end within a word; the stored shape tells where."""
    size, weights = 20, group(num_bits=4, symmetric=False)
    model = quantized(
        entry(weights, layout="pack-quantized"),
        packed(pack, 4, symmetric=False),
        hidden_size=4 * size,
        intermediate_size=84,
        head_dim=size,
        vocab_size=300,
    )
    checkpoint = model.open()
    for name, value in model.values.items():
        assert torch.equal(checkpoint.load(name), value), name
    assert checkpoint.stored("model.layers.0.mlp.down_proj.weight").codes.shape == (80, 84)


def test_columns_out_of_order(quantized, pack):
    """Case 72: act-order's indices give each column its group; codes are not offered."""
    order = torch.arange(64).flip(0).div(32, rounding_mode="floor")

    def convert(module, weight):
        if weight.shape[1] != 64 or module in (EMBEDDING, HEAD):
            return None
        codes, scales, _, _ = quantize(weight, 4, 32)
        parts = {
            "weight_packed": pack(codes + 8, 4),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
            "weight_g_idx": order.int(),
        }
        return parts, codes.float() * scales.float()[:, order]

    weights = group(num_bits=4, strategy="group", group_size=32, actorder="group")
    ignore = [HEAD, "re:.*down_proj"]
    model = quantized(entry(weights, layout="pack-quantized", ignore=ignore), convert)
    checkpoint = model.open()
    assert checkpoint.form(f"{Q}.weight") is None
    assert torch.equal(checkpoint.load(f"{Q}.weight"), model.values[f"{Q}.weight"])
    assert torch.equal(*model.logits())


def test_indices_in_order_or_never_filled_in_keep_codes(quantized, pack, rewrite):
    """A weight_g_idx that says nothing new costs no codes."""
    weights = group(num_bits=4, strategy="group", group_size=32)
    model = quantized(entry(weights, layout="pack-quantized"), packed(pack, 4, 32))
    for order in (torch.arange(64) // 32, torch.full((64,), -1)):
        rewrite(model.folder, {f"{Q}.weight_g_idx": order.int()})
        stored = model.open().stored(f"{Q}.weight")
        assert torch.equal(stored.dequantized(), model.values[f"{Q}.weight"])


@pytest.mark.parametrize("ignored", [[HEAD, Q], [HEAD, "re:.*0.self_attn.q"]])
def test_ignored_layers_stay_plain(quantized, ignored):
    """Case 72: by name and by pattern; a fused layer then has parts of two forms."""
    model = quantized(
        entry(group(inputs=DYNAMIC), ignore=ignored), plain(skip=(EMBEDDING, HEAD, Q))
    )
    checkpoint = model.open()
    assert checkpoint.form(f"{Q}.weight") is None
    assert checkpoint.form(f"{K}.weight") == StoredForm(bits=8, group_size=64, inputs="int8")
    assert torch.equal(*model.logits())


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
@pytest.mark.parametrize("static", [False, True])
def test_case_72_int8_codes_under_int8_rows(quantized, strategy, static):
    """Case 72: the scheme w8a8 takes them; logits point where those of the values do."""

    def convert(module, weight):
        if module in (EMBEDDING, HEAD):
            return None
        flat = weight if strategy == "channel" else weight.reshape(1, -1)
        codes, scales, _, values = quantize(flat, 8, flat.shape[1])
        parts = {"weight": codes.view_as(weight).to(torch.int8), "weight_scale": scales}
        # The greatest of a fused layer holds; with the others most values would be cut off.
        steps = {"q_proj": 0.04, "gate_proj": 0.04, "o_proj": 0.04, "down_proj": 0.12}
        scale = steps.get(module.rpartition(".")[2], 0.005)
        parts |= {"input_scale": torch.tensor([scale])} if static else {}
        return parts, values.view_as(weight)

    inputs = STATIC if static else DYNAMIC
    model = quantized(entry(group(strategy=strategy, inputs=inputs)), convert)
    checkpoint, family = model.open(), llama.enginebay_model(llama.Options(), ModelContext())
    quantizer = SmoothQuant(Options())
    assert quantizer.prepare(family.spec(checkpoint.config), family, checkpoint) is checkpoint
    ours, floats = model.logits(quantizer)
    assert set(quantizer.report().float_layers) == {"lm_head"}
    assert quantizer.activations == ("int8 static" if static else "int8 dynamic")
    assert float(torch.cosine_similarity(ours, floats).min()) > 0.99


def test_only_parts_of_one_form_are_kept_as_codes(quantized):
    """Case 72: codes of equal form are joined; else the whole layer is dequantized."""

    class Keeps(Float):
        kept: ClassVar[dict] = {}

        def pack_stored(self, name, role, stored, bias):
            self.kept[name] = stored
            return self.pack(name, role, stored.dequantized(), bias)

    groups = (group(), group([Q], strategy="group", group_size=16))

    def convert(module, weight):
        return plain(size=16 if module == Q else None)(module, weight)

    model = quantized(entry(*groups), convert, num_hidden_layers=1)
    ours, floats = model.logits(Keeps())
    assert torch.equal(ours, floats)
    shapes = {tuple(stored.codes.shape) for stored in Keeps.kept.values()}
    assert shapes == {(64, 64), (256, 64), (64, 128)}
    assert {stored.form.group_size for stored in Keeps.kept.values()} == {64, 128}


def test_groups_name_their_layers(quantized):
    """A name comes before a pattern, a pattern before the class, wherever they stand."""
    groups = (
        group(),
        group(["re:.*self_attn.*"], strategy="group", group_size=16),
        group([Q], num_bits=4),
    )
    sizes = {Q: (4, 64), K: (8, 16), GATE: (8, 64)}

    def convert(module, weight):
        if module in (EMBEDDING, HEAD):
            return None
        bits, size = sizes.get(module, (8, 16 if "self_attn" in module else weight.shape[1]))
        return plain(bits, size)(module, weight)

    model = quantized(entry(*groups), convert)
    checkpoint = model.open()
    forms = {module: checkpoint.form(f"{module}.weight") for module in sizes}
    assert {module: (form.bits, form.group_size) for module, form in forms.items()} == sizes
    assert torch.equal(*model.logits())


def test_older_names(quantized):
    """Case 72: compression_config, group_size for the strategy, zero points of 0."""
    weights = group(strategy=None, group_size=-1) | {"output_activations": None}
    zeros = {"weight_zero_point": torch.zeros(1, dtype=torch.int8)}

    def convert(module, weight):
        made = plain()(module, weight)
        if made is not None:
            made[0]["weight_zero_point"] = zeros["weight_zero_point"].repeat(len(weight), 1)
        return made

    model = quantized(entry(weights, sparsity_config={"format": "dense"}), convert)
    text = json.loads((model.folder / "config.json").read_text())
    text["compression_config"] = text.pop("quantization_config")
    (model.folder / "config.json").write_text(json.dumps(text))
    checkpoint = model.open()
    assert checkpoint.form(f"{Q}.weight") == StoredForm(bits=8, group_size=64)
    assert torch.equal(checkpoint.load(f"{Q}.weight"), model.values[f"{Q}.weight"])
