"""Promises of the sessions of chats: one thread at present, and all that a session was ever bound to."""

from datetime import timedelta

from conformance.boxes import on_both
from conformance.promises.chat_given import (
    ROUNDS,
    TOGETHER,
    at_once,
    session,
)
from conformance.promises.given import refused
from postroom.contracts.chat import MAX_INBOUND, ChatSession, SessionThread
from postroom.contracts.errors import DuplicateRecord, InvalidRecord, UnknownThread, VersionConflict
from postroom.contracts.records import replace
from postroom.stores.chats.stores import ChatStores
from postroom.testing import ManualClock


async def _on(
    chats: ChatStores, stored: ChatSession, thread_id: str, title: str | None = None
) -> ChatSession:
    """Bind a session to another thread, active now."""
    bound = replace(stored, thread_id=thread_id, title=title, active_at=stored.active_at + 1)
    return await chats.sessions.put(bound)


async def _threads(chats: ChatStores, session_key: str = "s", *, title: str | None = None) -> list[str]:
    found = await chats.sessions.threads(session_key, title=title)
    return [one.thread_id for one in found]


async def test_a_session_is_opened_with_its_conversation(chats: ChatStores, clock: ManualClock) -> None:
    given = session(
        "s: 'ü'",
        "chat/t",
        source={"platform": "x", "ids": [2**53, None]},
        title="a title",
        settings={"busy": {"policy": "queue"}},
        active_at=7,
    )
    stored = await chats.sessions.open(given)
    now = clock.now()
    assert stored == replace(given, created_at=now, updated_at=now)
    assert stored.revision == 1
    assert await chats.sessions.load(given.session_key) == stored
    thread = await chats.sessions.thread("chat/t")
    assert thread == SessionThread(
        thread_id="chat/t", session_key=given.session_key, title="a title", created_at=now, active_at=7
    )
    assert await chats.sessions.threads(given.session_key) == (thread,)


async def test_a_known_session_is_returned_unchanged(chats: ChatStores, clock: ManualClock) -> None:
    await chats.sessions.open(session("other", "chat/other"))
    stored = await chats.sessions.open(session("s", "chat/t", title="one"))
    clock.advance(timedelta(seconds=1))
    for thread in ("chat/t", "chat/new", "chat/other"):
        again = session("s", thread, title="two", settings={"a": 1}, active_at=9, revision=5)
        assert await chats.sessions.open(again) == stored
    assert await chats.sessions.load("s") == stored
    assert await _threads(chats) == ["chat/t"]
    assert await chats.sessions.thread("chat/new") is None


@on_both
async def test_opening_at_the_same_time_makes_one(chats: ChatStores) -> None:
    for name in map(str, range(ROUNDS)):
        given = [session(name, f"{name}/{n}", title=f"title {n}") for n in range(TOGETHER)]
        answers, _ = await at_once([chats.sessions.open(one) for one in given])
        assert all(one == answers[0] for one in answers)
        assert len(answers) == TOGETHER
        assert await chats.sessions.load(name) == answers[0]
        assert await _threads(chats, name) == [answers[0].thread_id]
        for one in given:
            there = await chats.sessions.thread(one.thread_id)
            assert (there is not None) == (answers[0].thread_id == one.thread_id)


@on_both
async def test_a_title_may_hold_every_character(chats: ChatStores) -> None:
    for number, title in enumerate(("\0", "\x1a0", "'\"", " ", "")):
        stored = await chats.sessions.open(session(f"s{number}", title=title, source={"\0": title}))
        assert (stored.title, stored.source) == (title, {"\0": title})
        (found,) = await chats.sessions.threads(f"s{number}", title=title)
        assert found.title == title


@on_both
async def test_a_thread_of_another_session_is_refused(chats: ChatStores) -> None:
    first = await chats.sessions.open(session("first", "chat/1"))
    first = await _on(chats, first, "chat/2")
    for thread in ("chat/1", "chat/2"):
        with refused(DuplicateRecord):
            await chats.sessions.open(session("second", thread))
    assert await chats.sessions.load("second") is None
    second = await chats.sessions.open(session("second", "chat/3", title="x"))
    for thread in ("chat/1", "chat/2"):
        with refused(DuplicateRecord):
            await chats.sessions.put(replace(second, thread_id=thread, title="y"))
    assert await chats.sessions.load("second") == second
    assert await _threads(chats, "first") == ["chat/2", "chat/1"]
    assert await _threads(chats, "second", title="x") == ["chat/3"]


@on_both
async def test_a_thread_is_given_to_one_session(chats: ChatStores) -> None:
    known = [await chats.sessions.open(session(f"known {n}", f"chat/{n}")) for n in range(TOGETHER // 2)]
    calls = [chats.sessions.put(replace(one, thread_id="chat/x")) for one in known]
    calls += [chats.sessions.open(session(f"new {n}", "chat/x")) for n in range(TOGETHER // 2)]
    answers, errors = await at_once(calls, DuplicateRecord)
    assert (len(answers), len(errors)) == (1, TOGETHER - 1)
    thread = await chats.sessions.thread("chat/x")
    assert thread.session_key == answers[0].session_key
    assert [one for one in await chats.sessions.sessions() if one.thread_id == "chat/x"] == answers


async def test_a_session_with_another_key_keeps_its_threads(chats: ChatStores) -> None:
    first = await _on(chats, await chats.sessions.open(session("first", "chat/1")), "chat/2")
    second = await chats.sessions.open(session("second", "chat/3"))
    assert not await chats.sessions.rename("first", "second", {"chat_id": "9"})
    assert not await chats.sessions.rename("unknown", "third", {"chat_id": "9"})
    with refused(InvalidRecord):
        await chats.sessions.rename("first", " ", {"chat_id": "9"})
    assert await chats.sessions.load("first") == first
    assert await chats.sessions.load("second") == second
    assert await chats.sessions.rename("first", "third", {"chat_id": "9"})
    assert await chats.sessions.load("first") is None
    third = await chats.sessions.load("third")
    assert (third.thread_id, third.source, third.revision) == ("chat/2", {"chat_id": "9"}, first.revision + 1)
    assert await _threads(chats, "third") == ["chat/2", "chat/1"]
    assert await _threads(chats, "first") == []


async def test_a_changed_session_is_stored_as_given(chats: ChatStores, clock: ManualClock) -> None:
    stored = await chats.sessions.open(session(settings={"a": 1}))
    made_at = clock.now()
    clock.advance(timedelta(seconds=1))
    given = replace(
        stored,
        thread_id="chat/new",
        source={"chat": "moved"},
        title="new",
        settings={"b": [2]},
        active_at=9,
        created_at=1,
        updated_at=2,
    )
    changed = await chats.sessions.put(given)
    assert changed == replace(given, created_at=made_at, updated_at=clock.now(), revision=2)
    assert await chats.sessions.load("s") == changed
    third = await chats.sessions.put(replace(changed, title=None))
    assert (third.revision, third.title) == (3, None)
    assert await chats.sessions.load("s") == third


async def test_a_change_of_an_unknown_session_is_refused(chats: ChatStores) -> None:
    with refused(UnknownThread):
        await chats.sessions.put(session("s", "chat/t"))
    assert await chats.sessions.load("s") is None
    assert await chats.sessions.thread("chat/t") is None


async def test_a_change_of_a_former_revision_is_refused(chats: ChatStores) -> None:
    stored = await chats.sessions.open(session())
    changed = await chats.sessions.put(replace(stored, title="new"))
    for revision in (1, 3, 0, -1):
        with refused(VersionConflict):
            await chats.sessions.put(replace(stored, revision=revision, thread_id="chat/x", title="lost"))
    assert await chats.sessions.load("s") == changed
    assert await chats.sessions.thread("chat/x") is None
    assert await _threads(chats, title="new") == [stored.thread_id]


@on_both
async def test_of_changes_at_the_same_time_one_is_stored(chats: ChatStores) -> None:
    stored = await chats.sessions.open(session())
    bound = [stored.thread_id]
    for number in range(ROUNDS):
        calls = [chats.sessions.put(replace(stored, thread_id=f"{number}/{n}")) for n in range(TOGETHER)]
        answers, errors = await at_once(calls, VersionConflict)
        assert (len(answers), len(errors)) == (1, TOGETHER - 1)
        (stored,) = answers
        bound.append(stored.thread_id)
        assert await chats.sessions.load("s") == stored
        assert sorted(await _threads(chats)) == sorted(bound)


async def test_a_former_conversation_is_kept_and_taken_up_again(
    chats: ChatStores, clock: ManualClock
) -> None:
    stored = await chats.sessions.open(session("s", "chat/1", title="one", active_at=10))
    made_at = clock.now()
    clock.advance(timedelta(seconds=1))
    stored = await chats.sessions.put(replace(stored, thread_id="chat/2", title="two", active_at=20))
    first, second = await chats.sessions.thread("chat/1"), await chats.sessions.thread("chat/2")
    assert first == SessionThread(
        thread_id="chat/1", session_key="s", title="one", created_at=made_at, active_at=10
    )
    assert second == SessionThread(
        thread_id="chat/2", session_key="s", title="two", created_at=clock.now(), active_at=20
    )
    assert await chats.sessions.threads("s") == (second, first)
    clock.advance(timedelta(seconds=1))
    await chats.sessions.put(replace(stored, thread_id="chat/1", title="one", active_at=30))
    assert await chats.sessions.threads("s") == (replace(first, active_at=30), second)


@on_both
async def test_a_title_is_used_once_in_a_session(chats: ChatStores) -> None:
    stored = await chats.sessions.open(session("s", "chat/1", title="one"))
    second = await _on(chats, stored, "chat/2", "two")
    for thread in ("chat/2", "chat/3"):
        with refused(DuplicateRecord):
            await _on(chats, second, thread, "one")
    assert await chats.sessions.load("s") == second
    assert await chats.sessions.thread("chat/3") is None
    assert await _threads(chats, title="two") == ["chat/2"]
    await chats.sessions.open(session("other", "chat/o", title="one"))
    free = await _on(chats, second, "chat/1", "uno")
    again = await _on(chats, free, "chat/2", "one")
    assert (await chats.sessions.put(again)).title == "one"
    assert await _threads(chats, title="one") == ["chat/2"]


async def test_conversations_come_by_when_they_were_last_active(chats: ChatStores) -> None:
    stored = await chats.sessions.open(session("s", "chat/1", title="t1", active_at=50))
    for number, active_at in ((2, 20), (3, 70), (4, 60)):
        bound = replace(stored, thread_id=f"chat/{number}", title=f"t{number}", active_at=active_at)
        stored = await chats.sessions.put(bound)
    await chats.sessions.open(session("other", "chat/o", title="t1", active_at=99))
    assert await _threads(chats) == ["chat/3", "chat/4", "chat/1", "chat/2"]
    found = await chats.sessions.threads("s", limit=2)
    assert [one.thread_id for one in found] == ["chat/3", "chat/4"]
    for limit in (0, -1):
        assert await chats.sessions.threads("s", limit=limit) == ()
        assert await chats.sessions.threads("s", title="t1", limit=limit) == ()
    assert await _threads(chats, title="t1") == ["chat/1"]
    assert await _threads(chats, title="T1") == []
    assert await _threads(chats, "unknown") == []


@on_both
async def test_sessions_come_by_key(chats: ChatStores) -> None:
    keys = ["a", "B", "é", "a b", "😀", "\uffee"]
    stored = {name: await chats.sessions.open(session(name)) for name in keys}
    ordered = sorted(keys)
    pages, after = [], ""
    while found := await chats.sessions.sessions(after=after, limit=4):
        pages.append([one.session_key for one in found])
        assert [stored[one.session_key] for one in found] == list(found)
        after = found[-1].session_key
    assert pages == [ordered[:4], ordered[4:]]
    assert await chats.sessions.sessions(limit=0) == ()
    assert await chats.sessions.sessions(limit=-1) == ()


async def test_no_listing_of_sessions_is_longer_than_the_most(chats: ChatStores) -> None:
    for number in range(MAX_INBOUND + 1):
        await chats.sessions.open(session(f"s{number:03}"))
    found = await chats.sessions.sessions(limit=10**9)
    assert [one.session_key for one in found] == [f"s{number:03}" for number in range(MAX_INBOUND)]
