"""The timeline: folded, bounded, thread-safe, and the latencies derived from it."""

from threading import Thread

import pytest

from enginebay.runs import Run
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
        token_transport=2.5,
        longest_token_transport=3.25,
    )


def test_latencies_of_what_has_not_happened_are_none():
    """A refused or waiting request has no latencies, and one token has no interval."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 10.0)
    assert latencies(timeline.of("r")) == Latencies()
    timeline.mark("r", "token_ready", 11.0, count=1, index=0)
    assert latencies(timeline.of("r")).token_interval is None
    assert latencies(timeline.of("r")).first_token == 1.0


def test_each_step_and_each_token_keeps_its_own_time():
    """Behind the sums lie every mark's time, step and count, and when its step ended."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)
    timeline.scheduled(7, 1.0, [("r", 0, 40), ("gone", 0, 1)])
    timeline.step_ended(7, 1.5)
    timeline.scheduled(8, 2.0, [("r", 0, 3)])
    timeline.tokens("token_ready", "r", 0, 2.5, 1)
    timeline.tokens("token_ready", "r", 0, 3.5, 2)
    timeline.tokens("token_written", "r", 0, 3.75, 3)
    _, steps, ready, written = timeline.of("r")
    assert (steps["times"], steps["steps"], steps["counts"]) == ([1.0, 2.0], [7, 8], [40, 3])
    assert steps["ends"] == [1.5, None]
    assert (ready["times"], ready["counts"], ready["count"]) == ([2.5, 3.5], [1, 2], 3)
    assert (written["times"], written["counts"]) == ([3.75], [3])
    assert "steps" not in ready


def test_each_change_of_a_wait_keeps_its_time():
    """Waiting for blocks, then tokens, then blocks again: two events, three times."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)
    for time, reason in ((1.0, "blocks"), (2.0, "tokens"), (3.0, "blocks")):
        timeline.mark("r", "waiting", time, reason=reason, index=0)
    _, blocks, tokens = timeline.of("r")
    assert (blocks["reason"], blocks["times"], tokens["times"]) == ("blocks", [1.0, 3.0], [2.0])


def test_details_of_one_request_are_bounded_and_its_sums_stay():
    """The oldest times go; what is summed over the run is what it was without a bound."""
    bounded, free = Timeline(4, max_details=300), Timeline(4)
    for timeline in (bounded, free):
        timeline.mark("r", "accepted", 0.0)
        for step in range(1000):
            timeline.scheduled(step, step * 1.25, [("r", 0, 2)])
            timeline.tokens("token_ready", "r", 0, step**1.5, 1)
    assert bounded.num_details <= 300 + 64 * 2
    details = ("times", "counts", "steps", "ends")
    for less, more in zip(bounded.of("r"), free.of("r"), strict=True):
        assert [less.get(k) for k in less if k not in details] == [
            more.get(k) for k in more if k not in details
        ]
        kept = less.get("times", [])
        assert kept == more.get("times", [])[-len(kept) :]
    assert 0 < len(bounded.of("r")[1]["times"]) < 300


def test_the_longest_gap_outlives_the_marks_around_it():
    """It is known whichever of its two marks, or both, were dropped."""
    for count in range(5):
        run = Run("token_ready", 0.0, -1, {})
        for time in (0.0, 1.0, 10.0, 11.0):
            run.times.append(time)
            run.amounts.append(1)
        assert run.drop(count) == count
        event = run.event()
        assert (event["longest_gap"], event["until"], event["count"]) == (9.0, 11.0, 4)


def test_details_of_all_requests_are_bounded_and_the_oldest_go_first():
    """Many long answers take no more room than the bound; the latest keep their times."""
    timeline = Timeline(64, max_total_details=1000)
    for number in range(32):
        timeline.mark(f"r{number}", "accepted", 0.0)
        for time in range(200):
            timeline.tokens("token_ready", f"r{number}", 0, float(time), 1)
        assert timeline.num_details <= 1000 + 64
    assert "times" not in timeline.of("r3")[1]
    assert timeline.of("r3")[1]["count"] == 200
    assert len(timeline.of("r31")[1]["times"]) == 200
    kept = sum(len(timeline.of(name)[1].get("times", [])) for name in timeline.request_ids())
    assert kept == timeline.num_details


def test_dropping_a_request_takes_its_details_out_of_the_count():
    """By capacity, and when its id begins a new story."""
    timeline = Timeline(1)
    timeline.mark("a", "accepted", 0.0)
    timeline.tokens("token_ready", "a", 0, 1.0, 1)
    timeline.mark("a", "released", 2.0)
    timeline.mark("a", "accepted", 3.0)
    assert timeline.num_details == 0
    timeline.tokens("token_ready", "a", 0, 4.0, 1)
    timeline.mark("b", "accepted", 5.0)
    assert (timeline.num_details, timeline.request_ids()) == (0, ("b",))


def test_refused_requests_push_no_running_one_out():
    """Under overload those that ended go first, however many come."""
    timeline = Timeline(4)
    timeline.mark("running", "accepted", 0.0)
    for number in range(50):
        timeline.mark(f"r{number}", "accepted", 1.0)
        timeline.mark(f"r{number}", "refused", 1.0, plugin="q", reason="queue_full")
    assert timeline.request_ids() == ("running", "r47", "r48", "r49")


def test_a_moment_of_one_choice_ends_no_run_of_another():
    """Sixteen choices that start and end one by one stay within the bound of events."""
    timeline = Timeline(4)
    timeline.mark("r", "accepted", 0.0)
    for turn in range(64):
        for index in range(16):
            if turn == index:
                timeline.mark("r", "started", turn, index=index)
            if turn >= index:
                timeline.scheduled(turn, turn, [("r", index, 1)])
                timeline.tokens("token_ready", "r", index, turn, 1)
            if turn == 40 + index:
                timeline.mark("r", "finished", turn, index=index, reason="stop")
    events = timeline.of("r")
    assert not [event for event in events if event["what"] == "omitted"]
    ready = [e for e in events if e["what"] == "token_ready" and e["index"] == 3]
    assert sum(event["count"] for event in ready) == 64 - 3


def test_a_run_that_goes_on_is_not_dropped_for_a_moment():
    """Past the limit of events those go to which nothing is added any more."""
    timeline = Timeline(4, max_events=8)
    timeline.mark("r", "accepted", 0.0)
    for turn in range(50):
        timeline.tokens("token_ready", "r", 0, turn, 1)
        timeline.mark("r", "preempted", turn, index=1, by="x", how="recompute")
    (ready,) = [event for event in timeline.of("r") if event["what"] == "token_ready"]
    assert ready["count"] == 50


def story(*marks):
    """Latencies of one request, from (what, time, facts)."""
    timeline = Timeline(4)
    for what, time, *facts in marks:
        timeline.mark("r", what, time, **(facts[0] if facts else {}))
    return latencies(timeline.of("r"))


def tokens(what, index, *times, count=1):
    """A mark of a choice's tokens at each time."""
    return [(what, time, {"count": count, "index": index}) for time in times]


def test_latencies_of_several_choices():
    """Intervals are within a choice; the first token is whichever came first."""
    found = story(
        ("accepted", 0.0),
        ("started", 1.0, {"index": 0}),
        ("started", 5.0, {"index": 1}),
        ("first_token", 2.0, {"index": 0}),
        *tokens("token_ready", 0, 2.0, 3.0, 4.0),
        ("first_token", 6.0, {"index": 1}),
        *tokens("token_ready", 1, 6.0, 9.0),
        *tokens("token_written", 0, 4.5, count=3),
        *tokens("token_written", 1, 6.25, 10.0),
    )
    assert (found.queue, found.first_token, found.engine) == (1.0, 2.0, 9.0)
    assert (found.token_interval, found.longest_interval) == (5.0 / 3, 3.0)
    assert found.transport == 1.0
    assert (found.token_transport, found.longest_token_transport) == (1.0, 2.5)


def test_a_preemption_is_in_the_intervals():
    """The gap between the runs before and after counts, with both runs' tokens."""
    found = story(
        ("accepted", 0.0),
        *tokens("token_ready", 0, 1.0, 2.0),
        ("preempted", 2.5, {"index": 0, "by": "other", "how": "swap"}),
        ("started", 6.0, {"index": 0}),
        *tokens("token_ready", 0, 7.0, 8.0),
    )
    assert (found.token_interval, found.longest_interval) == (7.0 / 3, 5.0)


def test_drafted_tokens_are_ready_together():
    """Four tokens in two steps: three intervals, two of them empty."""
    found = story(("accepted", 0.0), *tokens("token_ready", 0, 1.0, 4.0, count=2))
    assert (found.token_interval, found.longest_interval) == (1.0, 3.0)


def test_transport_delay_is_unknown_while_tokens_are_not_written():
    """A reader that left has no transport delay below zero."""
    found = story(
        ("accepted", 0.0),
        *tokens("token_ready", 0, 1.0, 2.0, 3.0),
        *tokens("token_written", 0, 1.5),
        ("finished", 3.0, {"index": 0, "reason": "cancelled"}),
    )
    assert (found.transport, found.token_transport) == (None, 0.5)


def test_token_delays_pair_the_same_tokens_when_old_times_are_gone():
    """Numbers count from the first token, kept or not."""
    timeline = Timeline(4, max_details=200)
    timeline.mark("r", "accepted", 0.0)
    for number in range(500):
        timeline.tokens("token_ready", "r", 0, float(number), 1)
        if number % 4 == 3:
            timeline.tokens("token_written", "r", 0, number + 0.5, 4)
    found = latencies(timeline.of("r"))
    assert (found.token_transport, found.longest_token_transport) == (2.0, 3.5)


def test_kept_times_are_those_of_the_last_tokens():
    """Of ten tokens two ready times and the reports of five are left: two tokens pair."""
    facts = {"index": 0, "count": 10, "longest_gap": 1.0}
    events = (
        {"what": "accepted", "time": 0.0},
        {"what": "token_ready", "time": 0.0, "until": 9.0, "marks": 10, **facts}
        | {"times": [8.0, 9.0], "counts": [1, 1]},
        {"what": "token_written", "time": 2.0, "until": 9.5, "marks": 3, **facts}
        | {"times": [8.5, 9.75], "counts": [4, 1]},
    )
    found = latencies(events)
    assert (found.token_transport, found.longest_token_transport) == (0.625, 0.75)


def test_a_refusal_has_no_latencies():
    """It was accepted nowhere and waits for nothing."""
    refused = ("refused", 1.25, {"plugin": "q", "reason": "queue_full"})
    assert story(("accepted", 1.0), refused) == Latencies()


def test_omitted_events_are_no_gap():
    """Where events were dropped nothing is known of what lay between."""
    timeline = Timeline(4, max_events=8)
    timeline.mark("r", "accepted", 0.0)
    for turn in range(20):
        timeline.tokens("token_ready", "r", 0, float(turn), 1)
        timeline.tokens("token_ready", "r", 0, turn + 0.25, 1)
        timeline.mark("r", "preempted", turn + 0.5, index=0, by="x", how="recompute")
    found = latencies(timeline.of("r"))
    assert found.longest_interval == 0.75
    assert found.token_transport is None


@pytest.mark.parametrize(("requests", "events"), [(0, 64), (4, 7)])
def test_a_timeline_too_small_is_an_error(requests, events):
    """The message names both bounds."""
    with pytest.raises(ValueError, match=r"capacity_requests is .* max_events is"):
        Timeline(requests, max_events=events)
