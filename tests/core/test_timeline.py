"""The timeline: folded, bounded, thread-safe, and the latencies derived from it."""

from threading import Thread

import pytest

from enginebay.timeline import Latencies, Timeline, latencies


def test_events_come_back_in_the_order_they_began():
    """Every kind is kept with its facts."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 1.0)
    timeline.mark("r", "waiting", 1.1, reason="seats")
    timeline.mark("r", "started", 1.2)
    timeline.mark("r", "preempted", 1.3, by="chunked", how="recompute")
    assert [event["what"] for event in timeline.of("r")] == [
        "accepted",
        "waiting",
        "started",
        "preempted",
    ]
    assert timeline.of("r")[3] == {
        "what": "preempted",
        "time": 1.3,
        "by": "chunked",
        "how": "recompute",
    }


def test_a_long_answer_takes_no_more_room_than_a_short_one():
    """Steps and tokens fold into one event a kind, with sums and first and last times."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)
    for step in range(1000):
        timeline.mark("r", "scheduled", step, step=step, num_tokens=1, index=0)
        timeline.mark("r", "token_ready", step + 0.5, count=2, index=0)
        timeline.mark("r", "token_written", step + 0.6, count=2, index=0)
    events = timeline.of("r")
    assert [event["what"] for event in events] == [
        "accepted",
        "scheduled",
        "token_ready",
        "token_written",
    ]
    scheduled, ready = events[1], events[2]
    assert (scheduled["num_tokens"], scheduled["first_step"], scheduled["last_step"]) == (
        1000,
        0,
        999,
    )
    assert (ready["count"], ready["marks"], ready["time"], ready["until"]) == (
        2000,
        1000,
        0.5,
        999.5,
    )
    assert ready["longest_gap"] == 1.0


def test_a_moment_ends_the_run_before_it():
    """What happened before and after a preemption is told apart."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)
    timeline.mark("r", "token_ready", 1.0, count=1, index=0)
    timeline.mark("r", "preempted", 2.0, by="chunked", how="recompute")
    timeline.mark("r", "token_ready", 3.0, count=1, index=0)
    assert [event["what"] for event in timeline.of("r")] == [
        "accepted",
        "token_ready",
        "preempted",
        "token_ready",
    ]


def test_runs_are_kept_apart_by_choice_and_by_reason():
    """Choices interleave, waits change their reason, and neither grows the list."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)
    for turn in range(10):
        timeline.mark("r", "waiting", turn, reason="blocks" if turn % 2 else "tokens")
        timeline.mark("r", "token_ready", turn, count=1, index=turn % 3)
    events = timeline.of("r")
    assert [event["marks"] for event in events if event["what"] == "waiting"] == [5, 5]
    assert [event["count"] for event in events if event["what"] == "token_ready"] == [4, 3, 3]


def test_events_of_a_request_are_bounded():
    """Past the limit events from the middle go; beginning and end stay, the gap is told."""
    timeline = Timeline(4, max_events=8)
    timeline.mark("r", "accepted", 0.0)
    for turn in range(1, 100):
        timeline.mark("r", "preempted", turn, by="x", how="recompute")
    timeline.mark("r", "released", 100.0)
    events = timeline.of("r")
    assert len(events) == 9
    assert (events[0]["what"], events[-1]["what"]) == ("accepted", "released")
    (gap,) = [event for event in events if event["what"] == "omitted"]
    assert gap["count"] == 101 - 8


def test_requests_are_bounded_and_the_oldest_goes():
    """A dropped request takes no more marks: half a story would mislead."""
    timeline = Timeline(2)
    for name in "abc":
        timeline.mark(name, "accepted", 0.0)
    timeline.mark("a", "finished", 1.0, index=0, reason="stop")
    assert timeline.request_ids() == ("b", "c")
    assert timeline.of("a") == ()


def test_an_id_used_again_begins_a_new_story():
    """After ``released`` the next ``accepted`` of the same id starts afresh."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)
    timeline.mark("r", "admitted", 0.0)
    timeline.mark("r", "released", 1.0)
    timeline.mark("r", "token_written", 1.5, count=1, index=0)
    assert timeline.of("r")[-1]["what"] == "token_written"
    timeline.mark("r", "accepted", 2.0)
    assert timeline.of("r") == ({"what": "accepted", "time": 2.0},)


def test_what_was_handed_out_does_not_change():
    """A reader's events are copies."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)
    timeline.mark("r", "scheduled", 1.0, step=1, num_tokens=3)
    before = timeline.of("r")
    timeline.mark("r", "scheduled", 2.0, step=2, num_tokens=3)
    assert before[1]["num_tokens"] == 3


def test_marks_from_several_threads_are_all_counted():
    """Sums are exact under contention."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)

    def work():
        for _ in range(500):
            timeline.mark("r", "token_written", 1.0, count=1, index=0)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timeline.of("r")[1]["count"] == 2000


def test_latencies_tell_engine_and_transport_apart():
    """Each delay is derived from the events that bound it."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 10.0)
    timeline.mark("r", "started", 11.0)
    timeline.mark("r", "first_token", 12.0)
    for time in (12.0, 12.5, 13.0):
        timeline.mark("r", "token_ready", time, count=1, index=0)
    timeline.mark("r", "preempted", 13.5, by="x", how="recompute")
    timeline.mark("r", "token_ready", 15.0, count=1, index=0)
    timeline.mark("r", "token_written", 15.25, count=4, index=0)
    assert latencies(timeline.of("r")) == Latencies(
        queue=1.0,
        first_token=2.0,
        token_interval=1.0,
        longest_interval=2.0,
        engine=5.0,
        transport=0.25,
    )


def test_latencies_of_what_has_not_happened_are_none():
    """A refused or waiting request has no latencies, and one token has no interval."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 10.0)
    assert latencies(timeline.of("r")) == Latencies()
    timeline.mark("r", "token_ready", 11.0, count=1, index=0)
    assert latencies(timeline.of("r")).token_interval is None
    assert latencies(timeline.of("r")).first_token == 1.0


@pytest.mark.parametrize(("requests", "events"), [(0, 64), (4, 7)])
def test_a_timeline_too_small_is_an_error(requests, events):
    """The message names both bounds."""
    with pytest.raises(ValueError, match=r"capacity_requests is .* max_events is"):
        Timeline(requests, max_events=events)
