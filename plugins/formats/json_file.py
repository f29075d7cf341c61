"""A model folder's JSON files."""

import json
from pathlib import Path
from typing import Any

from .damage import damaged


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a file that does not exist counts as an empty one.

    :raises ModelError: the file is not a JSON object; it names the file
    """
    if not path.is_file():
        return {}
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"not a JSON file ({error})") from error
    if not isinstance(table, dict):
        raise damaged(path, f"holds a {type(table).__name__} where an object is expected")
    return table
