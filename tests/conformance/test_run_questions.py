"""Questions are found by their numbers, and by the time when they were asked or answered, on both engines."""

import asyncio
import sqlite3
from contextlib import closing

import psycopg
import pytest

from conformance.promises.run_given import run
from conformance.run_backends import Place, Prepared, prepared_stores, run_place
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runs import (
    AnsweredTicket,
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.tools import ResumeDecisionAction, ToolCallResume
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import Transaction
from store_kinds import SCHEMA

__all__ = ["prepared_stores", "run_place"]


def ticket(number: str, at: int) -> RunWaitingTicket:
    return RunWaitingTicket(ticket_id=number, tool_call_id=number, reason="May I?", updated_at=at)


def asking(stores: RunStores, run_id: str, *numbers: str, home: str = "agent:bay", at: int = 1) -> RunRecord:
    waiting = RunWaitingState(
        reason=WaitingReason.USER_INPUT, tickets=tuple(ticket(one, at) for one in numbers)
    )
    details = {"status": RunStatus.WAITING, "waiting": waiting, "created_at": 1, "updated_at": at}
    return run(stores, run_id, thread=f"{home}/{run_id}", **details)


def answered(waiting: RunRecord, number: str, at: int) -> RunRecord:
    decision = ToolCallResume(
        decision_id=f"d{number}", action=ResumeDecisionAction.RESUME, result={"approved": True}, updated_at=at
    )
    asked_at = waiting.waiting.tickets[0].updated_at
    return replace(
        waiting,
        answered=(*waiting.answered, AnsweredTicket(ticket=ticket(number, asked_at), decision=decision)),
    )


async def stored(stores: RunStores, *runs: RunRecord) -> None:
    for one in runs:
        await stores.coordinator.commit(ThreadCommit(thread_id=one.thread_id, run=one))


async def found(stores: RunStores, prefix: str, since: int = 0, limit: int = 9) -> list[str]:
    runs = await stores.store.read(lambda tx: tx.runs.threads.numbered(prefix, since, limit))
    return sorted(one.run_id for one in runs)


async def open_in(stores: RunStores, home: str, limit: int = 9) -> list[str]:
    runs = await stores.store.read(lambda tx: tx.runs.threads.asked_in(home, limit))
    return [one.run_id for one in runs]


async def answered_in(stores: RunStores, home: str, limit: int = 9) -> list[str]:
    runs = await stores.store.read(lambda tx: tx.runs.threads.answered_in(home, limit))
    return [one.run_id for one in runs]


async def test_a_question_is_found_by_its_number_and_by_the_beginning_of_it(
    prepared_stores: Prepared,
) -> None:
    async with prepared_stores.opened() as stores:
        first, second = asking(stores, "r1", "aa0001", "bb0001"), asking(stores, "r2", "aa0002")
        await stored(stores, first, second)
        assert await found(stores, "aa0001") == ["r1"]
        assert await found(stores, "bb") == ["r1"]
        assert await found(stores, "aa") == ["r1", "r2"]
        assert await found(stores, "aa", limit=1) == ["r1"]
        assert await found(stores, "cc") == []
        done = replace(answered(first, "aa0001", 50), status=RunStatus.DONE, waiting=None, finished_at=60)
        await stored(stores, done)
        assert (await found(stores, "aa0001"), await found(stores, "aa0001", since=51)) == (["r1"], [])
        assert await found(stores, "bb0001") == []  # an older release ended its run before it was answered
        await stored(stores, second.ended(TerminationReason.cancelled(), now=70))
        assert (await found(stores, "aa0002"), await found(stores, "aa0002", since=71)) == (["r2"], [])
        assert (await open_in(stores, "agent:bay"), await answered_in(stores, "agent:bay", 1)) == ([], ["r2"])


async def test_the_open_questions_of_a_place_come_in_the_order_in_which_they_were_asked_and_answers_backwards(
    prepared_stores: Prepared,
) -> None:
    async with prepared_stores.opened() as stores:
        runs = [
            asking(stores, name, f"aa000{number}", home=home, at=at)
            for number, (name, home, at) in enumerate(
                [("r1", "agent:bay", 30), ("r2", "agent:bay", 10), ("r3", "chat", 5), ("r4", "agent:bay", 20)]
            )
        ]
        await stored(stores, *runs)
        assert await open_in(stores, "agent:bay") == ["r2", "r4", "r1"]
        assert await open_in(stores, "agent:bay", 2) == ["r2", "r4"]
        assert await open_in(stores, "chat") == ["r3"]
        assert await open_in(stores, "agent:ba") == []
        again = [answered(runs[0], "aa0000", 70), answered(runs[1], "aa0001", 80)]
        await stored(stores, *again)
        assert await open_in(stores, "agent:bay") == ["r4"]
        assert await answered_in(stores, "agent:bay") == ["r2", "r1"]
        assert await answered_in(stores, "agent:bay", 1) == ["r2"]
        await stored(stores, replace(again[1], answered=()))  # the answer was withdrawn
        assert await open_in(stores, "agent:bay") == ["r2", "r4"]
        assert await answered_in(stores, "agent:bay") == ["r1"]


async def test_the_questions_of_a_run_go_with_it(prepared_stores: Prepared) -> None:
    async with prepared_stores.opened() as stores:
        await stored(stores, asking(stores, "r1", "aa0001"))
        assert await stores.threads.delete_thread("agent:bay/r1", children="cascade")
        assert await found(stores, "aa") == []


@pytest.mark.parametrize("once_numbered", [False, True])
async def test_a_question_that_an_older_release_has_stored_is_found_before_and_after_its_number_is_stored(
    prepared_stores: Prepared, run_place: Place, once_numbered: bool
) -> None:
    async with prepared_stores.opened() as stores:
        before = asking(stores, "r1", "aa0001", at=5)
        now = replace(asking(stores, "r1", "bb0001", at=6), answered=answered(before, "aa0001", 5).answered)
        if once_numbered:
            await stored(stores, before)
        await stored(stores, now)
        await asyncio.to_thread(as_older_release, run_place, 5 if once_numbered else 0)
        assert await found(stores, "bb") == await open_in(stores, "agent:bay") == ["r1"]

        def fill(tx: Transaction) -> None:
            [one] = tx.runs.threads.unnumbered(9)
            tx.runs.threads.put_questions(one)
            tx.runs.threads.mark_numbered(one)

        await stores.store.write(fill)
        assert await stores.store.read(lambda tx: tx.runs.threads.unnumbered(9)) == ()
        assert await found(stores, "bb") == await open_in(stores, "agent:bay") == ["r1"]
        assert await answered_in(stores, "agent:bay") == ["r1"]


def as_older_release(place: Place, numbered_at: int) -> None:
    """Leave the row of the run as a release before the table of questions does, which knows no such column."""
    statements = [f"UPDATE runs SET numbered_at = {numbered_at}", "DELETE FROM run_questions"]
    if place.backend == "postgres":
        with psycopg.connect(place.dsn, autocommit=True) as session:
            session.execute(f"SET search_path TO {SCHEMA}")  # type: ignore[arg-type]
            for text in statements:
                session.execute(text)  # type: ignore[arg-type]
        return
    [path] = place.folder.glob("*.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as session:
        for text in statements:
            session.execute(text)
