"""Plugins: schedulers."""
