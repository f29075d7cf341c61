"""Plugins: detokenizers."""
