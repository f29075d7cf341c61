"""Plugins: transports."""
