"""Make, list and revoke the API keys of a server."""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StackError
from ..keyfile import line_of, new_key, parse_keys, read_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWNER_ONLY = 0o600
WITHOUT_OTHERS = 0o660


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="make a key and print it, once")
    add.add_argument("--tenant", required=True, help="whose requests it signs")
    add.add_argument("--label", default="", help="what it is for")
    add.add_argument("--admin", action="store_true", help="may see every tenant's requests")
    listed = actions.add_parser("list", help="show the keys of a file; secrets are not in it")
    revoke = actions.add_parser("revoke", help="take a key out")
    revoke.add_argument("id", help="as `keys list` shows it")
    for action in (add, listed, revoke):
        action.add_argument("--file", required=True, type=_path, help="the key file")


def _path(text: str) -> Path:
    return Path(text).expanduser().resolve()  # what a link points to is replaced, not the link


def run(options: argparse.Namespace) -> int:
    """Do one of the three. A running server notices within a second."""
    actions = {"add": _add, "list": _list, "revoke": _revoke}
    actions[options.action](options)
    return 0


def _add(options: argparse.Namespace) -> None:
    key, shown = new_key(options.tenant, options.label, admin=options.admin)
    with _locked(options.file):
        _rewrite(options.file, lambda lines: [*lines, line_of(key)])
    print(shown)
    print(f"key {key.id} of {key.tenant}: it can't be shown again", file=sys.stderr)


def _list(options: argparse.Namespace) -> None:
    for key in read_keys(options.file).values():
        role = "admin" if key.admin else "-"
        print(f"{key.id}  {key.tenant:20} {role:6} {key.created:26} {key.label}".rstrip())


def _revoke(options: argparse.Namespace) -> None:
    known = read_keys(options.file)
    if options.id not in known:
        raise StackError(f"{options.file} has no key {options.id!r}; `keys list` shows them")
    with _locked(options.file):
        _rewrite(
            options.file,
            lambda lines: [
                line for line in lines if options.id not in parse_keys(options.file, line)
            ],
        )
    print(f"key {options.id} of {known[options.id].tenant} is revoked", file=sys.stderr)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, by a lock on the folder: the file itself is replaced.

    :raises StackError: the folder does not exist
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise StackError(f"{path.parent} can't be opened: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _rewrite(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Replace the file in one move, so that no reader sees half of it.

    A new file is for its owner alone; one that exists keeps owner and group.

    :raises StackError: what is there is no key file, or it can't be written
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        text = ""
    parse_keys(path, text)
    lines = [line for line in text.split("\n") if line.strip()]
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if path.exists():
                found = path.stat()
                os.fchown(descriptor, found.st_uid, found.st_gid)
                os.fchmod(descriptor, found.st_mode & WITHOUT_OTHERS)
            file.write("".join(f"{line}\n" for line in change(lines)))
            file.flush()
            os.fsync(descriptor)
        fresh.replace(path)
    except OSError as error:
        raise StackError(f"{path} can't be written: {error.strerror}") from error
    finally:
        fresh.unlink(missing_ok=True)
