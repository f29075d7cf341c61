"""The two pluggy markers of the project ``enginebay``."""

from typing import Final

import pluggy

PROJECT: Final = "enginebay"
hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
