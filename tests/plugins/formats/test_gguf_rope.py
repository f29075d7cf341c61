"""Rotary scaling of GGUF files becomes the config.json spelling, or stops the start."""

import math

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from enginebay.errors import ModelError
from enginebay.plugins.formats.gguf_config import Metadata
from enginebay.plugins.formats.gguf_rope import llama3_divisors, rope_entries


def entries(head_dim=64, factors=None, **rope):
    table = {f"llama.rope.{key.replace('__', '.')}": value for key, value in rope.items()}
    metadata = Metadata("m.gguf", {"general.architecture": "llama", **table})
    return rope_entries(metadata, head_dim, factors)


@pytest.mark.parametrize(
    ("stored", "scaling"),
    [
        ({}, None),
        ({"scaling__type": "none", "scaling__factor": 4.0}, None),
        ({"scaling__type": "linear", "scaling__factor": 1.0}, None),
        (
            {"scaling__type": "linear", "scaling__factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "scaling__type": "yarn",
                "scaling__factor": 4.0,
                "scaling__original_context_length": 32768,
            },
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            },
        ),
        (
            {
                "scaling__type": "yarn",
                "scaling__factor": 8.0,
                "scaling__attn_factor": 0.5,
                "scaling__yarn_beta_fast": 16.0,
                "scaling__yarn_beta_slow": 2.0,
            },
            {
                "rope_type": "yarn",
                "factor": 8.0,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 0.5 * (0.1 * math.log(8.0) + 1.0),
            },
        ),
    ],
)
def test_scaling_is_translated(stored, scaling):
    """Case 63: each form that GGUF metadata can express."""
    assert entries(**stored)["rope_scaling"] == scaling


@pytest.mark.parametrize(
    "stored",
    [
        {"scaling__type": "longrope", "scaling__factor": 4.0},
        {"scaling__type": "foo"},
        {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_log_multiplier": 0.1},
        {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__yarn_ext_factor": 0.5},
        {"scaling__type": "yarn"},
    ],
)
def test_other_scaling_stops_the_start(stored):
    """Case 63: never silently unscaled."""
    with pytest.raises(ModelError, match=r"m\.gguf"):
        entries(**stored)


def test_partial_rotation_and_base():
    """The rotated share of a head, and theta in the digits that were meant."""
    result = entries(head_dim=64, dimension_count=32, freq_base=float(np.float32(1e6 / 3)))
    assert result["partial_rotary_factor"] == 0.5
    assert result["rope_theta"] == pytest.approx(333333.34)


@pytest.mark.parametrize(
    ("theta", "dim", "factor", "low", "high", "original"),
    [
        (500000.0, 128, 8.0, 1.0, 4.0, 8192),
        (500000.0, 64, 32.0, 1.0, 4.0, 8192),
        (10000.0, 128, 4.0, 1.0, 8.0, 4096),
        (10000.0, 64, 16.0, 2.0, 8.0, 2048),
    ],
)
def test_llama3_parameters_are_recovered(theta, dim, factor, low, high, original):
    """The recovered scaling gives transformers the frequencies of the original one."""
    table = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    before = frequencies(theta, dim, table)
    divisors = (frequencies(theta, dim, None) / before).float()
    found = entries(dim, factors=divisors.tolist(), freq_base=theta)["rope_scaling"]
    assert torch.allclose(frequencies(theta, dim, found), before, rtol=1e-4, atol=0.0)
    if low == 1.0:
        assert (found["rope_type"], found["factor"]) == ("llama3", factor)
        assert found["high_freq_factor"] == pytest.approx(high, abs=1e-2)
        assert found["original_max_position_embeddings"] == pytest.approx(original, rel=1e-3)


def frequencies(theta, dim, scaling):
    config = transformers.LlamaConfig(
        hidden_size=4 * dim, num_attention_heads=4, rope_theta=theta, rope_scaling=scaling
    )
    if scaling is None:
        return theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].double()


def test_llama3_divisors_of_a_small_head():
    """Where one frequency lies between the plateaus, Llama 3's own values are tried."""
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    divisors = llama3_divisors(500000.0, 8, scaling)
    assert entries(8, factors=list(divisors), freq_base=500000.0)["rope_scaling"] == {
        "rope_type": "llama3",
        **scaling,
    }


@pytest.mark.parametrize(
    "factors",
    [
        [1.0, 1.0, 1.0, 4.2],
        [1.0, 0.5, 0.5, 0.5],
        [1.0, 3.0, 2.0, 8.0],
        [8.0] * 3,
        [1.0, 2.0, 0.5, 0.25],
    ],
)
def test_other_divisors_stop_the_start(factors):
    """A table that Llama 3's form can't express is refused."""
    with pytest.raises(ModelError, match="divisors"):
        entries(8, factors=factors)


def test_divisors_beside_a_scaling_stop_the_start():
    """Two scalings at once can't be honoured."""
    with pytest.raises(ModelError, match="beside"):
        entries(8, factors=[1.0, 1.0, 2.0, 4.0], scaling__type="linear", scaling__factor=2.0)
