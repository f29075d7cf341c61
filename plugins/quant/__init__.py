"""Plugins: quant."""
