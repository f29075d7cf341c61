"""llama.cpp through llama-cpp-python's binding of its C interface.

The binding's own class answers one request at a time, so batches are made here the way
llama.cpp's server makes them: every sequence in one batch, prompts first, then a token of
each a step, the likeliest token taken from its logits.
"""

import ctypes
from typing import Any

import llama_cpp
import numpy as np

from . import Facts, Mark, Setup

CHUNK = 512
"""Tokens computed at once at most: llama.cpp's default."""


class Engine:
    """A GGUF file, and a context for each number of sequences and length asked for."""

    def __init__(self, setup: Setup) -> None:
        """:raises ValueError: the file can't be loaded"""
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        model = llama_cpp.llama_model_load_from_file(setup.weights.encode(), params)
        if not model:
            raise ValueError(f"llama.cpp can't load {setup.weights}")
        self._model = model
        self._threads = setup.threads
        self._contexts: dict[tuple[int, int], Context] = {}
        stored = _stored(model)
        self.facts = Facts(
            version=llama_cpp.__version__,
            weights=stored,
            kv="float16",
            bits="4-bit" if stored.startswith(("Q4", "IQ4")) else "8-bit",
            threads=setup.threads,
            notes=llama_cpp.llama_print_system_info().decode().strip(),
        )

    def generate(self, prompts: list[list[int]], tokens: int, mark: Mark | None) -> list[list[int]]:
        """Continue all prompts at once."""
        length = -(-(len(prompts[0]) + tokens) // 256) * 256
        shape = (len(prompts), length)
        if shape not in self._contexts:
            self._contexts[shape] = Context(self._model, *shape, self._threads)
        return self._contexts[shape].run(prompts, tokens, mark)


class Context:
    """A cache for so many sequences of such a length, each in a stream of its own."""

    def __init__(self, model: Any, sequences: int, length: int, threads: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * length
        params.n_seq_max = sequences
        params.n_batch = params.n_ubatch = CHUNK
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise ValueError(f"llama.cpp made no context of {sequences} x {length} tokens")
        self._batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._size = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def run(self, prompts: list[list[int]], tokens: int, mark: Mark | None) -> list[list[int]]:
        """Continue all prompts by so many tokens."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
        outputs = [[token] for token in self._read(prompts)]
        for count in range(1, tokens):
            if mark is not None:
                mark(count)
            rows = [
                (row[-1], len(prompt) + count - 1, number, True)
                for number, (prompt, row) in enumerate(zip(prompts, outputs, strict=True))
            ]
            for row, token in zip(outputs, self._decode(rows).values(), strict=True):
                row.append(token)
        return outputs

    def _read(self, prompts: list[list[int]]) -> list[int]:
        """Compute the prompts, in chunks. :return: the token that follows each"""
        rows = [
            (token, at, number, at == len(prompt) - 1)
            for number, prompt in enumerate(prompts)
            for at, token in enumerate(prompt)
        ]
        found: dict[int, int] = {}
        for begin in range(0, len(rows), CHUNK):
            found |= self._decode(rows[begin : begin + CHUNK])
        return [found[number] for number in range(len(prompts))]

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        """Compute (token, position, sequence, whether what follows is wanted) in a batch.

        :return: the likeliest next token by sequence
        """
        batch = self._batch
        batch.n_tokens = len(rows)
        for place, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[place] = token
            batch.pos[place] = position
            batch.n_seq_id[place] = 1
            batch.seq_id[place][0] = sequence
            batch.logits[place] = wanted
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode answered {status}")
        return {row[2]: self._likeliest(place) for place, row in enumerate(rows) if row[3]}

    def _likeliest(self, place: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, place)
        address = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float * self._size))
        return int(np.frombuffer(address.contents, np.float32).argmax())


def _stored(model: Any) -> str:
    """The file's type, as ``Q8_0``: what follows the family and size in its description."""
    text = ctypes.create_string_buffer(128)
    llama_cpp.llama_model_desc(model, text, len(text))
    return " ".join(text.value.decode().split()[2:])
