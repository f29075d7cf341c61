"""Plugins: found by entry point, loaded by name, validated, built one at a time."""

import itertools
import sys

import pytest

from enginebay.errors import PluginError, StackError
from enginebay.hookspecs.families import FAMILIES
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.registry import Registry, discover
from enginebay.stack import Entry

GOOD = """
import msgspec
from enginebay import hookimpl
CONTRACT = (1, 0)
class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 1
class Mine:
    def __init__(self, options): self.options = options
    def add(self, sequence): ...
    def plan(self, build): ...
    def remove(self, sequence_id): ...
    def num_waiting(self): return 0
    def check_integrity(self): ...
@hookimpl
def enginebay_scheduler(options, context):
    return Mine(options)
"""
NUMBERS = itertools.count()
SCHEDULER = FAMILIES["scheduler"]
CONTEXT = SchedulerContext(
    limits=Limits(max_model_len=64, max_step_tokens=8, max_sequences=2, block_size=4, num_blocks=8)
)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a one-module distribution that offers a plugin, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def installed(name, code=GOOD, family="schedulers", distribution=None, version="2.1"):
        distribution = distribution or f"dist-{name}"
        module = f"plug{next(NUMBERS)}_{name}"
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[enginebay.{family}]\n{name} = {module}\n")
        return module

    return installed


def build(name, **options):
    entry = Entry(slot="scheduler", use=name, name=name, options=options)
    return Registry().build(SCHEDULER, entry, CONTEXT)


def test_listing_imports_nothing(install):
    """A broken plugin that nobody chose is listed, and breaks nothing."""
    module = install("broken", "raise RuntimeError('boom')")
    found = {plugin.name: plugin for plugin in discover(SCHEDULER)}
    assert found["broken"].distribution == "dist-broken"
    assert found["broken"].version == "2.1"
    assert module not in sys.modules
    assert build("chunked").num_waiting() == 0


def test_a_plugin_is_built_with_its_options(install):
    """The options table becomes the plugin's own struct."""
    install("good")
    assert build("good", size=3).options.size == 3


def test_only_the_chosen_plugin_is_called(install):
    """Two registered plugins of one family: the slot's own answers."""
    modules = {name: install(name) for name in ("one", "two")}
    registry = Registry()
    for name, module in modules.items():
        entry = Entry(slot="scheduler", use=name, name=name)
        built = registry.build(SCHEDULER, entry, CONTEXT)
        assert type(built).__module__ == module


def test_one_name_in_two_families_is_two_plugins(install):
    """An entry-point name used in another group is not dropped."""
    install("paged")
    assert build("paged").num_waiting() == 0


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nothing_of_that_name", "does not import: ModuleNotFoundError"),
        ("raise SystemExit(3)", "does not import: SystemExit: 3"),
        (GOOD.replace("(1, 0)", "(2, 0)"), "update enginebay"),
        (GOOD.replace("(1, 0)", "(1, 7)"), "contract 1.7, this enginebay has 1.0"),
        (GOOD.replace("(1, 0)", "(0, 9)"), "update dist-bad"),
        (GOOD.replace("CONTRACT = (1, 0)", ""), "no CONTRACT"),
        (GOOD.replace("class Options(", "class Choices("), "no msgspec.Struct named Options"),
        (GOOD.replace("@hookimpl", ""), "no function enginebay_scheduler marked @hookimpl"),
        (GOOD.replace("(options, context)", "(options, context, extra)"), "does not fit its hook"),
        (GOOD.replace("return Mine(options)", "return object()"), "without add, check_integrity"),
        (GOOD.replace("return Mine(options)", "raise ValueError('no luck')"), "no luck"),
    ],
)
def test_a_wrong_plugin_stops_with_its_name_and_the_cause(install, code, told):
    """Name, distribution, version and cause are in the message (case 73)."""
    install("bad", code)
    with pytest.raises(PluginError) as raised:
        build("bad")
    assert told in str(raised.value)
    if "does not fit" not in told:
        assert "dist-bad 2.1" in str(raised.value)


def test_an_unknown_name_is_told_with_a_suggestion():
    """A typo is an error, never another plugin (case 74)."""
    with pytest.raises(PluginError, match="did you mean 'chunked'") as raised:
        build("chunkd")
    assert "installed: chunked" in str(raised.value)


def test_a_name_offered_twice_names_both(install):
    """Two distributions with one name: neither wins silently (case 74)."""
    install("twin", distribution="left")
    install("twin", distribution="right")
    with pytest.raises(PluginError, match=r"offered by left 2\.1 and right 2\.1"):
        build("twin")


def test_loading_again_imports_once(install):
    """``load`` is idempotent: one import, one registration (case 74)."""
    code = GOOD + "\nimport builtins\nbuiltins.count = getattr(builtins, 'count', 0) + 1\n"
    install("once", code)
    registry = Registry()
    assert len({id(registry.load(SCHEDULER, "once")) for _ in range(3)}) == 1
    import builtins

    assert builtins.count == 1
    del builtins.count


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sise": 1}, "scheduler.good: unknown option 'sise' (did you mean 'size'?)"),
        ({"size": "1"}, "scheduler.good.size: Expected `int`, got `str`: '1'"),
    ],
)
def test_wrong_options_name_slot_key_and_value(install, options, told):
    """Options are checked before the hook is called."""
    install("good")
    with pytest.raises(StackError) as raised:
        build("good", **options)
    assert told in str(raised.value)
