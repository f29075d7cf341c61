"""Plugins: sinks."""
