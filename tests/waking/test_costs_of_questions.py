"""The cost of questions: how many stored runs each look reads, with few and with very many open questions."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from postroom.contracts.errors import StaleDecision
from postroom.contracts.runs import (
    RunRecord,
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    Thread,
    WaitingReason,
)
from postroom.mail.waking.prompts import agent_thread
from postroom.services.questions import QuestionTimeouts
from postroom.stores.runs import rows
from postroom.testing import ManualClock
from work_room import SLUG, WorkRoom

FEW, MANY = 60, 1_200


@pytest_asyncio.fixture
async def room(stores, clock: ManualClock) -> AsyncIterator[WorkRoom]:
    made = WorkRoom(*stores, clock)
    await made.people("Ada", "Bo", runners=("Bo",))
    yield made
    await made.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the stored runs that are read."""
    counted = Counter[str]()

    def counting(row: Any, of: Any) -> Any:
        counted["runs"] += 1
        return of(row)

    monkeypatch.setattr(rows, "run", partial(counting, of=rows.run))
    return counted


async def ask_many(room: WorkRoom, numbers: range) -> None:
    """Store runs of Bo that wait for an answer, each on a lane of its own, and as many of a chat."""

    def change(tx: Any) -> None:
        for number in numbers:
            for place in (agent_thread(SLUG, "Bo", number + 1), f"chat/telegram/bot/{number}"):
                call = f"{number:06x}" if place.startswith("agent") else f"{0xF00000 + number:06x}"
                ticket = RunWaitingTicket(
                    ticket_id=call, tool_call_id=call, reason=f"May I send {number}?", updated_at=number
                )
                tx.runs.threads.put(Thread(id=place, created_at=number, updated_at=number))
                tx.runs.threads.create_run(
                    RunRecord(
                        run_id=f"ask-{call}",
                        thread_id=place,
                        agent_id="Bo",
                        status=RunStatus.WAITING,
                        waiting=RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=(ticket,)),
                        created_at=number,
                        started_at=number,
                        updated_at=number,
                    )
                )

    await room.stores.store.write(change, key="runs")


async def shown(room: WorkRoom) -> None:
    assert (await room.questions.show("000003"))["state"] == "open"


async def unknown(room: WorkRoom) -> None:
    with pytest.raises(StaleDecision, match="abcdef is not open"):
        await room.questions.answer("abcdef", True, by="ana")


async def answered(room: WorkRoom) -> None:
    await room.questions.answer("000005", True, by="ana")


async def answered_late(room: WorkRoom) -> None:
    with pytest.raises(StaleDecision, match="was answered already"):
        await room.questions.answer("000005", False, by="ben")


async def page(room: WorkRoom, address: str) -> None:
    assert (await room.browser().get(address)).status_code == 200


async def timeouts(room: WorkRoom) -> None:
    assert await QuestionTimeouts(room.runs, room.clock, room.clock).round() == 0


LOOKS = {
    "a round of timeouts": timeouts,
    "shown by its number": shown,
    "a number that no question has": unknown,
    "answered by its number": answered,
    "answered late": answered_late,
    "the project's page": partial(page, address=f"/p/{SLUG}/questions"),
    "the page of chats": partial(page, address="/chats"),
    "the page of a run": partial(page, address=f"/p/{SLUG}/runs/ask-000009"),
    "a chat's run": partial(page, address="/chats/ask-f00009"),
}


async def test_a_look_at_questions_reads_as_many_runs_with_very_many_open_as_with_few(room, read) -> None:
    taken = dict[str, list[int]]()
    for numbers in (range(FEW), range(FEW, MANY)):
        await ask_many(room, numbers)
        for what, look in LOOKS.items():
            if what == "answered by its number" and taken.get(what):
                continue  # it is answered once
            before = read["runs"]
            await look(room)
            taken.setdefault(what, []).append(read["runs"] - before)
    for what, counted in taken.items():
        assert max(counted) <= 120, (what, counted)
        assert counted[-1] <= counted[0] + 5, (what, counted)
