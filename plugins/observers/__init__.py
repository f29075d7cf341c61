"""Plugins: observers."""
