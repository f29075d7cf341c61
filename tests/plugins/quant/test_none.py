"""The scheme ``float``: weights pass as they are."""

import torch

from enginebay.hookspecs.quant import QuantContext
from enginebay.plugins.quant import none


def test_weights_are_not_copied():
    """The layer holds the very tensors it was given, so that tied ones stay shared."""
    quantizer = none.enginebay_quant(none.Options(), QuantContext("float32", "cpu"))
    weight, bias = torch.ones(3, 5), torch.zeros(3)
    packed = quantizer.pack("layer", "linear", weight, bias)
    assert packed.tensors["weight"] is weight
    assert packed.bias is bias
    assert (packed.scheme, packed.in_features, packed.out_features) == ("float", 5, 3)


def test_report_counts_a_shared_tensor_once():
    """Two layers on one tensor take its bytes once; nothing is metadata."""
    quantizer = none.enginebay_quant(none.Options(), QuantContext("float32", "cpu"))
    shared, own = torch.ones(3, 5), torch.ones(2, 5)
    for number, weight in enumerate((shared, shared, own)):
        quantizer.pack(f"layer{number}", "linear", weight, None)
    report = quantizer.report()
    assert (report.scheme, report.weight_bytes, report.metadata_bytes) == ("float", 100, 0)
    assert quantizer.activations == "float"


def test_report_counts_weights_that_a_kernel_dropped():
    """A freed tensor's address comes back; the next layer's bytes count all the same."""
    quantizer = none.enginebay_quant(none.Options(), QuantContext("float32", "cpu"))
    for number in range(10):
        quantizer.pack(f"layer{number}", "linear", torch.ones(3, 5), None)
    assert quantizer.report().weight_bytes == 10 * 60
