"""Plugins: formats."""
