"""The key file: which API keys there are, and whose. JSON Lines, one key a line.

A key is ``eb-ID-SECRET``: the id finds its line, the secret proves it. The secret is 256
random bits, so one HMAC-SHA256 under the key's own salt is the right hash of it: slow
hashes guard passwords that can be guessed, and this can't be (RFC 2104, RFC 4086). The
file holds no secret, and a key is shown once, when it is made.
"""

import hmac
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec

from .errors import StackError
from .flow import Frozen

ID_BYTES: Final = 6
SECRET_BYTES: Final = 32
SALT_BYTES: Final = 16
SHAPE: Final = re.compile(rb"eb-([0-9a-f]{12})-([A-Za-z0-9_-]{43})")

TENANT: Final = r"^[A-Za-z0-9_.:@/+-]{1,64}\Z"
"""Tenants stand in logs, metrics and file names of others: letters that harm none."""
HEX: Final = r"^([0-9a-f]{2}){16,64}\Z"


class Key(Frozen, frozen=True, kw_only=True):
    """One line: everything of a key but its secret."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}\Z")]
    tenant: Annotated[str, msgspec.Meta(pattern=TENANT)]
    salt: Annotated[str, msgspec.Meta(pattern=HEX)]
    hash: Annotated[str, msgspec.Meta(pattern=HEX)]
    """HMAC-SHA256 of the secret under the salt, in hexadecimal."""
    label: Annotated[str, msgspec.Meta(max_length=200)] = ""
    created: str = ""
    """RFC 3339, UTC."""
    admin: bool = False
    """Sees every tenant's requests and memory."""

    def matches(self, secret: bytes) -> bool:
        """Whether this is the key's secret; takes the same time for every answer."""
        return hmac.compare_digest(_hashed(secret, self.salt), self.hash)


def new_key(tenant: str, label: str = "", *, admin: bool = False) -> tuple[Key, str]:
    """Draw a key. :return: its line, and the key itself, which is stored nowhere

    :raises StackError: a tenant or label that a key file does not take
    """
    if re.match(TENANT, tenant) is None:
        msg = f"tenant {tenant!r}: give 1 to 64 letters, digits or any of _ . : @ / + -"
        raise StackError(msg)
    if len(label) > 200 or not label.isprintable():
        raise StackError("label: give at most 200 printable characters")
    secret = secrets.token_urlsafe(SECRET_BYTES)
    salt = secrets.token_hex(SALT_BYTES)
    key = Key(
        id=secrets.token_hex(ID_BYTES),
        tenant=tenant,
        salt=salt,
        hash=_hashed(secret.encode(), salt),
        label=label,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        admin=admin,
    )
    return key, f"eb-{key.id}-{secret}"


def split_key(presented: bytes) -> tuple[str, bytes] | None:
    """(id, secret) of what a caller sent; ``None`` when no key looks like that."""
    found = SHAPE.fullmatch(presented)
    return None if found is None else (found[1].decode(), found[2])


def line_of(key: Key) -> str:
    """A key as it stands in the file."""
    return msgspec.json.encode(key).decode()


def parse_keys(path: Path, text: str) -> dict[str, Key]:
    """Every key of a file by id; blank lines are skipped.

    :raises StackError: names file, line and problem
    """
    keys: dict[str, Key] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            key = msgspec.json.decode(line, type=Key)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StackError(f"{path}, line {number}: {error}; mend or remove it") from None
        if key.id in keys:
            raise StackError(f"{path}, line {number}: id {key.id} is there twice; remove one")
        keys[key.id] = key
    return keys


def read_keys(path: Path) -> dict[str, Key]:
    """The keys of a file.

    :raises StackError: it can't be read, or a line is wrong
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        where = path.absolute()
        msg = f"{where}: there is no such file; `enginebay keys add --file {where}` makes it"
        raise StackError(msg) from None
    except (OSError, UnicodeDecodeError) as error:
        raise StackError(f"{path} can't be read: {error}") from None
    return parse_keys(path, text)


def _hashed(secret: bytes, salt: str) -> str:
    return hmac.new(bytes.fromhex(salt), secret, "sha256").hexdigest()
