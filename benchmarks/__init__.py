"""Measurements. Each prints its setup beside its figures, and takes medians of rounds."""
