"""Plugins: stacks."""
