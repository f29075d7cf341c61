"""The OpenAI-compatible HTTP transport."""
