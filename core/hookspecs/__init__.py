"""The contracts: one file a family, each with its Protocol and its building hook.

A plugin is a module with an ``Options`` struct, ``CONTRACT = (major, minor)`` and one
function marked ``@hookimpl``. The core calls that hook once, at assembly, and then
talks to the object it returned: no hook runs per step or per token.
"""

from .families import FAMILIES, Family
from .markers import hookimpl, hookspec

__all__ = ["FAMILIES", "Family", "hookimpl", "hookspec"]
