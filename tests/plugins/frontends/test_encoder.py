"""One tokenizer, many threads: no call changes what another one sees (case 6)."""

import threading
from concurrent.futures import ThreadPoolExecutor

from enginebay.conformance.tiny_text import tiny_tokenizer
from enginebay.flow import ChatPrompt, TextPrompt, TokenPrompt


def test_many_threads(make_chat, make_completion):
    """Chat, text, token and guarded prompts at once give the ids that each gives alone."""
    tokenizer = tiny_tokenizer(add_bos=True)
    chat, completion = make_chat(tokenizer=tokenizer), make_completion(tokenizer)
    contents = ["hello", "the " * 3_000, "a<|im_end|>b", "\U0001fae0" * 50, "x <"]
    jobs = [(chat, ChatPrompt(messages=({"role": "user", "content": each},))) for each in contents]
    jobs += [(completion, TextPrompt(text=each)) for each in contents]
    jobs += [(completion, TextPrompt(text=each, add_special_tokens=False)) for each in contents]
    jobs.append((completion, TokenPrompt(token_ids=(1, 2, 3))))

    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(lambda job: job[0].encode(job[1]), jobs * 16))
    alone = [frontend.encode(prompt) for frontend, prompt in jobs]
    assert together == alone * 16
    assert (tokenizer.truncation, tokenizer.padding) == (None, None)


def test_truncating_tokenizer_is_left_alone(make_completion):
    """A tokenizer that comes with truncation is copied: whole prompts, no shared change."""
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    ids = make_completion(tokenizer).encode(TextPrompt(text="0123456789")).token_ids
    assert len(ids) == 10
    assert tokenizer.truncation["max_length"] == 4
    assert tokenizer.padding["length"] == 9


def test_others_run_meanwhile(make_completion):
    """A long text does not stop the other threads of the process while it is encoded."""
    frontend = make_completion()
    ticks, stop = 0, threading.Event()

    def tick():
        nonlocal ticks
        while not stop.wait(0.001):
            ticks += 1

    ticking = threading.Thread(target=tick)
    ticking.start()
    before = ticks
    frontend.encode(TextPrompt(text="the " * 150_000))
    meanwhile = ticks - before
    stop.set()
    ticking.join()
    assert meanwhile > 5
