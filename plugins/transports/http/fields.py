"""What the two endpoints share: their common fields, and what becomes of all others.

A field is one of four kinds (promise P4: nothing that would change the output is
dropped):

* known here, or to the core (``SamplingParams``);
* without any effect on the output (``IGNORED``): accepted;
* not supported, but with a neutral value (``NEUTRAL``): accepted at that value alone;
* anything else: passed on as a sampling parameter (``temperature``, ``top_p``, ...), so
  that the running stack takes it or refuses it by name.
"""

from typing import Annotated, Any, Final, TypeVar

import msgspec

from enginebay.flow import SamplingParams

from .body import convert
from .errors import ApiError

IGNORED: Final = frozenset(
    {
        "user", "metadata", "store", "service_tier", "parallel_tool_calls", "prediction",
        "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "request_id",
    }
)  # fmt: skip
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "spaces_between_special_tokens": (True,),
    "return_tokens_as_token_ids": (False,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),
    "documents": ([],),
    "suffix": ("",),
}


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``stream_options``."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against an eavesdropper; without effect here."""
    continuous_usage_stats: bool | None = None


class Common(msgspec.Struct, kw_only=True):
    """The fields of both bodies that the transport or the core uses. Values are held to
    their types here and to their ranges by the core."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: str | None = None
    skip_special_tokens: bool | None = None
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """Lower runs earlier, where the scheduler looks at it; an extension."""
    deadline: float | None = None
    """Seconds after which the answer is worthless; an extension."""
    return_token_ids: bool | None = None

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check(self) -> None:
        """:raises ApiError: fields that contradict each other"""
        options = self.stream_options
        if options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream: true", param="stream_options")
        if options is not None and options.continuous_usage_stats:
            name = "stream_options.continuous_usage_stats"
            raise ApiError(400, f"{name} is not supported; leave it out", param=name)
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError(
                400, "best_of is not supported; ask for n choices instead", param="best_of"
            )
        if self.stream and self.prompt_logprobs is not None:
            message = "prompt_logprobs are not streamed; set stream to false"
            raise ApiError(400, message, param="prompt_logprobs")

    def sampling(self, transforms: dict[str, Any], **fields: Any) -> SamplingParams:
        """The core's parameters; fields that are null keep the core's defaults.

        :param transforms: what sampler plugins may own
        :param fields: those that the endpoints name differently
        """
        given = {
            name: getattr(self, name)
            for name in SamplingParams.__struct_fields__
            if name in Common.__struct_fields__
        }
        stop = given.pop("stop")
        if stop is not None:
            given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
        if self.stop_token_ids is not None:
            given["stop_token_ids"] = tuple(self.stop_token_ids)
        given |= fields
        known = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(**known, transforms=transforms)


BodyT = TypeVar("BodyT", bound=Common)


def split(body: dict[str, Any], type_: type[BodyT]) -> tuple[BodyT, dict[str, Any]]:
    """A typed body, and the fields that sampler plugins may own.

    :raises ApiError: a value has the wrong type, or asks for what is not supported
    """
    known: dict[str, Any] = {}
    transforms: dict[str, Any] = {}
    for name, value in body.items():
        if name in type_.__struct_fields__:
            known[name] = value
        elif name in IGNORED or value is None:
            continue
        elif name in NEUTRAL:
            _check_neutral(name, value)
        else:
            transforms[name] = value
    fields = convert(known, type_)
    fields.check()
    return fields, transforms


def _check_neutral(name: str, value: Any) -> None:
    neutral = NEUTRAL[name]
    if value not in neutral:
        wanted = " or ".join(msgspec.json.encode(item).decode() for item in neutral)
        raise ApiError(
            400, f"{name} is not supported here; leave it out or set it to {wanted}", param=name
        )
