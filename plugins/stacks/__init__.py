"""Ready stacks, as TOML files."""
