"""The conformance suite: plain functions that hold a plugin to its contract."""
