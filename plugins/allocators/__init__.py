"""Plugins: allocators."""
