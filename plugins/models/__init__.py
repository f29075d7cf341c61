"""Plugins: models."""
