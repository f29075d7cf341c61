"""Plugins: admission."""
