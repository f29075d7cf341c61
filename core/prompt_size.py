"""How large a prompt is before anybody has tokenized it."""

from .flow import Prompt, TextPrompt, TokenPrompt


def prompt_chars(prompt: Prompt) -> int:
    """Characters of a prompt's text; 4 for each token given as an id."""
    if isinstance(prompt, TokenPrompt):
        return 4 * len(prompt.token_ids)
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    return sum(_text_length(message.get("content")) for message in prompt.messages)


def _text_length(content: object) -> int:
    """Of a message's content: a string, or a list of parts."""
    if isinstance(content, str):
        return len(content)
    parts = content if isinstance(content, list | tuple) else ()
    return sum(len(str(part.get("text", ""))) for part in parts if isinstance(part, dict))
