"""The key file and the command that writes it."""

import json
import stat

import pytest

from enginebay.commands import main
from enginebay.errors import StackError
from enginebay.keyfile import line_of, new_key, parse_keys, read_keys, split_key


def keys(*words):
    """Run ``enginebay keys``. :return: exit status"""
    return main(["keys", *map(str, words)])


def test_a_key_proves_itself_and_no_other():
    """Id and secret come back out of it; the line holds no secret; no two are alike."""
    key, shown = new_key("acme", "ci", admin=True)
    other, _ = new_key("acme")
    id_, secret = split_key(shown.encode())
    assert id_ == key.id
    assert key.matches(secret)
    assert not other.matches(secret)
    assert not key.matches(secret[:-1] + b"!")
    assert secret.decode() not in line_of(key)
    assert len({key.id, other.id, key.salt, other.salt, key.hash, other.hash}) == 6
    assert parse_keys("f", line_of(key)) == {key.id: key}


@pytest.mark.parametrize(
    "presented",
    [b"", b"eb-", b"none", b"eb-0123456789ab-short", b"\xff" * 60, b"eb-0123456789ab-" + b"x" * 44],
)
def test_what_is_no_key(presented):
    """Anything that no key looks like."""
    assert split_key(presented) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "JSON is malformed|truncated"),
        ("[]", "Expected `object`"),
        ("{}", "missing required field `id`"),
        ('{"id":"zz"}', "matching regex"),
        ("[" * 100_000, "line 2"),
        (None, "twice"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, told):
    """File, line and problem; nothing of the file is taken."""
    good = line_of(new_key("a")[0])
    path = tmp_path / "keys"
    path.write_text(f"{good}\n{good if line is None else line}\n")
    with pytest.raises(StackError, match=told) as raised:
        read_keys(path)
    assert f"{path}, line 2" in str(raised.value)


@pytest.mark.parametrize("field", ["tenant", "salt", "hash"])
def test_a_field_that_would_do_harm_is_refused(tmp_path, field):
    """A newline behind a value is no part of it."""
    fields = json.loads(line_of(new_key("a")[0]))
    path = tmp_path / "keys"
    path.write_text(json.dumps(fields | {field: fields[field] + "\n"}))
    with pytest.raises(StackError, match=field):
        read_keys(path)


@pytest.mark.parametrize("tenant", ["", "a b", "a\n", "x" * 65, "é", "{}"])
def test_a_tenant_that_cannot_be_told_apart_is_refused(tenant):
    """Letters, digits and a few marks."""
    with pytest.raises(StackError, match="tenant"):
        new_key(tenant)


def test_add_list_and_revoke(tmp_path, capsys):
    """The key is printed once and alone; the file is the owner's; a revoked one is gone."""
    path = tmp_path / "keys"
    assert keys("add", "--file", path, "--tenant", "acme", "--label", "ci") == 0
    shown = capsys.readouterr().out.strip()
    assert keys("add", "--file", path, "--tenant", "ops", "--admin") == 0
    capsys.readouterr()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys("list", "--file", path) == 0
    listed = capsys.readouterr().out
    id_, secret = split_key(shown.encode())
    assert [line.split()[:3] for line in listed.splitlines()] == [
        [id_, "acme", "-"],
        [next(k.id for k in read_keys(path).values() if k.admin), "ops", "admin"],
    ]
    assert secret.decode() not in listed + path.read_text()
    assert keys("revoke", "--file", path, id_) == 0
    assert [key.tenant for key in read_keys(path).values()] == ["ops"]
    assert keys("revoke", "--file", path, id_) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_exists_keeps_its_group(tmp_path, capsys):
    """A server of another account goes on reading it; others never do."""
    path = tmp_path / "keys"
    path.write_text("")
    path.chmod(0o644)
    assert keys("add", "--file", path, "--tenant", "a") == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_is_no_key_file_is_left_alone(tmp_path, capsys):
    """Neither a folder that is missing nor a file of something else is written."""
    path = tmp_path / "notes"
    path.write_text("dear diary\n")
    assert keys("add", "--file", path, "--tenant", "a") == 1
    assert path.read_text() == "dear diary\n"
    assert "line 1" in capsys.readouterr().err
    assert keys("add", "--file", tmp_path / "no" / "keys", "--tenant", "a") == 1
    assert keys("list", "--file", tmp_path / "none") == 1
