"""vLLM on a CPU, float32: its ``LLM`` in this process, compiled as it does by default."""

import os

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine core runs here too
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from . import Facts, Mark, Setup


class Engine:
    """A model with paged attention and no prefix cache."""

    def __init__(self, setup: Setup) -> None:
        cores = sorted(os.sched_getaffinity(0))[: setup.threads]
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
        import vllm  # after the environment that it reads

        self._params = vllm.SamplingParams
        self._llm = vllm.LLM(
            model=setup.weights,
            dtype="float32",
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            max_model_len=setup.longest,
            max_num_seqs=setup.most,
            disable_log_stats=True,
        )
        self._turn = 0
        self.facts = Facts(
            version=vllm.__version__,
            weights="float32",
            kv="float32",
            bits="float32",
            threads=len(cores),
        )

    def generate(self, prompts: list[list[int]], tokens: int, mark: Mark | None) -> list[list[int]]:
        """Continue all prompts at once."""
        params = self._params(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        if mark is None:
            asked = [{"prompt_token_ids": prompt} for prompt in prompts]
            answers = self._llm.generate(asked, params, use_tqdm=False)
            return [list(answer.outputs[0].token_ids) for answer in answers]
        engine, ids = self._llm.llm_engine, []
        self._turn += 1
        engine.add_request(f"turn-{self._turn}", {"prompt_token_ids": prompts[0]}, params)
        while engine.has_unfinished_requests():
            for answer in engine.step():
                ids = list(answer.outputs[0].token_ids)
                mark(len(ids))
        return [ids]
