"""Admission: longest first among those that fit; nothing is handed out twice; nobody waits for ever."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill.admission import PATIENCE, Admission, Go, Refuse, Room, Verdict
from wheelmill.peaks import Prediction

GIB = 2**30


def needs(gibs: float, seconds: float = 60.0, **more: object) -> Prediction:
    """Predict by measure: the peak comes within 30 % of the time."""
    peak = int(gibs * GIB)
    fields: dict[str, object] = {
        "settled_at": 0.3,
        "tail_bytes": int(0.4 * peak),
        "basis": "measured",
        "single": True,
        "certain_bytes": peak,
        **more,
    }
    return Prediction(peak_bytes=peak, cpu_seconds=seconds, **fields)  # type: ignore[arg-type]


def room(gibs: float, *, slots: int = 64, free: float | None = None, pending: float = 0, whom: str = "") -> Room:
    return Room(
        hard_bytes=int(gibs * GIB),
        free_bytes=int((gibs if free is None else free) * GIB),
        pending_bytes=int(pending * GIB),
        slots=slots,
        pending_for=whom,
    )


def account(*predictions: Prediction) -> Admission:
    """Leases 0, 1, … wait since their numbers."""
    made = Admission()
    for lease, prediction in enumerate(predictions):
        made.want(lease, prediction, float(lease))
    return made


def gone(verdicts: Sequence[Verdict]) -> list[int]:
    return [verdict.lease for verdict in verdicts if isinstance(verdict, Go)]


def seen(made: Admission, lease: int, gibs: float, *, cpu: float, peak: float | None = None) -> None:
    made.seen(
        lease,
        current_bytes=int(gibs * GIB),
        cpu_seconds=cpu,
        peak_bytes=int((gibs if peak is None else peak) * GIB),
    )


def test_the_longest_first_among_those_that_fit() -> None:
    """A shorter one goes where the longer does not fit; the order is by predicted seconds."""
    made = account(needs(2, 10), needs(7, 90), needs(6, 80), needs(2, 20))
    assert gone(made.admit(5.0, room(12))) == [1, 3, 0]
    assert [each.lease for each in made.running] == [0, 1, 3]
    assert {(each.started, each.reserved_bytes) for each in made.running} == {(5.0, 2 * GIB), (5.0, 7 * GIB)}
    assert [each.lease for each in made.waiting] == [2]
    assert made.waiting[0].reason == "needs 6.0 GiB, and 1.0 GiB is neither used nor promised"
    assert (made.running_count, made.waiting_count, made.reserved_bytes) == (3, 1, 11 * GIB)


def test_what_is_promised_is_not_handed_out_twice() -> None:
    """Memory that the running ones will still grow into counts as used, here and in other builds."""
    made = account(needs(6), needs(6))
    assert gone(made.admit(0.0, room(11))) == [0]
    assert made.pending_bytes == 6 * GIB
    seen(made, 0, 2, cpu=5)
    assert made.pending_bytes == 4 * GIB
    assert gone(made.admit(1.0, room(11, free=9))) == []
    assert gone(made.admit(1.0, room(11, free=10, pending=1, whom="vllm"))) == []
    assert made.waiting[0].reason == (
        "needs 6.0 GiB, and 5.0 GiB is neither used nor promised; 1.0 GiB is promised to vllm"
    )
    assert gone(made.admit(1.0, room(12, free=10))) == [1]


def test_slots_bound_too() -> None:
    """Cores, or what the user asked for."""
    made = account(needs(1), needs(1), needs(1))
    assert gone(made.admit(0.0, room(64, slots=2))) == [0, 1]
    assert made.waiting[0].reason == "2 run at once, and all of them are taken"
    made.release(0)
    assert gone(made.admit(1.0, room(64, slots=2))) == [2]


def test_more_than_the_machine_has_is_refused_at_once() -> None:
    """With the arithmetic and what to change; the others go on."""
    made = account(needs(7), needs(2))
    verdicts = made.admit(0.0, room(6))
    assert verdicts == [
        Refuse(
            lease=0,
            reason="needs 7.0 GiB, and 6.0 GiB may be used here even by one alone. "
            "Raise the container's limit or --memory, or build on a larger machine.",
        ),
        Go(lease=1, reserved_bytes=2 * GIB),
    ]
    assert made.waiting == ()


def test_a_margin_or_a_guess_does_not_refuse() -> None:
    """What is not certain runs, alone, with all there is."""
    made = account(needs(7, certain_bytes=int(6.5 * GIB)), needs(9, 50, basis="class", certain_bytes=0))
    assert made.admit(0.0, room(6.6)) == [Go(lease=0, reserved_bytes=int(6.6 * GIB))]
    made.release(0)
    assert made.admit(1.0, room(6.6, free=6.4)) == [Go(lease=1, reserved_bytes=int(6.4 * GIB))]


def test_one_waits_for_the_memory_of_others() -> None:
    """Other programs hold it, or another build of this user was promised it; the reason says whom."""
    made = account(needs(7))
    assert made.admit(0.0, room(20, free=5)) == []
    assert made.waiting[0].reason == (
        "needs 7.0 GiB, and 5.0 GiB is neither used nor promised: other programs hold the rest"
    )
    assert made.admit(0.0, room(20, free=8, pending=2, whom="vllm")) == []
    assert made.waiting[0].reason.endswith("; 2.0 GiB is promised to vllm")
    assert gone(made.admit(0.0, room(20, free=9, pending=2))) == [0]


def guessed(gibs: float) -> Prediction:
    return needs(gibs, basis="default", certain_bytes=0)


def test_in_a_small_limit_the_build_itself_counts() -> None:
    """What the build's own programs hold, 0.15 GiB of 0.75, keeps no guess from running alone."""
    made = account(guessed(2.5))
    assert gone(made.admit(0.0, room(0.75, free=0.6))) == [0]
    assert made.reserved_bytes == int(0.6 * GIB)


def test_a_guess_does_not_wait_for_ever_for_other_programs() -> None:
    """After 20 seconds in which nothing ran, a guess runs with what there is; what is certain waits still."""
    made = account(guessed(6.0), needs(5.0, seconds=90.0))
    small = room(8.0, free=4.0)
    assert [gone(made.admit(now, small)) for now in (0.0, 10.0, 19.9)] == [[], [], []]
    assert gone(made.admit(20.0, small)) == [0]
    assert gone(made.admit(90.0, small)) == []
    made.release(0)
    assert [gone(made.admit(now, small)) for now in (91.0, 200.0)] == [[], []]
    assert gone(made.admit(201.0, room(8.0, free=5.5))) == [1]


def test_idleness_counts_from_the_end_of_the_last_one() -> None:
    """One that comes while another runs waits its own 20 seconds after that."""
    made = account(needs(3.0))
    small = room(8.0, free=4.0)
    assert gone(made.admit(0.0, small)) == [0]
    made.want(1, guessed(6.0), 1.0)
    assert gone(made.admit(100.0, small)) == []
    made.release(0)
    assert [gone(made.admit(now, small)) for now in (101.0, 120.9, 121.0)] == [[], [], [1]]


def test_one_that_was_passed_over_too_often_is_waited_for() -> None:
    """Then no shorter one goes before it, until it fits."""
    made = account(needs(3, 500), needs(8, 100))
    assert gone(made.admit(0.0, room(10))) == [0]
    for lease in range(2, PATIENCE + 2):
        made.want(lease, needs(1, 5), 1.0)
        assert gone(made.admit(1.0, room(10))) == [lease]
        made.release(lease)
    assert made.waiting[0].passed == PATIENCE
    made.want(999, needs(1, 5), 2.0)
    made.want(1000, needs(1, 400), 2.0)
    assert gone(made.admit(2.0, room(10))) == []
    assert [each.lease for each in made.waiting] == [1, 1000, 999]
    made.release(0)
    assert gone(made.admit(3.0, room(10))) == [1, 1000, 999]


# what running ones hold


def test_a_reservation_grows_with_use() -> None:
    """Whatever was predicted."""
    made = account(needs(2))
    made.admit(0.0, room(10))
    seen(made, 0, 5, cpu=1)
    assert (made.reserved_bytes, made.pending_bytes) == (5 * GIB, 0)
    seen(made, 0, 1, cpu=2)
    assert made.running[0].peak_bytes == 5 * GIB


def test_a_reservation_shrinks_when_the_peak_has_passed() -> None:
    """Late enough, low enough, and after a peak like the predicted one; the tail with a margin is kept."""
    made = account(needs(10, 100))
    made.admit(0.0, room(10))
    seen(made, 0, 9, cpu=28)
    seen(made, 0, 1, cpu=30)
    assert made.reserved_bytes == 10 * GIB
    seen(made, 0, 7, cpu=35)
    assert not made.running[0].shrunk
    seen(made, 0, 1, cpu=35)
    assert made.running[0].shrunk
    assert made.reserved_bytes == int(int(4 * GIB) * 1.1)
    seen(made, 0, 6, cpu=36)
    assert made.reserved_bytes == 6 * GIB


def test_a_peak_that_has_not_come_yet_does_not_pass() -> None:
    """2 of 10 GiB is no peak."""
    made = account(needs(10, 100, single=False))
    made.admit(0.0, room(10))
    seen(made, 0, 1, cpu=90, peak=2)
    assert made.reserved_bytes == 10 * GIB


def test_a_larger_peak_has_a_larger_tail() -> None:
    """In the same proportion."""
    made = account(needs(10, 100))
    made.admit(0.0, room(30))
    seen(made, 0, 1, cpu=40, peak=20)
    assert made.reserved_bytes == int(int(4 * GIB) * 1.1 * 2)


def test_where_no_run_tells_when_the_peak_passes() -> None:
    """One architecture, one thread: below half the peak for 5 CPU seconds, after 40 % of the time; half is kept."""
    made = account(needs(10, 100, basis="class", settled_at=1.0, tail_bytes=0))
    made.admit(0.0, room(10))
    seen(made, 0, 6, cpu=20)
    seen(made, 0, 2, cpu=30)
    seen(made, 0, 2, cpu=38)
    assert made.reserved_bytes == 10 * GIB
    seen(made, 0, 4, cpu=41)
    seen(made, 0, 2, cpu=42)
    assert made.reserved_bytes == 10 * GIB
    seen(made, 0, 2, cpu=47)
    assert made.reserved_bytes == 3 * GIB


def test_several_architectures_of_which_nothing_is_known_keep_their_peak() -> None:
    """Each has a peak of its own, and the last may be to come."""
    made = account(needs(10, 100, basis="class", settled_at=1.0, single=False))
    made.admit(0.0, room(10))
    for cpu in range(0, 100, 10):
        seen(made, 0, 1, cpu=cpu, peak=9)
    assert made.reserved_bytes == 10 * GIB


# kills


def test_a_killed_compile_gets_more_and_at_last_the_machine() -> None:
    """30 % more than it had; the third time nothing runs beside it; after that it is refused."""
    made = account(needs(4, 90), needs(1, 10), needs(1, 9))
    made.admit(0.0, room(20))
    made.again(0, 5 * GIB, 1.0)
    [waits] = made.waiting
    assert (waits.attempt, waits.need_bytes, waits.alone) == (2, int(6.5 * GIB), False)
    assert gone(made.admit(1.0, room(20, free=18))) == [0]
    made.again(0, 2 * GIB, 2.0)
    assert (made.waiting[0].need_bytes, made.waiting[0].alone) == (int(6.5 * GIB * 1.3), True)
    assert gone(made.admit(2.0, room(20, free=18))) == []
    assert made.waiting[0].reason == "one runs alone, after it was killed for memory 2 times"
    made.release(1)
    made.release(2)
    made.want(3, needs(1, 5), 3.0)
    assert gone(made.admit(3.0, room(20))) == [0]
    made.again(0, 5 * GIB, 4.0, by_kernel=False)
    assert gone(made.admit(4.0, room(20))) == [0]
    made.again(0, 5 * GIB, 5.0)
    assert made.admit(5.0, room(20)) == [
        Refuse(
            lease=0,
            reason="killed for memory 4 times, the last time while it ran alone: it used 5.0 GiB, and 20.0 GiB may be "
            "used here. Raise the container's limit or --memory, or build on a larger machine.",
        ),
        Go(lease=3, reserved_bytes=GIB),
    ]


def test_a_retry_that_grew_beyond_the_machine_runs_with_all_of_it() -> None:
    """30 % more of most of it is more than there is: no ground to refuse."""
    made = account(needs(9))
    made.admit(0.0, room(10))
    made.again(0, 9 * GIB, 1.0)
    assert made.admit(1.0, room(10, free=9.5)) == [Go(lease=0, reserved_bytes=int(9.5 * GIB))]


def test_the_youngest_is_the_victim() -> None:
    """Least work is lost; never the oldest, so that one always gets through."""
    made = account(needs(1), needs(1), needs(1))
    assert made.victim(0.0) is None
    made.admit(0.0, room(10, slots=1))
    assert made.victim(0.0) is None
    made.admit(1.0, room(10, slots=2))
    made.admit(2.0, room(10, slots=3))
    assert made.victim(3.0) == 2
    made.again(2, GIB, 3.0)
    assert made.victim(3.0) == 1


def test_strangers_are_ignored() -> None:
    """A lease that went while it was measured; a second want replaces the first."""
    made = account(needs(1))
    seen(made, 7, 1, cpu=1)
    made.again(7, 1, 1.0)
    made.release(7)
    made.want(0, needs(3), 1.0)
    [waits] = made.waiting
    assert (waits.need_bytes, waits.since) == (3 * GIB, 1.0)


# laws

PREDICTIONS = st.builds(
    lambda gibs, seconds, basis, single: needs(
        gibs, seconds, basis=basis, single=single, certain_bytes=int(gibs * GIB) if basis == "measured" else 0
    ),
    st.sampled_from([0.5, 1, 2, 3, 4, 6, 7.5]),
    st.integers(1, 400),
    st.sampled_from(["measured", "class"]),
    st.booleans(),
)


@settings(max_examples=60)
@given(st.lists(PREDICTIONS, min_size=1, max_size=30), st.integers(1, 6), st.integers(3, 20), st.data())
def test_a_build_in_any_order_of_events(
    predictions: list[Prediction], slots: int, gibs: int, data: st.DataObject
) -> None:
    """Never more reserved than there is, every lease ends by a start and an end or a refusal, the oldest never dies."""
    made, size = account(*predictions), gibs * GIB
    ended: set[int] = set()
    kills = 0
    for now in range(len(predictions) * 4):
        free = size - sum(each.current_bytes for each in made.running)
        verdicts = made.admit(float(now), replace(room(gibs, slots=slots), free_bytes=free))
        ended |= {verdict.lease for verdict in verdicts if isinstance(verdict, Refuse)}
        assert made.reserved_bytes <= size
        assert made.running_count <= slots
        assert made.running_count or not made.waiting_count
        if not made.running_count:
            break
        oldest = made.running[0].lease
        one = data.draw(st.sampled_from(made.running))
        part = data.draw(st.sampled_from([0.1, 0.4, 0.9]))
        made.seen(
            one.lease,
            current_bytes=int(part * one.reserved_bytes),
            cpu_seconds=one.cpu_seconds + data.draw(st.sampled_from([1, 30])),
            peak_bytes=int(0.95 * one.reserved_bytes),
        )
        victim = made.victim(float(now))
        assert victim != oldest
        if victim is not None and kills < len(predictions) and data.draw(st.integers(0, 3)) == 0:
            made.again(victim, 0, float(now))
            kills += 1
        else:
            made.release(oldest)
            ended.add(oldest)
    assert ended == set(range(len(predictions)))


@settings(max_examples=30)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=80), st.integers(30, 60))
def test_nobody_starves(seconds: list[int], large: int) -> None:
    """However many shorter ones come, a large one goes after a bounded number of them."""
    made = Admission()
    made.want(-1, needs(1, 10_000), 0.0)
    made.admit(0.0, room(8))
    made.want(-2, needs(7.5, large), 0.0)
    before = 0
    for lease in range(4 * PATIENCE + 8):
        made.want(lease, needs(1, seconds[lease % len(seconds)]), float(lease))
        started = gone(made.admit(float(lease), room(8, slots=3)))
        before += len(started)
        for each in started:
            made.release(each)
        if made.waiting[0].passed >= PATIENCE or not started:
            break
    made.release(-1)
    assert -2 in gone(made.admit(9999.0, room(8, slots=3)))
    assert before <= PATIENCE


@pytest.mark.parametrize("count", [250])
def test_many_waiting_ones_cost_little(count: int) -> None:
    """One pass over all that wait, and no more, for each admission."""
    made = account(*[needs(1 + lease % 5, 1 + lease % 77) for lease in range(count)])
    done = 0
    while made.running_count or made.waiting_count:
        made.admit(0.0, room(30, slots=16))
        for each in made.running[:2]:
            made.release(each.lease)
            done += 1
    assert done == count
