"""Plugins: kernels."""
