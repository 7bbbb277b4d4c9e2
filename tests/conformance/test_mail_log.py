"""The logs of projects: whole, without gaps, undone with their change."""

import asyncio
from collections.abc import Callable

from conformance.boxes import Box, on_each
from conformance.promises.given import Office, agent, an_office, never_made, put_message
from postroom.contracts.waking import AskedQuestion, MessageRun
from postroom.stores.mail.store import MailStore

TOGETHER = 30
FURNISHED = 4
"""Entries that an office begins with: itself and its agents."""


def told(box: Box, office: Office, *, after: int = FURNISHED) -> list[tuple[object, ...]]:
    """Return the new entries: kind, instant, agent and detail."""
    found = [one.happening for one in box.project_events(office.project.id, after=after, limit=999)]
    return [(one.kind, one.at, one.agent_id, dict(one.detail)) for one in found]


def test_a_message_is_told_once_in_each_project_and_marked_where_only_hidden_copies_came(
    box: Box, here: Office, there: Office
) -> None:
    box.change(lambda tx: agent(tx, there.project.id, "Dot"))
    ada, readers = here.ada.id, [here.ben, there.ada, there.ben]
    sent = box.put(here.ada, readers, thread="t", importance="high", now=5)
    hidden = box.put(here.ada, [there.ada], kind="bcc", thread="t", now=6)
    for message, now in ((sent, 7), (sent, 8), (hidden, 9)):
        box.mark_recalled(message.id, now)
    detail = {"thread_id": "t", "importance": "high"}
    normal = {"thread_id": "t", "importance": "normal"}
    assert told(box, here) == [
        ("message.sent", 5, ada, detail),
        ("message.sent", 6, ada, normal),
        ("message.recalled", 7, ada, {}),
        ("message.recalled", 9, ada, {}),
    ]
    assert told(box, there, after=FURNISHED + 1) == [
        ("message.sent", 5, ada, detail),
        ("message.sent", 6, ada, {**normal, "hidden": True}),
        ("message.recalled", 7, ada, {}),
        ("message.recalled", 9, ada, {"hidden": True}),
    ]
    [entry] = box.project_events(there.project.id, after=FURNISHED + 1, limit=1)
    assert (entry.project_id, entry.seq) == (there.project.id, FURNISHED + 2)
    assert entry.happening.message_id == sent.id


def test_each_step_of_a_delivery_is_told_once_to_both_projects(box: Box, here: Office, there: Office) -> None:
    reader = there.ada.id
    sent = box.put(here.ada, [there.ada], now=5).id
    run = {"message_id": sent, "agent_id": reader, "run_id": "r", "delivered_at": 7}
    for _ in range(2):
        box.mark_announced(reader, [sent, 99], by="hook", now=6)
    for mark, now in ((box.mark_acked, 8), (box.mark_acked, 8), (box.mark_read, 9)):
        mark(sent, reader, now)
    box.put_message_run(MessageRun(**run))
    box.put_message_run(MessageRun(**run, ended_at=11, failure="why"))
    for home in (here, there):
        assert told(box, home)[1:] == [
            ("delivery.announced", 6, reader, {"by": "hook"}),
            ("delivery.read", 8, reader, {}),
            ("delivery.acknowledged", 8, reader, {}),
            ("delivery.delivered", 7, reader, {}),
            ("delivery.failed", 11, reader, {}),
        ]
    [last] = box.project_events(here.project.id, after=9, limit=1)
    assert (last.happening.run_id, last.happening.message_id) == ("r", sent)


def test_a_run_and_its_questions_are_told(box: Box, here: Office) -> None:
    ada, question = here.ada.id, AskedQuestion(id="q", text="SECRET")
    box.begin_run("r", ada, 5)
    for now in (6, 7):  # the same question again, or the end of no run, is not told
        box.ask("r", ada, question, now)
    box.end_run("r", now=8, outcome="waiting", asked_at={"q": 8})
    box.end_run("r", now=9)
    box.begin_run("r", ada, 10, answered=["q"])
    box.end_run("r", now=11, outcome="failed")
    box.begin_run("s", ada, 12)
    box.begin_run("s", ada, 13)  # one that begins while it is at work was cut off before
    box.end_run("s", now=14, outcome="waiting", asked_at={"p": 13, "q": 14})
    box.begin_run("s", ada, 15, answered=["p"])
    box.end_run("s", now=16, outcome="waiting", asked_at={"q": 14})
    box.begin_run("s", ada, 17)
    box.end_run("s", now=18)
    box.end_run("r", "cancelled", now=19, inactive=ada)
    box.withdraw_questions("r", ada, ["q", "p"], now=19)
    assert [(kind, at, *detail.values()) for kind, at, who, detail in told(box, here) if who == ada] == [
        ("run.began", 5),
        ("question.asked", 6, "q"),
        ("run.waiting", 8),
        ("question.answered", 10, "q"),
        ("run.began", 10),
        ("run.failed", 11),
        ("run.began", 12),
        ("run.cut_off", 13),
        ("run.began", 13),
        ("question.asked", 14, "p"),
        ("question.asked", 14, "q"),
        ("run.waiting", 14),
        ("question.answered", 15, "p"),
        ("run.began", 15),
        ("run.waiting", 16),
        ("run.began", 17),
        ("run.ended", 18),
        ("run.failed", 19, True),
        ("question.withdrawn", 19, "q"),
        ("question.withdrawn", 19, "p"),
    ]


def test_a_question_outside_a_run_is_told_without_a_run_or_an_attempt(box: Box, here: Office) -> None:
    ada = here.ada.id
    box.begin_run("r", ada, 5, is_question=True)
    box.end_run("r", now=6, outcome="waiting", asked_at={"q": 6}, is_question=True)
    box.begin_run("r", ada, 7, answered=["q"], is_question=True)
    box.begin_run("r", ada, 8, answered=["q"], is_question=True)  # its server was lost before it ended
    box.end_run("r", now=9, is_question=True)
    assert [(kind, at, *detail.values()) for kind, at, who, detail in told(box, here) if who == ada] == [
        ("question.asked", 6, "q"),
        ("question.answered", 7, "q"),
    ]
    assert box.attempts_of_runs(["r"]) == []


@on_each
async def test_a_log_has_no_gaps_under_concurrent_writers(mail_store: MailStore) -> None:
    here, there = await an_office(mail_store), await an_office(mail_store, "shore")

    async def work(number: int) -> None:
        home = here if number % 3 else there
        if number % 2:
            await never_made(mail_store, lambda tx: put_message(tx, home.ada, [here.ben]))
        await mail_store.write(lambda tx: put_message(tx, home.ada, [home.ben, home.cyd]))

    async with asyncio.TaskGroup() as group:
        for number in range(TOGETHER):
            group.create_task(work(number))
    for home, messages in ((here.project.id, TOGETHER * 2 // 3), (there.project.id, TOGETHER // 3)):
        look: Callable = lambda tx, home=home: tx.project_events(home, after=0, limit=999)  # noqa: E731
        found = await mail_store.read(look)
        assert [one.seq for one in found] == list(range(1, FURNISHED + messages + 1))


def test_a_log_is_trimmed_from_its_beginning_and_never_of_its_newest(
    box: Box, here: Office, there: Office
) -> None:
    home = here.project.id

    def trim(keep: int, limit: int) -> tuple[int, int, int]:
        gone, bounds = box.trim_log(home, keep=keep, limit=limit), box.log_bounds(home)
        return gone, bounds.oldest, bounds.newest

    assert trim(4, 9) == (0, 0, 4)
    box.undo(lambda tx: tx.trim_log(home, keep=1, limit=9))
    assert [trim(2, 1), trim(2, 9), trim(0, 9), trim(1, 9)] == [(1, 1, 4), (1, 2, 4), (1, 3, 4), (0, 3, 4)]
    agent(box, home, "Dot")
    assert [one.seq for one in box.project_events(home, after=0, limit=9)] == [4, 5]
    assert box.log_bounds(there.project.id).oldest == 0
    assert box.trim_log(99, keep=1, limit=9) == 0
