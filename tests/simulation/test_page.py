"""The page: one file, right data, and a script that draws what the data says."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from enginebay.config import load_stack
from enginebay.simulation.candidate import candidate, limits_of
from enginebay.simulation.cost import Cost
from enginebay.simulation.figures import Objective, figures
from enginebay.simulation.page import page
from enginebay.simulation.play import play
from enginebay.simulation.trace import Call

NODE = shutil.which("node")
CALLS = [
    Call(time=0.0, prompt_tokens=10, output_tokens=3, tenant="</script><b>x"),
    Call(time=0.5, prompt_tokens=10, output_tokens=2, n=2),
]


@pytest.fixture(scope="module")
def made():
    """The page of two requests, one seat, a second a step; and its run."""
    limits = limits_of(load_stack("cpu"), CALLS, {"max_sequences": 1, "num_blocks": 10})
    played = play(
        candidate("chunked", load_stack("cpu"), limits),
        CALLS,
        Cost(step=1.0, token=0.0, context=0.0, block=0.0),
    )
    told = figures(played, Objective(ttft=10, itl=10))
    return page(["a fact & <more>"], [played], [told]), played


def embedded(html):
    """The data that the script reads."""
    return json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', html, re.S)[1])


def test_it_needs_nothing_from_elsewhere(made):
    """No address, no import, nothing that a browser would fetch; and it may not."""
    html = made[0]
    assert "http" not in html.replace("http-equiv", "")
    assert not re.search(r"\b(src|href)=|@import|url\(|fetch\(|import ", html)
    assert "default-src 'none'" in html


def test_it_is_well_formed(made):
    """Tags close in order, and a name can't end the script."""
    html = made[0]
    open_tags = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "link", "br"):
                open_tags.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Reader().feed(html)
    assert open_tags == []
    assert html.count("</script>") == 2
    assert embedded(html)["runs"][0]["rows"][0][1] == "</script><b>x"


def test_the_data_is_what_happened(made):
    """Rows in order of arrival, with their segments; the pool after every step."""
    html, played = made
    data = embedded(html)
    assert data["facts"] == ["a fact & <more>"]
    assert ["requests done", "2"] in data["table"]
    run = data["runs"][0]
    first, second, third = run["rows"]
    assert first[2:8] == [0, 0, 3, "stop", 10, 3]
    assert first[8] == [[0, 0, 1, 10, 1], [1, 1, 3, 2, 2]]
    assert (second[0], third[0]) == ("00001/0", "00001/1")
    assert second[2:4] == [0.5, 3]
    assert third[3] == 5  # one seat: the second choice waits for the first to end
    assert (run["blocks"], run["end"]) == (10, 7)
    assert [moment[0] for moment in run["moments"]] == list(range(7))
    assert run["moments"][0][1:] == [played.recorder.moments[0].used, 0, 1]


@pytest.mark.skipif(NODE is None, reason="no node to run the script with")
def test_the_script_draws_it(made, tmp_path):
    """Bars at their places and in their colours; keys, hovering and tables tell the same."""
    file = tmp_path / "page.html"
    file.write_text(made[0], "utf-8")
    words = [NODE, str(Path(__file__).with_name("dom.js")), str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    bars = {(colour, round(x), round(width)) for colour, x, _, width, _ in seen["first"]}
    a_second = 1000 / 7
    for colour, begin, end in (
        ("--prefill", 0, 1),
        ("--decode", 1, 3),
        ("--waiting", 0.5, 3),
        ("--prefill", 3, 4),
        ("--decode", 6, 7),
    ):
        assert (colour, round(4 + begin * a_second), round((end - begin) * a_second)) in bars
    assert seen["said"].startswith("request 00000 of </script><b>x: 10 prompt tokens, 3 generated")
    assert "prefill: 10 tokens in 1 steps" in seen["tip"]
    assert "of 10 blocks held" in seen["chart"]
    assert "</script><b>x" in seen["cells"]
    assert "who ran when" in seen["labels"][0]
