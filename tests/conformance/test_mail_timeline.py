"""Events within a span of time."""

from conformance.boxes import Box
from conformance.promises.given import Office, reservation
from postroom.contracts.mail import Span

DAY = Span(begin=100, end=200)


def test_every_execution_of_a_run_is_an_attempt(box: Box, here: Office) -> None:
    ada = here.ada.id
    box.begin_run("r", ada, 10)
    box.begin_run("r", ada, 20)
    box.end_run("r", now=30, outcome="failed", error="HTTP 529 é" * 1_000)
    box.begin_run("r", ada, 40)
    box.end_run("r", now=50, outcome="waiting", asked_at={"q": 45})
    box.begin_run("r", ada, 60)
    box.end_run("r", now=70, outcome="cancelled")
    box.end_run("r", now=80)
    found = box.attempts_of_runs(["r"])
    assert [(one.queued_at, one.began_at, one.ended_at, one.outcome, one.waited_until) for one in found] == [
        (10, 10, 20, "cut_off", None),
        (20, 20, 30, "failed", None),
        (30, 40, 50, "waiting", 60),
        (60, 60, 70, "cancelled", None),
    ]
    assert found[1].error.startswith("HTTP 529 é")
    assert len(found[1].error) == 2_000
    assert box.attempts_of_runs(["s"]) == []
    box.begin_run("s", ada, 5)
    box.end_run("s", now=6, outcome="waiting", asked_at={"q": 5})
    box.withdraw_questions("s", ada, ["q"], now=9)
    assert [one.waited_until for one in box.attempts_of_runs(["s"])] == [9]


def test_attempts_of_a_span_are_grouped_but_for_those_to_be_seen(box: Box, here: Office) -> None:
    ada, ben = here.ada.id, here.ben.id
    both = [ada, ben]
    for number, at in enumerate((99, 100, 104, 109, 110, 150, 199, 200)):
        box.begin_run(f"r{number}", ada, at)
        box.end_run(f"r{number}", now=at + 3, outcome={104: "failed", 110: "cancelled"}.get(at, "done"))
    box.begin_run("waits", ben, 120)
    box.end_run("waits", now=130, outcome="waiting", asked_at={"q": 125})
    box.begin_run("works", ben, 140)
    groups = box.attempt_groups(both, DAY, step=10)
    assert [(one.agent_id, one.count, one.began_at, one.ended_at, one.is_cancelled) for one in groups] == [
        (ada, 2, 100, 112, False),
        (ada, 1, 110, 113, True),
        (ada, 1, 150, 153, False),
        (ada, 1, 199, 202, False),
    ]
    assert [(one.run_id, one.queued_at) for one in groups[1:]] == [("r4", 110), ("r5", 150), ("r6", 199)]
    alone = [[one.run_id for one in box.attempts_alone(both, DAY, limit=limit)] for limit in (9, 1)]
    assert alone == [["r2", "waits", "works"], ["works"]]
    assert box.attempt_count(both, DAY) == (8, 2)
    assert box.attempt_count([ben], Span(begin=0, end=100)) == (0, 0)
    assert [one.run_id for one in box.attempts_before(both, 100)] == ["r0"]
    assert box.attempts_alone([], DAY, limit=9) == []


def test_messages_of_a_span_are_found_and_counted(box: Box, here: Office) -> None:
    ada, ben, cyd = here.ada, here.ben, here.cyd
    project = here.project.id
    ids = [
        box.put(who, [reader], now=now, thread=thread, kind=kind).id
        for who, reader, now, thread, kind in (
            (ada, ben, 99, "t", "to"),
            (ada, ben, 100, "t", "to"),
            (ben, cyd, 150, "u", "to"),
            (ben, ada, 150, "u", "bcc"),
            (cyd, ben, 199, "t", "to"),
            (ada, ben, 200, "t", "to"),
        )
    ]

    def found(limit: int = 9, **only) -> list[int]:
        return [one.id for one in box.written(project, DAY, limit=limit, **only)]

    assert (found(), found(2)) == (ids[1:5], ids[3:5])
    assert found(thread_id="t") == [ids[1], ids[4]]
    assert found(agent_id=cyd.id) == [ids[2], ids[4]]
    assert found(agent_id=ada.id) == [ids[1]]
    assert found(agent_id=cyd.id, thread_id="u") == [ids[2]]
    # With more in the span than is asked for, what else narrows them is looked up first.
    assert found(1, thread_id="t") == [ids[4]]
    assert found(1, agent_id=ada.id) == [ids[1]]
    assert found(1, agent_id=cyd.id) == [ids[4]]
    assert found(1, agent_id=cyd.id, thread_id="u") == [ids[2]]
    assert box.written_counts(project, DAY, parts=4, most=9) == [1, 0, 2, 1]
    assert box.written_counts(project, DAY, parts=2, most=2) == [1, 2]
    assert (box.begin_of(project), box.begin_of(99)) == (99, None)


def test_messages_into_another_project_are_found_and_counted(box: Box, here: Office, there: Office) -> None:
    home, other, zoe = here.project.id, there.project.id, there.ada
    ada, cyd = here.ada.id, here.cyd.id
    sent = [
        box.put(who, readers, now=now, kind=kind).id
        for who, readers, now, kind in (
            (here.ada, [zoe], 99, "to"),
            (here.ada, [zoe, here.ben], 100, "to"),
            (here.ben, [here.cyd], 150, "to"),
            (here.cyd, [zoe], 160, "bcc"),
            (here.ada, [zoe], 199, "to"),
        )
    ]
    into = [[one.id for one in box.written_into(home, DAY, to=other, limit=limit)] for limit in (9, 1)]
    assert into == [[sent[1], sent[4]], [sent[4]]]
    assert [box.written_count(home, DAY, most=most) for most in (9, 3)] == [4, 3]
    assert [box.written_count(home, DAY, most=most, to=other) for most in (9, 1)] == [2, 1]
    assert box.written_count(other, DAY, most=9) == 0
    part = [box.took_part(home, DAY, newest=newest) for newest in (9, 2, 1)]
    assert part == [
        sorted({ada, here.ben.id, cyd, zoe.id}),
        sorted({ada, cyd, zoe.id}),
        sorted({ada, zoe.id}),
    ]


def test_reservations_of_a_span_are_those_held_in_it(box: Box, here: Office) -> None:
    ids = [
        reservation(box, here.ada, prefix, now=at).id for prefix, at in (("a", 100), ("b", 101), ("c", 109))
    ]
    box.release_reservation(ids[0], now=102, by="Ada", reason="done")

    def found(begin: int, end: int, *, since: int = 100, limit: int = 9) -> list[int]:
        span = Span(begin=begin, end=end)
        return [one.id for one in box.reservations_in(here.project.id, span, since=since, limit=limit)]

    assert found(100, 109) == ids[:2]
    assert found(102, 110) == found(100, 110, since=101) == ids[1:]
    assert found(100, 110, limit=1) == ids[2:]
