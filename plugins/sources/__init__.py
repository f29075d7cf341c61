"""Plugins: sources."""
