"""Every error the engine raises on purpose; each message names the fix."""

from .flow import Invalid, Refusal


class EnginebayError(Exception):
    """The parent of all errors below."""


class StackError(EnginebayError):
    """A stack file is wrong: the message names file, key, value and fix."""


class PluginError(EnginebayError):
    """A chosen plugin can't be used: not found, does not load, wrong contract."""


class ModelError(EnginebayError):
    """A model can't be found, read or accounted for."""


class IntegrityError(EnginebayError):
    """A subsystem's own invariants are broken; the engine must stop."""


class CapacityError(EnginebayError):
    """Memory does not suffice; the message names the phase and the ledger line."""


class InvalidRequest(EnginebayError):
    """A request that is wrong in itself (HTTP 400)."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.detail = Invalid(message=message, param=param, code=code)


class RequestRefused(EnginebayError):
    """A request that admission turned away."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class EngineStopped(EnginebayError):
    """The engine failed or was closed; it takes no more requests."""
