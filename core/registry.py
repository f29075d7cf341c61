"""Plugins: found by entry point, chosen by name, loaded one at a time, validated.

pluggy's own loader is not used: it imports a whole group, and it drops a name that
another group used already. Here a plugin is imported only when a stack names it, is
registered as ``family:name``, and only its own building hook is called.
"""

import inspect
from collections import defaultdict
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import Distribution, entry_points
from types import ModuleType
from typing import Any

import msgspec
import pluggy

from .config import suggestion, told
from .errors import EnginebayError, PluginError, StackError
from .hookspecs.families import FAMILIES, Family
from .hookspecs.markers import PROJECT
from .stack import Entry


@dataclass(frozen=True)
class Found:
    """A plugin as its distribution announces it; nothing is imported yet."""

    family: str
    name: str
    module: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.family} plugin {self.name!r} of {self.distribution} {self.version}"


def discover(family: Family | None = None) -> list[Found]:
    """Every installed plugin, or those of one family, by family and name."""
    families = FAMILIES.values() if family is None else (family,)
    points = entry_points()
    labels: dict[int, tuple[str, str]] = {}
    found = [
        Found(kind.name, point.name, point.value, *_label(point.dist, labels))
        for kind in families
        for point in points.select(group=kind.group)
    ]
    return sorted(set(found), key=lambda plugin: (plugin.family, plugin.name, plugin.distribution))


def _label(of: Distribution | None, labels: dict[int, tuple[str, str]]) -> tuple[str, str]:
    """A distribution's name and version; each access to them parses its metadata anew."""
    if of is None:
        return "?", "?"
    if id(of) not in labels:
        labels[id(of)] = of.name, of.version
    return labels[id(of)]


class Registry:
    """The plugins that one stack has loaded."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.loaded: dict[tuple[str, str], tuple[Found, ModuleType]] = {}
        self._specified: set[str] = set()
        self._offered: list[Found] = []
        """All that is installed: looking through the distributions takes a while."""

    def find(self, family: Family, name: str) -> Found:
        """The one plugin of that name.

        :raises PluginError: unknown (with a suggestion), or offered twice (naming both)
        """
        offered = defaultdict(list)
        self._offered = self._offered or discover()
        for plugin in self._offered:
            if plugin.family == family.name:
                offered[plugin.name].append(plugin)
        if name not in offered:
            raise PluginError(
                f"no {family.name} plugin is called {name!r}"
                f"{suggestion(name, offered)}; installed: {', '.join(sorted(offered)) or 'none'}"
            )
        if len(offered[name]) > 1:
            both = " and ".join(f"{p.distribution} {p.version}" for p in offered[name])
            raise PluginError(
                f"the {family.name} plugin {name!r} is offered by {both}; uninstall one of them"
            )
        return offered[name][0]

    def load(self, family: Family, name: str) -> ModuleType:
        """Import and validate one plugin, once.

        :raises PluginError: with the plugin's name, distribution, version and the cause
        """
        key = (family.name, name)
        if key not in self.loaded:
            found = self.find(family, name)
            module = _imported(found)
            _check_contract(found, module, family)
            self._register(found, module, family)
            self.loaded[key] = (found, module)
        return self.loaded[key][1]

    def build(self, family: Family, entry: Entry, context: object) -> Any:
        """Call the building hook of exactly the plugin that ``entry`` names.

        :raises StackError: an option is unknown or of a wrong type
        :raises PluginError: the hook raised, or what it returned breaks the contract
        """
        module = self.load(family, entry.use)
        found = self.loaded[family.name, entry.use][0]
        options = parse_options(entry, module.Options)
        caller = getattr(self.manager.hook, family.hook)
        (implementation,) = (i for i in caller.get_hookimpls() if i.plugin is module)
        offered = {"options": options, "context": context}
        arguments = [offered[name] for name in implementation.argnames]
        try:
            built = implementation.function(*arguments)
        except EnginebayError:
            raise
        except Exception as error:
            raise PluginError(f"{found} could not be built: {described(error)}") from error
        _check_members(found, built, family)
        return built

    def _register(self, found: Found, module: ModuleType, family: Family) -> None:
        if family.module not in self._specified:
            self.manager.add_hookspecs(import_module(family.module))
            self._specified.add(family.module)
        try:
            self.manager.register(module, name=f"{found.family}:{found.name}")
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(f"{found} does not fit its hook: {error}") from error
        caller = getattr(self.manager.hook, family.hook)
        if not any(i.plugin is module for i in caller.get_hookimpls()):
            raise PluginError(
                f"{found}: module {found.module} has no function {family.hook} marked @hookimpl"
            )


def parse_options(entry: Entry, options: type[msgspec.Struct]) -> msgspec.Struct:
    """A stack's table for one plugin, as that plugin's ``Options``.

    :raises StackError: names slot, plugin, key, value and what would be right
    """
    where = f"{entry.slot}.{entry.name}"
    for key in entry.options:
        if key not in options.__struct_fields__:
            known = options.__struct_fields__
            raise StackError(
                f"{where}: unknown option {key!r}{suggestion(key, known)}; "
                f"options: {', '.join(known) or 'none'}"
            )
    try:
        return msgspec.convert(entry.options, options)
    except msgspec.ValidationError as error:
        raise StackError(told(error, where, entry.options)) from error
    except (ValueError, TypeError) as error:
        raise StackError(f"{where}: {error}; given {entry.options!r}") from error


def described(error: BaseException) -> str:
    """An exception in one line, for people."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _imported(found: Found) -> ModuleType:
    try:
        return import_module(found.module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(
            f"{found} does not import: {described(error)}; "
            f"mend or uninstall {found.distribution}, or choose another {found.family}"
        ) from error


def _check_contract(found: Found, module: ModuleType, family: Family) -> None:
    options = getattr(module, "Options", None)
    if not (isinstance(options, type) and issubclass(options, msgspec.Struct)):
        raise PluginError(f"{found}: module {found.module} has no msgspec.Struct named Options")
    wanted = getattr(module, "CONTRACT", None)
    if not (isinstance(wanted, tuple) and len(wanted) == 2):
        raise PluginError(f"{found}: module {found.module} has no CONTRACT = (major, minor)")
    major, minor = family.version
    if wanted[0] != major or wanted[1] > minor:
        fix = "update enginebay" if wanted > family.version else f"update {found.distribution}"
        raise PluginError(
            f"{found} was written for {family.name} contract {wanted[0]}.{wanted[1]}, "
            f"this enginebay has {major}.{minor}; {fix}"
        )


def _check_members(found: Found, built: object, family: Family) -> None:
    spec = getattr(import_module(family.module), family.hook)
    protocol = inspect.signature(spec).return_annotation
    missing = [name for name in protocol_members(protocol) if not _has(built, name)]
    if missing:
        raise PluginError(
            f"{found} returned a {type(built).__name__} without {', '.join(missing)}; "
            f"the contract is {family.module}.{protocol.__name__}"
        )


def protocol_members(protocol: type) -> list[str]:
    """The public methods and properties that a Protocol asks for."""
    return sorted(
        name
        for base in protocol.__mro__
        if base.__module__.startswith("enginebay.")
        for name in vars(base)
        if not name.startswith("_")
    )


def _has(built: object, name: str) -> bool:
    # A property may raise before its object is ready, so it is looked up, not read.
    return hasattr(type(built), name) or name in getattr(built, "__dict__", {})
