"""Plugins: frontends."""
