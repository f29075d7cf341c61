"""The admission chain: order, exactly one release, and closed when a member fails."""

from threading import Thread

import pytest
import structlog
from msgspec.structs import replace

from enginebay.admission import AdmissionChain
from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.flow import Refusal, Usage
from enginebay.hookspecs.admission import Ask, Load
from enginebay.plugins.schedulers.chunked import Chunked, Options

LOAD = Load(
    now=0.0,
    num_waiting=0,
    num_running=0,
    waiting_tokens=0,
    num_free_blocks=8,
    num_blocks=8,
    requests_per_second=0.0,
)
REFUSAL = Refusal(plugin="no", reason="because", kind="caller", message="no")


class Member:
    """Notes every call; answers, or raises, what it was told to."""

    def __init__(self, answer=None, fails_on_release=False):
        self.answer = answer
        self.fails_on_release = fails_on_release
        self.asked, self.released, self.loads = [], [], []

    def ask(self, ask, load):
        self.asked.append(ask.request_id)
        self.loads.append(load)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def release(self, request_id):
        self.released.append(request_id)
        if self.fails_on_release:
            raise RuntimeError(request_id)


def ask(request_id="r"):
    return Ask(request_id=request_id, tenant="t", n=1, arrival=0.0)


def chain(*members):
    return AdmissionChain([(f"m{index}", member) for index, member in enumerate(members)])


def test_an_admitted_request_is_released_once_by_every_member():
    """However often the request is released, each member hears it once."""
    first, second = Member(), Member()
    admission = chain(first, second)
    assert admission.ask(ask(), LOAD) is None
    assert "r" in admission
    admission.release("r")
    admission.release("r")
    assert first.released == second.released == ["r"]
    assert len(admission) == 0


def test_a_refusal_releases_the_earlier_members_and_nobody_else():
    """The refusing member reserved nothing, and later ones are not asked at all."""
    first, second, third = Member(), Member(REFUSAL), Member()
    admission = chain(first, second, third)
    assert admission.ask(ask(), LOAD) is REFUSAL
    admission.release("r")
    assert first.released == ["r"]
    assert second.released == third.asked == third.released == []


@pytest.mark.parametrize("answer", [RuntimeError("secret.py line 3"), False, "refused"])
def test_a_failing_member_refuses_and_names_itself_only(answer):
    """Fail closed: a 503 that tells the caller which plugin, and nothing of its insides."""
    first = Member()
    admission = chain(first, Member(answer))
    with structlog.testing.capture_logs() as logs:
        refusal = admission.ask(ask(), LOAD)
    assert refusal is not None
    assert (refusal.plugin, refusal.reason, refusal.kind) == ("m1", "plugin_error", "server")
    assert "secret" not in refusal.message
    assert first.released == ["r"]
    assert logs[0]["plugin"] == "m1"


def test_an_interrupt_while_it_is_asked_leaves_no_claims():
    """The caller's thread may be stopped by its user: what was reserved comes back."""
    first, second, third = Member(), Member(KeyboardInterrupt()), Member()
    asked = chain(first, second, third)
    with pytest.raises(KeyboardInterrupt):
        asked.ask(ask(), LOAD)
    assert (first.released, second.released, third.asked) == (["r"], [], [])
    assert len(asked) == 0


def test_a_release_that_raises_does_not_keep_the_others():
    """Every member gets its release, and the failure is logged."""
    first, second, third = Member(), Member(fails_on_release=True), Member()
    admission = chain(first, second, third)
    admission.ask(ask(), LOAD)
    with structlog.testing.capture_logs() as logs:
        admission.release("r")
    assert first.released == second.released == third.released == ["r"]
    assert [log["plugin"] for log in logs] == ["m1"]


def test_an_id_in_use_is_refused_without_asking():
    """Two live requests of one id would give back one reservation for two."""
    member = Member()
    admission = chain(member)
    admission.ask(ask(), LOAD)
    refusal = admission.ask(ask(), LOAD)
    assert refusal is not None
    assert (refusal.kind, refusal.reason) == ("invalid", "duplicate_request_id")
    assert member.asked == ["r"]
    admission.release("r")
    assert admission.ask(ask(), LOAD) is None


def test_load_may_be_measured_under_the_lock():
    """A function is called for the facts once a request, after earlier ones were admitted."""
    member = Member()
    admission = chain(member)
    for name in "abc":
        admission.ask(ask(name), lambda: replace(LOAD, num_waiting=len(admission)))
    assert [load.num_waiting for load in member.loads] == [0, 1, 2]


def test_members_see_one_call_at_a_time():
    """A plain counter in a member stays right under calls from many threads."""

    class Counter(Member):
        count = 0

        def ask(self, ask, load):
            count = self.count
            for _ in range(50):
                assert count == self.count
            self.count = count + 1

        def release(self, request_id):
            self.count -= 1

    member = Counter()
    admission = chain(member)
    errors = []

    def work(name):
        for turn in range(40):
            errors.append(admission.ask(ask(f"{name}-{turn}"), LOAD))
            admission.release(f"{name}-{turn}")

    threads = [Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert member.count == 0
    assert errors == [None] * 160


class Settler(Member):
    """A member that asks what was used."""

    def __init__(self, fails=False):
        super().__init__()
        self.calls = []
        self.fails = fails

    def settle(self, request_id, usage):
        self.calls.append(("settle", request_id, usage.completion_tokens))
        if self.fails:
            raise RuntimeError(request_id)

    def release(self, request_id):
        self.calls.append(("release", request_id))


USAGE = Usage(prompt_tokens=3, completion_tokens=5)


def test_members_that_ask_for_it_learn_what_was_used():
    """Once, before the release; who has no ``settle`` is left alone."""
    plain, settler = Member(), Settler()
    admission = chain(plain, settler)
    admission.ask(ask(), LOAD)
    admission.settle("r", USAGE)
    admission.release("r")
    admission.settle("r", USAGE)
    assert settler.calls == [("settle", "r", 5), ("release", "r")]
    assert plain.released == ["r"]


def test_who_was_turned_away_used_nothing():
    """A later refusal releases without a settlement."""
    settler = Settler()
    admission = chain(settler, Member(REFUSAL))
    admission.ask(ask(), LOAD)
    admission.settle("r", USAGE)
    assert settler.calls == [("release", "r")]


def test_a_settlement_that_raises_keeps_nobody_from_theirs():
    """It is logged, the others are told, and the release follows."""
    broken, settler = Settler(fails=True), Settler()
    admission = chain(broken, settler)
    admission.ask(ask(), LOAD)
    with structlog.testing.capture_logs() as logs:
        admission.settle("r", USAGE)
    admission.release("r")
    assert [log["plugin"] for log in logs] == ["m0"]
    assert [call[0] for call in settler.calls] == [call[0] for call in broken.calls]
    assert settler.calls == [("settle", "r", 5), ("release", "r")]


def test_an_engine_settles_both_chains_with_what_it_generated():
    """All choices together, also for a request that was cut; both chains hear of it."""
    door, budget = Settler(), Settler()
    harness = Harness(
        lambda limits: Chunked(Options(), limits),
        limits_of(),
        door=[("door", door)],
        budget=[("budget", budget)],
    )
    harness.submit(request_of("whole", num_prompt=5, max_tokens=4, n=2))
    harness.finish()
    harness.submit(request_of("cut", num_prompt=5, max_tokens=50))
    for _ in range(3):
        harness.turn()
    harness.cancel("cut")
    harness.finish()
    generated = harness.answers.of["cut"].ended.usage.completion_tokens
    assert 0 < generated < 50
    assert door.calls == budget.calls
    assert door.calls == [
        ("settle", "whole", 8),
        ("release", "whole"),
        ("settle", "cut", generated),
        ("release", "cut"),
    ]
