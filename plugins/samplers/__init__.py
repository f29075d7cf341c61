"""Plugins: samplers."""
