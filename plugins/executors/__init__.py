"""Plugins: executors."""
