"""The page: figures and the step-by-step picture in one file that needs nothing else."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

import msgspec

from .figures import Figures
from .play import Played
from .recorder import Moment, Track
from .table import ROWS

KINDS: Final = ("prefill", "decode", "recompute")
MOST_MOMENTS: Final = 3000
"""Points of a chart; of longer runs each point is the fullest of several steps."""
Row = list[Any]


def page(facts: Sequence[str], runs: Sequence[Played], told: Sequence[Figures]) -> str:
    """HTML with its style, script and data inside."""
    data = {
        "facts": facts,
        "table": [[label, *(tell(figures) for figures in told)] for label, tell in ROWS],
        "runs": [run_data(played) for played in runs],
    }
    # A "<" in the data could end the script element; as an escape it is the same JSON.
    text = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    html = _part("html")
    for place, content in (("CSS", _part("css")), ("JS", _part("js")), ("DATA", text)):
        html = html.replace(f"/*{place}*/", content)
    return html


def run_data(played: Played) -> dict[str, Any]:
    """What the script draws of one run."""
    recorder = played.recorder
    end = max((track.ended or track.arrival for track in recorder.tracks.values()), default=0.0)
    tracks = sorted(recorder.tracks.items(), key=lambda item: (item[1].arrival, item[0]))
    calls = dict(enumerate(played.calls))
    rows = [
        _row(key, track, calls[int(key[0])].prompt_tokens, calls[int(key[0])].n)
        for key, track in tracks
        if track.ended is not None
    ]
    return {
        "name": played.candidate.name,
        "end": end,
        "blocks": played.candidate.limits.num_blocks,
        "queue": max((moment.waiting for moment in recorder.moments), default=0),
        "rows": rows,
        "moments": _thinned(recorder.moments),
    }


def _row(key: tuple[str, int], track: Track, prompt: int, n: int) -> Row:
    """See ``describe`` in the script for the order."""
    return [
        f"{key[0]}/{key[1]}" if n > 1 else key[0],
        track.tenant,
        _time(track.arrival),
        None if track.started is None else _time(track.started),
        _time(track.ended or track.arrival),
        track.reason,
        prompt,
        len(track.token_times),
        [
            [KINDS.index(s.kind), _time(s.begin), _time(s.end), s.num_tokens, s.num_steps]
            for s in track.segments
        ],
        [[_time(time), how, by] for time, how, by in track.preemptions],
    ]


def _thinned(moments: Sequence[Moment]) -> list[Row]:
    """``[begin, blocks held, waiting, running]``, in bounded number."""
    every = -(-len(moments) // MOST_MOMENTS) or 1
    groups = [moments[place : place + every] for place in range(0, len(moments), every)]
    return [
        [
            _time(group[0].begin),
            max(moment.used for moment in group),
            max(moment.waiting for moment in group),
            max(moment.running for moment in group),
        ]
        for group in groups
    ]


def _time(seconds: float) -> float:
    """Rounded to ten microseconds: the page is a third of the size."""
    return round(seconds, 5)


def _part(kind: str) -> str:
    return files("enginebay.simulation").joinpath(f"page.{kind}").read_text("utf-8")
