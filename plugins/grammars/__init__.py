"""Plugins: grammars."""
