"""One choice of the scripted engine: its words, its window, its end."""

from enginebay.flow import (
    Alternative,
    ChoiceFinished,
    Delta,
    Event,
    FinishReason,
    PromptScored,
    Request,
    TokenLogprob,
)

PROMPT_IDS = (7, 8, 9)
PROMPT_WORDS = ("a", " b", " c")
DEFAULT_WORDS = 8


class ScriptedChoice:
    """Says ``w0 w1 ...`` up to its limit, never past its window."""

    def __init__(self, request: Request, index: int) -> None:
        limit = request.sampling.max_tokens
        self.request, self.index = request, index
        self.limit = DEFAULT_WORDS if limit is None else limit
        self.num_generated = self.num_written = 0
        self.done = False

    @property
    def stalled(self) -> bool:
        """Whether its reader is a window behind."""
        window = self.request.window
        return window > 0 and self.num_generated - self.num_written >= window

    def step(self) -> list[Event]:
        """One word, and the finish with the last."""
        if self.done or self.stalled:
            return []
        events: list[Event] = []
        request_id, sampling = self.request.id, self.request.sampling
        if not self.num_generated and not self.index and sampling.prompt_logprobs is not None:
            events.append(_scored(request_id, sampling.prompt_logprobs))
        if self.num_generated < self.limit:
            events.append(self._word())
        if self.num_generated >= self.limit:
            events.append(self.finish("length"))
        return events

    def finish(self, reason: FinishReason) -> ChoiceFinished:
        """End it."""
        self.done = True
        return ChoiceFinished(request_id=self.request.id, index=self.index, reason=reason)

    def _word(self) -> Delta:
        word, num_top = f"w{self.num_generated} ", self.request.sampling.logprobs
        self.num_generated += 1
        return Delta(
            request_id=self.request.id,
            index=self.index,
            token_ids=(self.num_generated,),
            content=word,
            logprobs=None if num_top is None else (_entry(word, num_top),),
            num_generated=self.num_generated,
        )


def _scored(request_id: str, num_top: int) -> PromptScored:
    first, *later = PROMPT_WORDS
    entries = tuple(_entry(word, num_top) for word in later)
    return PromptScored(
        request_id=request_id,
        logprobs=(None, *entries),
        token_ids=PROMPT_IDS,
        first=first.encode(),
    )


def _entry(word: str, num_top: int) -> TokenLogprob:
    words = [(word, -0.1), *((f"x{i}", -1.0 - i) for i in range(num_top))]
    best = tuple(
        Alternative(token_id=1, logprob=value, text=text, data=text.encode())
        for text, value in words
    )
    return TokenLogprob(token=best[0], top=best[:num_top])
