"""Events within a span of time."""

from conformance.boxes import Box, on_both
from conformance.promises.given import Office
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


@on_both
def test_executions_and_messages_since_an_instant_are_told_by_project(box: Box, here: Office) -> None:
    ada, project = here.ada.id, here.ada.project_id
    for number, (began, ended) in enumerate(((10, 20), (30, 90), (95, 100), (110, 120))):
        box.begin_run(f"r{number}", ada, began)
        box.end_run(f"r{number}", now=ended, outcome="failed" if number == 2 else "done")
    box.begin_run("works", ada, 130)
    found = box.attempts_since([project, 99], 90, began_since=20, limit=9)
    assert [(one.run_id, one.agent, one.outcome, one.ended_at) for one in found] == [
        ("r3", here.ada.name, "done", 120),
        ("r2", here.ada.name, "failed", 100),
        ("r1", here.ada.name, "done", 90),
    ]
    assert {one.project_id for one in found} == {project}
    assert [one.run_id for one in box.attempts_since([project], 90, began_since=40, limit=1)] == ["r3"]
    assert box.attempts_since([], 0, began_since=0, limit=9) == []
    assert box.messages_since([project, 99], 0) == {}
