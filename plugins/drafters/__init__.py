"""Plugins: drafters."""
