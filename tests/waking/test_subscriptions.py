"""Subscriptions: each event becomes a message once, over restarts and with several servers, on both engines."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest_asyncio

from postroom.contracts.clock import iso
from postroom.mail.context import Caller
from postroom.mail.waking.subscription_rounds import MAX_EVENTS_READ, SubscriptionRounds
from postroom.services.hooks import Hooks
from postroom.stores.mail.store import MailStore
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from waking_room import PROJECT, Room, both_engines


@pytest_asyncio.fixture
async def room(stores: tuple[MailStore, RunStores], clock: ManualClock) -> AsyncIterator[Room]:
    made = Room(*stores, clock=clock)
    yield made
    await made.close()


async def call(room: Room, operation: str, name: str, **arguments: Any) -> Any:
    return await room.mail.call(operation, {"project_key": PROJECT, "agent_name": name, **arguments})


async def hook(room: Room, event: str, name: str, **body: Any) -> str:
    session = {"cwd": PROJECT, "session_id": name, "agent": name, **body}
    return str((await Hooks(room.mail).answer("claude", event, session))["text"])


async def told(room: Room, name: str = "Ada") -> list[str]:
    """Return the sentences of the messages about subscriptions, oldest first."""
    found = [one for one in await room.inbox(name) if one["thread_id"].startswith("subscription-")]
    return [line[2:] for one in found for line in one["body_md"].splitlines() if line.startswith("- ")]


async def settle(room: Room, rounds: SubscriptionRounds | None = None) -> list[str]:
    """Make a server (a new server unless it is given) read the whole log; return all sentences."""
    rounds = rounds or SubscriptionRounds(room.mail, room.waker)
    while await rounds.round():
        pass
    await room.turn()
    return await told(room)


@both_engines
async def test_a_task_that_becomes_ready_is_told_once_over_restarts_and_servers(room: Room) -> None:
    await room.people("Ada", "Ben")
    await call(room, "add_task", "Ben", title="before")
    assert (await call(room, "subscribe", "Ada", kind="task_ready"))["now"] == ""
    assert (await call(room, "subscribe", "Ada", kind="task_ready", about="1"))["now"] == "task 1 is ready"
    await call(room, "end_subscription", "Ada", subscription_id=2)
    servers = [SubscriptionRounds(room.mail, room.waker) for _ in range(2)]
    for title in ("one", "two"):
        await call(room, "add_task", "Ben", title=title)
    await call(room, "add_task", "Ben", title="later", depends_on=[3])
    expected = ['Task 2 is ready: "one".', 'Task 3 is ready: "two".']
    for server in servers:
        assert await settle(room, server) == expected
    assert await settle(room) == expected
    await call(room, "claim_task", "Ben", task_id=3)
    await call(room, "done_task", "Ben", task_id=3, epoch=1)
    expected.append('Task 4 is ready: "later".')
    for server in (None, *servers):
        assert await settle(room, server) == expected


@both_engines
async def test_an_agent_is_idle_when_its_last_run_or_the_turn_of_its_client_has_ended(room: Room) -> None:
    await room.people("Ada", "Bo", "Cy", runners=("Bo",))
    for name in ("Bo", "Cy"):
        made = await call(room, "subscribe", "Ada", kind="agent_idle", about=name)
        assert made["about"] == name
        assert made["now"] == ("Bo is idle" if name == "Bo" else "")
    seen = list[list[str]]()
    server = SubscriptionRounds(room.mail, room.waker)

    async def looks(activation: Any) -> None:
        await server.round()
        seen.append(await told(room))

    room.agents.act = looks
    await room.send("Ada", "Bo")
    await room.send("Ada", "Bo")
    await room.turn()
    assert seen == [[], []], "another run was waiting when the first ended"
    [line] = await settle(room, server)
    assert line.startswith("Bo is idle since ")
    await hook(room, "PostToolUse", "Cy")
    assert await settle(room, server) == [line]
    await hook(room, "Stop", "Cy")
    [*_, last] = found = await settle(room, server)
    assert (len(found), last.startswith("Cy is idle since ")) == (2, True)
    await room.send("Ada", "Cy")
    await hook(room, "Stop", "Cy")
    assert len(await settle(room, server)) == 2, "the turn continues for the message"
    await hook(room, "Stop", "Cy", stop_active=True)
    assert len(await settle(room, server)) == 3
    assert "newest from the server," in await hook(room, "UserPromptSubmit", "Ada")


@both_engines
async def test_a_change_that_a_hook_reports_is_told_to_those_who_watch_the_file(room: Room) -> None:
    await room.people("Ada", "Ben")
    await call(room, "subscribe", "Ada", kind="file_changed", about="src/")
    changes = [
        ("Ben", "src/a.py", "part"),
        ("Ben", "docs/a.md", "whole"),
        ("Ada", "src/b.py", "whole"),
        ("Ben", "src/a.py", "shell"),
        ("Ben", "src/c.py", "read"),
    ]
    for number, (name, path, how) in enumerate(changes):
        await hook(room, "PostToolUse", name, files=[[f"{PROJECT}/{path}", f"{number}" * 40, how]])
    assert await settle(room) == ['Ben changed "src/a.py".']
    log = await room.mail.call("fetch_events", {"project_key": PROJECT, "kinds": ["file.changed"]})
    assert [(one["agent"], one["detail"]["path"]) for one in log["events"]] == [("Ben", "src/a.py")] * 2


async def test_a_subscription_that_ends_with_its_first_message_tells_nothing_more(room: Room) -> None:
    await room.people("Ada", "Ben")
    await call(room, "subscribe", "Ada", kind="task_ready", once=True)
    await call(room, "subscribe", "Ada", kind="task_ready", about="", once=True)
    for title in ("one", "two"):
        await call(room, "add_task", "Ben", title=title)
        await settle(room)
    assert await told(room) == ['Task 1 is ready: "one".']
    assert (await call(room, "list_subscriptions", "Ada"))["subscriptions"] == []


@both_engines
async def test_an_agent_gets_no_message_about_a_task_that_it_made_ready(room: Room) -> None:
    await room.people("Ada", "Ben")
    await call(room, "subscribe", "Ada", kind="task_ready", once=True)
    await call(room, "add_task", "Ada", title="own")
    await call(room, "add_task", "Ada", title="later", depends_on=[1])
    await call(room, "claim_task", "Ada", task_id=1)
    await call(room, "update_task", "Ada", task_id=1, epoch=1, state="ready")
    await call(room, "claim_task", "Ada", task_id=1)
    await call(room, "done_task", "Ada", task_id=1, epoch=2)
    assert await settle(room) == []
    assert len((await call(room, "list_subscriptions", "Ada"))["subscriptions"]) == 1
    await call(room, "claim_task", "Ada", task_id=2, ttl_seconds=60)
    room.clock.advance(timedelta(minutes=2))
    await call(room, "claim_task", "Ben", dry_run=True, roles=["none"])
    await call(room, "add_task", "Ben", title="other")
    assert await settle(room) == ['Task 2 is ready: "later".', 'Task 3 is ready: "other".'], (
        "the end of a lease is no change of the holder"
    )
    log = await room.mail.call("fetch_events", {"project_key": PROJECT, "kinds": ["task.ready"]})
    assert [one["agent"] for one in log["events"]] == ["Ada", "Ada", "Ada", None, "Ben"]


@both_engines
async def test_the_id_of_a_subscription_is_never_used_again(room: Room) -> None:
    await room.people("Ada", "Ben")
    ids = []
    for number, name in enumerate(("Ada", "Ben", "Ben", "Ada")):
        made = await call(room, "subscribe", name, kind="task_ready", once=number % 2 == 0)
        ids.append(made["id"])
        if number % 2:
            await call(room, "end_subscription", name, subscription_id=made["id"])
        else:
            await call(room, "add_task", "Ada" if name == "Ben" else "Ben", title=f"task {number}")
            await settle(room)
    assert ids == [1, 2, 3, 4]


async def test_each_subscription_has_its_own_thread(room: Room) -> None:
    await room.people("Ada", "Ben")
    for number, name in enumerate(("Ada", "Ben", "Ben")):
        made = await call(room, "subscribe", name, kind="task_ready", once=True)
        await call(room, "add_task", "Ada" if name == "Ben" else "Ben", title=f"task {number}")
        await settle(room)
        room.clock.advance(timedelta(seconds=1))
    found = [*await room.inbox("Ada"), *await room.inbox("Ben")]
    threads = [one["thread_id"] for one in found if one["thread_id"].startswith("subscription-")]
    assert len(set(threads)) == 3, (made["id"], threads)
    told = await room.mail.call("catch_up", {"project_key": PROJECT}, caller=Caller(operator=True))
    assert [one for one in told["sentences"] if one["about"] == "said"] == [], "no agent wrote them"


@both_engines
async def test_a_client_with_hooks_is_idle_from_the_end_of_its_turn_until_it_acts_again(room: Room) -> None:
    await room.people("Ada", "Ben", "Eve")
    hooks = Hooks(room.mail)

    async def event(kind: str, session: str = "s") -> None:
        body = {"cwd": PROJECT, "session_id": session, "agent": "Eve"}
        await hooks.answer("claude", kind, body)

    async def now() -> str:
        """Return what a new subscription says, and end that subscription."""
        made = await call(room, "subscribe", "Ada", kind="agent_idle", about="Eve")
        await call(room, "end_subscription", "Ada", subscription_id=made["id"])
        return str(made["now"])

    await event("UserPromptSubmit")
    assert await now() == ""
    await call(room, "subscribe", "Ben", kind="agent_idle", about="Eve")
    await event("Stop")
    since = iso(room.clock.now())
    room.clock.advance(timedelta(seconds=2))
    assert await now() == f"Eve is idle since {since}"
    await event("UserPromptSubmit")
    assert await now() == "", "a turn began"
    await event("Stop")
    room.clock.advance(timedelta(minutes=5))
    assert (await now()).startswith("Eve is idle since")
    await call(room, "add_task", "Eve", title="one")
    assert await now() == "", "a call is activity, too"
    await event("Stop")
    assert (await now()).startswith("Eve is idle since")


async def test_a_message_wakes_a_subscriber_with_a_runner(room: Room) -> None:
    await room.people("Ada", "Ben", runners=("Ada",))
    await call(room, "subscribe", "Ada", kind="task_ready")
    await call(room, "add_task", "Ben", title="one")
    await settle(room)
    [(_, [prompt])] = room.agents.prompts
    assert 'Task 1 is ready: "one".' in prompt


async def test_other_entries_move_the_cursor_now_and_then_and_cause_no_change(room: Room) -> None:
    await room.people("Ada", "Ben")
    made = await call(room, "subscribe", "Ada", kind="task_ready")
    server = SubscriptionRounds(room.mail, room.waker)

    async def cursor() -> int:
        found = await room.store.read(lambda tx: tx.subscription(made["id"]))
        assert found is not None
        return found.cursor

    first = await cursor()
    await call(room, "set_contact_policy", "Ben", policy="closed")
    await settle(room, server)
    assert await cursor() == first
    for number in range(MAX_EVENTS_READ // 100 + 1):
        paths = [f"{number}/{one}" for one in range(100)]
        await call(room, "file_reservation_paths", "Ben", paths=paths)
    await settle(room, server)
    assert await cursor() > first + MAX_EVENTS_READ
    assert await told(room) == []


@both_engines
async def test_of_many_servers_at_once_one_tells_of_an_event(room: Room) -> None:
    await room.people("Ada", "Ben")
    await call(room, "subscribe", "Ada", kind="task_ready")
    for title in ("one", "two"):
        await call(room, "add_task", "Ben", title=title)
    servers = [SubscriptionRounds(room.mail, room.waker) for _ in range(6)]
    async with asyncio.timeout(60):
        assert sum(await asyncio.gather(*(server.round() for server in servers))) == 1
    assert await settle(room) == ['Task 1 is ready: "one".', 'Task 2 is ready: "two".']


async def test_a_retired_subscriber_gets_nothing(room: Room) -> None:
    await room.people("Ada", "Ben")
    await call(room, "subscribe", "Ada", kind="task_ready")
    await call(room, "retire_agent", "Ada")
    await call(room, "add_task", "Ben", title="one")
    assert await SubscriptionRounds(room.mail, room.waker).round() == 0
    assert await room.store.read(lambda tx: tx.subscriptions(after=0, limit=9)) == []
