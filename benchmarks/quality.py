"""Quality: perplexity of a stack on English text, and how far another stack is from it.

    python -m benchmarks.quality --stack cpu [--against cpu-w8a8] [--tokens 20000] [--kept DIR]

The text is what Python's own help prints (``pydoc_data.topics``), its second half: a
calibration may use the first. It is cut into windows, each scored as a prompt
(``prompt_logprobs``), the first token of a window excepted. With ``--against``, which may be
repeated, the stacks score the same windows and the difference is paired: its standard error
is that of the mean over tokens, with windows as clusters. ``--kept`` stores each window's
scores as soon as it has them; a run that was interrupted goes on from there.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from pydoc_data import topics

from enginebay import LLM, SamplingParams
from enginebay.config import load_stack


def main() -> None:
    """Measure and print, a JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stack", default="cpu")
    parser.add_argument(
        "--against", action="append", default=[], help="another stack; may be repeated"
    )
    parser.add_argument("--model", default="", help="instead of the stacks' own")
    parser.add_argument("--tokens", type=int, default=20_000, help="to score (default: 20000)")
    parser.add_argument("--window", type=int, default=512, help="tokens scored at a time")
    parser.add_argument("--kept", default="", metavar="DIR", help="folder for scores by stack")
    options = parser.parse_args()
    first = score(options.stack, options)
    print(json.dumps({"stack": options.stack, **figures(first)}), flush=True)
    for stack in options.against:
        other = score(stack, options)
        print(json.dumps({"stack": stack, **figures(other)}), flush=True)
        print(json.dumps(difference(first, other)), flush=True)


def score(stack: str, options: argparse.Namespace) -> list[list[float]]:
    """Log-probabilities (natural) of the text's tokens, by window."""
    changes = {"engine.model": options.model} if options.model else {}
    file = Path(options.kept or ".") / f"{Path(stack).stem}-{options.window}.jsonl"
    scores = _read(file) if options.kept else []
    wanted = -(-options.tokens // (options.window - 1))
    if len(scores) >= wanted:
        return scores[:wanted]
    with LLM(stack=load_stack(stack, changes)) as llm:
        ids = llm.assembly.checkpoint.text.tokenizer.encode(held_out()).ids
        starts = range(0, len(ids) - options.window + 1, options.window)
        windows = [tuple(ids[at : at + options.window]) for at in starts][:wanted]
        sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        for window in windows[len(scores) :]:
            (answer,) = llm.generate([window], sampling)
            entries = [entry for entry in answer.prompt_logprobs if entry is not None]
            scores.append([entry.token.logprob for entry in entries])
            if options.kept:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("a") as stream:
                    stream.write(json.dumps(scores[-1]) + "\n")
    return scores


def _read(file: Path) -> list[list[float]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def held_out() -> str:
    """The second half of the topics, in the order of their names."""
    names = sorted(topics.topics)
    return "\n\n".join(topics.topics[name] for name in names[len(names) // 2 :])


def figures(scores: list[list[float]]) -> dict[str, float]:
    """Tokens, mean loss in nats, perplexity."""
    flat = [logprob for window in scores for logprob in window]
    loss = -statistics.fmean(flat)
    return {"tokens": len(flat), "loss": round(loss, 5), "perplexity": round(math.exp(loss), 4)}


def difference(first: list[list[float]], second: list[list[float]]) -> dict[str, float]:
    """How much larger the second's perplexity is, in percent, with its standard error."""
    pairs = [
        [a - b for a, b in zip(*windows, strict=True)]
        for windows in zip(first, second, strict=True)
    ]
    count = sum(map(len, pairs))
    mean = sum(map(sum, pairs)) / count
    spread = sum(sum(value - mean for value in window) ** 2 for window in pairs)
    error = math.sqrt(spread * len(pairs) / max(len(pairs) - 1, 1)) / count
    return {
        "perplexity_percent": round(100 * math.expm1(mean), 3),
        "standard_error_percent": round(100 * math.exp(mean) * error, 3),
    }


if __name__ == "__main__":
    main()
