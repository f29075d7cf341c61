"""What ends an answer, over a whole engine and a model that follows a script."""

import pytest

from enginebay import SamplingParams
from enginebay.conformance.scripted import chain, write_scripted
from enginebay.conformance.tiny_text import EOS_ID

OTHER_EOS = 60
SCRIPT = chain(40, 41, 42, EOS_ID, 43, 44, OTHER_EOS, 45, 46, 47, 48)


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    """40 is followed by 41, 42, an end token, 43, 44, a second end token, 45 to 48."""
    folder = tmp_path_factory.mktemp("scripted") / "model"
    generation = {"eos_token_id": [EOS_ID, OTHER_EOS]}
    return str(write_scripted(folder, SCRIPT, generation=generation, eos_token_id=EOS_ID))


@pytest.mark.parametrize(
    ("asked", "tokens", "reason", "stop"),
    [
        ({}, (41, 42, EOS_ID), "stop", None),
        ({"max_tokens": 2}, (41, 42), "length", None),
        (
            {"ignore_eos": True, "max_tokens": 8},
            (41, 42, EOS_ID, 43, 44, OTHER_EOS, 45, 46),
            "length",
            None,
        ),
        ({"stop_token_ids": (42,)}, (41, 42), "stop", 42),
        (
            {"ignore_eos": True, "stop_token_ids": (45,)},
            (41, 42, EOS_ID, 43, 44, OTHER_EOS, 45),
            "stop",
            45,
        ),
    ],
)
def test_what_ends_an_answer(start, scripted, asked, tokens, reason, stop):
    """End tokens (cases 10 and 62), stop tokens and the limit, each with its reason."""
    llm = start("reference", model=scripted)
    sampling = SamplingParams(**{"max_tokens": 10, "temperature": 0.0, **asked})
    output = llm.generate([40], sampling)
    choice = output.outputs[0]
    assert (choice.token_ids, choice.finish_reason, choice.stop) == (tokens, reason, stop)
    assert output.usage.completion_tokens == len(tokens)


def test_every_end_token_of_the_model_ends(start, scripted):
    """The one that generation_config.json alone names ends as well (case 62)."""
    llm = start("reference", model=scripted)
    choice = llm.generate([43], SamplingParams(max_tokens=10, temperature=0.0)).outputs[0]
    assert (choice.token_ids, choice.finish_reason) == ((44, OTHER_EOS), "stop")


def test_no_end_token_before_the_minimum(start, scripted):
    """Both end tokens are banned until ``min_tokens`` are there (case 10)."""
    llm = start("reference", model=scripted)
    sampling = SamplingParams(max_tokens=12, min_tokens=6, temperature=0.0)
    choice = llm.generate([40], sampling).outputs[0]
    assert len(choice.token_ids) >= 6
    assert not {EOS_ID, OTHER_EOS} & set(choice.token_ids[:6])
