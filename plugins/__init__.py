"""Everything that ships with Enginebay, found by entry point as any other plugin is."""
