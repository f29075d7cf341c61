"""OpenVINO GenAI: its continuous-batching pipeline over a GGUF file with 8-bit weights."""

from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from . import Facts, Mark, Setup

KV = "u8"
"""Precision of the cache: what the CPU plugin chooses by itself, said aloud."""


class Engine:
    """A model in OpenVINO's own graph, with paged attention and no prefix cache."""

    def __init__(self, setup: Setup) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 2  # GB
        scheduler.max_num_seqs = max(setup.most, 1)
        properties = {"INFERENCE_NUM_THREADS": setup.threads, "KV_CACHE_PRECISION": KV}
        self._pipeline: Any = genai.ContinuousBatchingPipeline(
            setup.weights, scheduler, "CPU", properties
        )
        self.facts = Facts(
            version=genai.__version__,
            weights="int8 in groups of 32, from Q8_0",
            kv=KV,
            bits="8-bit",
            threads=setup.threads,
        )

    def generate(self, prompts: list[list[int]], tokens: int, mark: Mark | None) -> list[list[int]]:
        """Continue all prompts at once."""
        config = genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        asked = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        streamer = None if mark is None else Streamer(mark)
        answers = self._pipeline.generate(asked, [config] * len(prompts), streamer)
        return [list(answer.m_generation_ids[0]) for answer in answers]


class Streamer(genai.StreamerBase):
    """Passes on how many tokens have come."""

    def __init__(self, mark: Mark) -> None:
        super().__init__()
        self._mark = mark
        self._count = 0

    def write(self, token: int | list[int]) -> genai.StreamingStatus:
        """A token, or several."""
        self._count += len(token) if isinstance(token, list) else 1
        self._mark(self._count)
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Nothing follows."""
