"""Stack files: what they may say, and how a wrong one is told."""

import pytest

from enginebay.config import load_stack, parse_stack
from enginebay.errors import StackError
from enginebay.stack import parse_size


def write(tmp_path, text, name="mine.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_shipped_stacks_load():
    """Every stack that ships parses, and fills the slots that must hold one plugin."""
    for name in ("cpu", "deterministic", "reference"):
        stack = load_stack(name)
        assert stack.one("scheduler").use == "chunked"
        assert stack.chain("samplers")[-1].use == "gumbel"


def test_a_child_stack_overrides_what_it_names(tmp_path):
    """``extends`` keeps the parent's slots and replaces those that the child fills."""
    path = write(tmp_path, 'extends = "cpu"\nkernels = ["reference"]\n[engine]\nblock_size = 4\n')
    stack = load_stack(path)
    assert [entry.use for entry in stack.chain("kernels")] == ["reference"]
    assert stack.engine.block_size == 4
    assert stack.engine.model == load_stack("cpu").engine.model


def test_a_replaced_plugin_takes_its_options_with_it(tmp_path):
    """A parent's options for a plugin that the child replaced are dropped."""
    write(
        tmp_path,
        'extends = "cpu"\n[options.scheduler.chunked]\nmax_chunk = 7\n',
        "parent.toml",
    )
    child = write(tmp_path, 'extends = "parent.toml"\nscheduler = "other"\n')
    assert load_stack(child).one("scheduler").options == {}


def test_one_plugin_stands_twice_under_two_names():
    """``as`` tells two places of one plugin apart, each with its options."""
    door = [{"use": "bounded-queue", "as": "small", "max_waiting": 1}, "bounded-queue"]
    table = {"door": door, "options": {"door": {"bounded-queue": {"max_waiting": 9}}}}
    small, large = parse_stack("s", table).chain("door")
    assert (small.name, small.options) == ("small", {"max_waiting": 1})
    assert (large.name, large.options) == ("bounded-queue", {"max_waiting": 9})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('schedular = "chunked"', "unknown key 'schedular' (did you mean 'scheduler'?)"),
        ('scheduler = ["chunked"]', "takes one plugin"),
        ('kernels = "cpu"', "takes a list"),
        ("[engine]\nblok_size = 4", "engine.blok_size (did you mean 'block_size'?)"),
        ('[engine]\nblock_size = "4"', "engine.block_size: Expected `int`, got `str`: '4'"),
        ('door = ["a", "a"]', "tell them apart with `as`"),
        ('scheduler = "a"\n[options.scheduler.b]\nx = 1', "configures nothing"),
        ("[options.shedule.b]\nx = 1", "unknown slot options.shedule"),
        ("= 3", "is not TOML"),
        ('extends = "nowhere"', "no stack 'nowhere'"),
        ("extends = 3", "must name a stack"),
        ("kernels = [3]", "takes a name"),
    ],
)
def test_a_wrong_stack_file_says_what_is_wrong(tmp_path, text, told):
    """The message names the key and the fix."""
    with pytest.raises(StackError, match=None) as raised:
        load_stack(write(tmp_path, text))
    assert told in str(raised.value)


def test_a_stack_that_extends_itself_is_refused(tmp_path):
    """A loop of ``extends`` ends with its path, not with a stack overflow."""
    path = write(tmp_path, 'extends = "mine.toml"')
    with pytest.raises(StackError, match="extends itself"):
        load_stack(path)


def test_overrides_reach_any_key():
    """Dotted overrides win over the file."""
    changes = {"engine.block_size": 4, "options.scheduler.chunked.max_chunk": 9}
    stack = load_stack("cpu", changes)
    assert stack.engine.block_size == 4
    assert stack.one("scheduler").options == {"max_chunk": 9}


def test_sizes():
    """Sizes are binary; what is none is told with its place."""
    assert parse_size("1.5GiB", "x") == 3 * 2**29
    assert parse_size("4096", "x") == 4096
    for wrong in ("1GB!", "GiB", "", "1 parsec", "-1MiB", "nan", "inf"):
        with pytest.raises(StackError, match=r"engine\.kv_memory"):
            parse_size(wrong, "engine.kv_memory")


def test_a_loop_through_folders_is_seen(tmp_path):
    """One file under two spellings is one file."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "inner.toml").write_text('extends = "../outer.toml"')
    outer = tmp_path / "outer.toml"
    outer.write_text('extends = "sub/inner.toml"')
    with pytest.raises(StackError, match="extends itself"):
        load_stack(str(outer))


def test_a_file_that_is_no_text(tmp_path):
    """Told as what it is."""
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(StackError, match=r"binary\.toml.*can't be read as UTF-8"):
        load_stack(str(path))


def test_options_of_an_empty_slot():
    """Options that reach no plugin are never dropped in silence."""
    with pytest.raises(StackError, match=r"\[options\.drafter\.ngram\] configures nothing"):
        load_stack("cpu", {"options.drafter.ngram.size": 3})
