"""Promises of the sessions of chats: one thread at present, and all that a session was ever bound to."""

from datetime import timedelta

from conformance.promises.chat_given import (
    BLANK,
    HALF,
    ROUNDS,
    TOGETHER,
    ChatPromise,
    at_once,
    session,
)
from conformance.promises.given import refused
from postroom.contracts.chat import MAX_INBOUND, ChatSession, SessionThread
from postroom.contracts.errors import DuplicateRecord, InvalidRecord, UnknownThread, VersionConflict
from postroom.contracts.records import replace
from postroom.stores.chats.stores import ChatStores
from postroom.testing.clock import ManualClock


async def _on(
    stores: ChatStores, stored: ChatSession, thread_id: str, title: str | None = None
) -> ChatSession:
    """Bind a session to another thread, active now."""
    bound = replace(stored, thread_id=thread_id, title=title, active_at=stored.active_at + 1)
    return await stores.sessions.put(bound)


async def _threads(stores: ChatStores, session_key: str = "s", *, title: str | None = None) -> list[str]:
    found = await stores.sessions.threads(session_key, title=title)
    return [one.thread_id for one in found]


async def a_session_is_opened_with_its_conversation(stores: ChatStores, clock: ManualClock) -> None:
    """As it was given, at revision 1, made now; found by its key, the thread by its thread."""
    given = session(
        "s: 'ü'",
        "chat/t",
        source={"platform": "x", "ids": [2**53, None]},
        title="a title",
        settings={"busy": {"policy": "queue"}},
        active_at=7,
    )
    stored = await stores.sessions.open(given)
    now = clock.now()
    assert stored == replace(given, created_at=now, updated_at=now)
    assert stored.revision == 1
    assert await stores.sessions.load(given.session_key) == stored
    thread = await stores.sessions.thread("chat/t")
    assert thread == SessionThread(
        thread_id="chat/t", session_key=given.session_key, title="a title", created_at=now, active_at=7
    )
    assert await stores.sessions.threads(given.session_key) == (thread,)


async def a_session_that_says_nothing_of_it_is_active_now(stores: ChatStores, clock: ManualClock) -> None:
    """For it is opened when somebody says something; and it needs no title, source or settings."""
    stored = await stores.sessions.open(session())
    assert (stored.active_at, stored.title, stored.source, stored.settings) == (clock.now(), None, {}, {})
    thread = await stores.sessions.thread(stored.thread_id)
    assert thread is not None
    assert (thread.active_at, thread.title) == (clock.now(), None)


async def a_known_session_is_returned_unchanged(stores: ChatStores, clock: ManualClock) -> None:
    """Whatever is opened under its key; so a lost answer is asked for again."""
    await stores.sessions.open(session("other", "chat/other"))
    stored = await stores.sessions.open(session("s", "chat/t", title="one"))
    clock.advance(timedelta(seconds=1))
    for thread in ("chat/t", "chat/new", "chat/other"):
        again = session("s", thread, title="two", settings={"a": 1}, active_at=9, revision=5)
        assert await stores.sessions.open(again) == stored
    assert await stores.sessions.load("s") == stored
    assert await _threads(stores) == ["chat/t"]
    assert await stores.sessions.thread("chat/new") is None


async def opening_at_the_same_time_makes_one(stores: ChatStores, clock: ManualClock) -> None:
    """All callers are given the same, and no thread of the others is left behind."""
    for name in map(str, range(ROUNDS)):
        given = [session(name, f"{name}/{n}", title=f"title {n}") for n in range(TOGETHER)]
        answers, _ = await at_once([stores.sessions.open(one) for one in given])
        assert all(one == answers[0] for one in answers)
        assert len(answers) == TOGETHER
        assert await stores.sessions.load(name) == answers[0]
        assert await _threads(stores, name) == [answers[0].thread_id]
        for one in given:
            there = await stores.sessions.thread(one.thread_id)
            assert (there is not None) == (answers[0].thread_id == one.thread_id)


async def a_session_without_a_name_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """Or without a thread; when it is opened and when it is changed."""
    for blank in BLANK:
        for given in (
            ChatSession(session_key=blank, thread_id="t"),
            ChatSession(session_key="s", thread_id=blank),
        ):
            with refused(InvalidRecord):
                await stores.sessions.open(given)
    assert await stores.sessions.sessions() == ()
    stored = await stores.sessions.open(session())
    for blank in BLANK:
        with refused(InvalidRecord):
            await stores.sessions.put(replace(stored, thread_id=blank))
    assert await stores.sessions.load("s") == stored


async def a_session_with_half_a_character_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """As an error of the caller's; nothing changes."""
    for given in (
        session(HALF),
        session(thread_id=HALF),
        session(title=HALF),
        session(source={"a": HALF}),
        session(settings={"a": HALF}),
    ):
        with refused(InvalidRecord):
            await stores.sessions.open(given)
    assert await stores.sessions.sessions() == ()


async def a_title_may_hold_every_character(stores: ChatStores, clock: ManualClock) -> None:
    """And is found by them."""
    for number, title in enumerate(("\0", "\x1a0", "'\"", " ", "")):
        stored = await stores.sessions.open(session(f"s{number}", title=title, source={"\0": title}))
        assert (stored.title, stored.source) == (title, {"\0": title})
        (found,) = await stores.sessions.threads(f"s{number}", title=title)
        assert found.title == title


async def a_thread_of_another_session_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """The one it is bound to, and those it was; nothing is stored."""
    first = await stores.sessions.open(session("first", "chat/1"))
    first = await _on(stores, first, "chat/2")
    for thread in ("chat/1", "chat/2"):
        with refused(DuplicateRecord):
            await stores.sessions.open(session("second", thread))
    assert await stores.sessions.load("second") is None
    second = await stores.sessions.open(session("second", "chat/3", title="x"))
    for thread in ("chat/1", "chat/2"):
        with refused(DuplicateRecord):
            await stores.sessions.put(replace(second, thread_id=thread, title="y"))
    assert await stores.sessions.load("second") == second
    assert await _threads(stores, "first") == ["chat/2", "chat/1"]
    assert await _threads(stores, "second", title="x") == ["chat/3"]


async def a_thread_is_given_to_one_session(stores: ChatStores, clock: ManualClock) -> None:
    """Of many that ask for it at the same time, new ones and known ones."""
    known = [await stores.sessions.open(session(f"known {n}", f"chat/{n}")) for n in range(TOGETHER // 2)]
    calls = [stores.sessions.put(replace(one, thread_id="chat/x")) for one in known]
    calls += [stores.sessions.open(session(f"new {n}", "chat/x")) for n in range(TOGETHER // 2)]
    answers, errors = await at_once(calls, DuplicateRecord)
    assert (len(answers), len(errors)) == (1, TOGETHER - 1)
    thread = await stores.sessions.thread("chat/x")
    assert thread is not None
    assert thread.session_key == answers[0].session_key
    assert [one for one in await stores.sessions.sessions() if one.thread_id == "chat/x"] == answers


async def a_session_with_another_key_keeps_its_threads(stores: ChatStores, clock: ManualClock) -> None:
    """Where there is a session with that key already, both stay as they are."""
    first = await _on(stores, await stores.sessions.open(session("first", "chat/1")), "chat/2")
    second = await stores.sessions.open(session("second", "chat/3"))
    assert not await stores.sessions.rename("first", "second", {"chat_id": "9"})
    assert not await stores.sessions.rename("unknown", "third", {"chat_id": "9"})
    with refused(InvalidRecord):
        await stores.sessions.rename("first", " ", {"chat_id": "9"})
    assert await stores.sessions.load("first") == first
    assert await stores.sessions.load("second") == second
    assert await stores.sessions.rename("first", "third", {"chat_id": "9"})
    assert await stores.sessions.load("first") is None
    third = await stores.sessions.load("third")
    assert third is not None
    assert (third.thread_id, third.source, third.revision) == ("chat/2", {"chat_id": "9"}, first.revision + 1)
    assert await _threads(stores, "third") == ["chat/2", "chat/1"]
    assert await _threads(stores, "first") == []


async def a_changed_session_is_stored_as_given(stores: ChatStores, clock: ManualClock) -> None:
    """With the next revision, changed now; when it was made stays."""
    stored = await stores.sessions.open(session(settings={"a": 1}))
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
    changed = await stores.sessions.put(given)
    assert changed == replace(given, created_at=made_at, updated_at=clock.now(), revision=2)
    assert await stores.sessions.load("s") == changed
    third = await stores.sessions.put(replace(changed, title=None))
    assert (third.revision, third.title) == (3, None)
    assert await stores.sessions.load("s") == third


async def a_change_of_an_unknown_session_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """And makes neither it nor a thread."""
    with refused(UnknownThread):
        await stores.sessions.put(session("s", "chat/t"))
    assert await stores.sessions.load("s") is None
    assert await stores.sessions.thread("chat/t") is None


async def a_change_of_a_former_revision_is_refused(stores: ChatStores, clock: ManualClock) -> None:
    """And of one that never was; nothing changes."""
    stored = await stores.sessions.open(session())
    changed = await stores.sessions.put(replace(stored, title="new"))
    for revision in (1, 3, 0, -1):
        with refused(VersionConflict):
            await stores.sessions.put(replace(stored, revision=revision, thread_id="chat/x", title="lost"))
    assert await stores.sessions.load("s") == changed
    assert await stores.sessions.thread("chat/x") is None
    assert await _threads(stores, title="new") == [stored.thread_id]


async def of_changes_at_the_same_time_one_is_stored(stores: ChatStores, clock: ManualClock) -> None:
    """The others are told that the session was changed, and leave nothing behind."""
    stored = await stores.sessions.open(session())
    bound = [stored.thread_id]
    for number in range(ROUNDS):
        calls = [stores.sessions.put(replace(stored, thread_id=f"{number}/{n}")) for n in range(TOGETHER)]
        answers, errors = await at_once(calls, VersionConflict)
        assert (len(answers), len(errors)) == (1, TOGETHER - 1)
        (stored,) = answers
        bound.append(stored.thread_id)
        assert await stores.sessions.load("s") == stored
        assert sorted(await _threads(stores)) == sorted(bound)


async def a_former_conversation_is_kept_and_taken_up_again(stores: ChatStores, clock: ManualClock) -> None:
    """With its title and when it was last active; it is made once."""
    stored = await stores.sessions.open(session("s", "chat/1", title="one", active_at=10))
    made_at = clock.now()
    clock.advance(timedelta(seconds=1))
    stored = await stores.sessions.put(replace(stored, thread_id="chat/2", title="two", active_at=20))
    first, second = await stores.sessions.thread("chat/1"), await stores.sessions.thread("chat/2")
    assert first == SessionThread(
        thread_id="chat/1", session_key="s", title="one", created_at=made_at, active_at=10
    )
    assert second == SessionThread(
        thread_id="chat/2", session_key="s", title="two", created_at=clock.now(), active_at=20
    )
    assert await stores.sessions.threads("s") == (second, first)
    clock.advance(timedelta(seconds=1))
    await stores.sessions.put(replace(stored, thread_id="chat/1", title="one", active_at=30))
    assert await stores.sessions.threads("s") == (replace(first, active_at=30), second)


async def a_title_is_that_of_the_present_conversation(stores: ChatStores, clock: ManualClock) -> None:
    """It can be given, changed and taken away; former threads keep theirs."""
    stored = await stores.sessions.open(session("s", "chat/1", title="one"))
    stored = await _on(stores, stored, "chat/2")
    for title in ("two", "deux", None):
        stored = await stores.sessions.put(replace(stored, title=title))
        found = await stores.sessions.threads("s")
        assert {one.thread_id: one.title for one in found} == {"chat/1": "one", "chat/2": title}


async def a_title_is_used_once_in_a_session(stores: ChatStores, clock: ManualClock) -> None:
    """Refused, nothing changes; another session may have it, and so may this one when it is free again."""
    stored = await stores.sessions.open(session("s", "chat/1", title="one"))
    second = await _on(stores, stored, "chat/2", "two")
    for thread in ("chat/2", "chat/3"):
        with refused(DuplicateRecord):
            await _on(stores, second, thread, "one")
    assert await stores.sessions.load("s") == second
    assert await stores.sessions.thread("chat/3") is None
    assert await _threads(stores, title="two") == ["chat/2"]
    await stores.sessions.open(session("other", "chat/o", title="one"))
    free = await _on(stores, second, "chat/1", "uno")
    again = await _on(stores, free, "chat/2", "one")
    assert (await stores.sessions.put(again)).title == "one"
    assert await _threads(stores, title="one") == ["chat/2"]


async def conversations_without_a_title_are_many(stores: ChatStores, clock: ManualClock) -> None:
    """None is no title that could be used twice."""
    stored = await stores.sessions.open(session("s", "chat/1"))
    stored = await _on(stores, stored, "chat/2")
    await _on(stores, stored, "chat/3")
    assert await _threads(stores) == ["chat/3", "chat/2", "chat/1"]


async def conversations_come_by_when_they_were_last_active(stores: ChatStores, clock: ManualClock) -> None:
    """The last first, no more than asked for, of the one session; those of one title when it is given."""
    stored = await stores.sessions.open(session("s", "chat/1", title="t1", active_at=50))
    for number, active_at in ((2, 20), (3, 70), (4, 60)):
        bound = replace(stored, thread_id=f"chat/{number}", title=f"t{number}", active_at=active_at)
        stored = await stores.sessions.put(bound)
    await stores.sessions.open(session("other", "chat/o", title="t1", active_at=99))
    assert await _threads(stores) == ["chat/3", "chat/4", "chat/1", "chat/2"]
    found = await stores.sessions.threads("s", limit=2)
    assert [one.thread_id for one in found] == ["chat/3", "chat/4"]
    for limit in (0, -1):
        assert await stores.sessions.threads("s", limit=limit) == ()
        assert await stores.sessions.threads("s", title="t1", limit=limit) == ()
    assert await _threads(stores, title="t1") == ["chat/1"]
    assert await _threads(stores, title="T1") == []
    assert await _threads(stores, "unknown") == []


async def no_listing_of_conversations_is_longer_than_the_most(stores: ChatStores, clock: ManualClock) -> None:
    """Those left out were active longest ago."""
    stored = await stores.sessions.open(session("s", "chat/0", active_at=1))
    for number in range(1, MAX_INBOUND + 1):
        stored = await _on(stores, stored, f"chat/{number}")
    found = await stores.sessions.threads("s", limit=10**9)
    assert [one.thread_id for one in found] == [f"chat/{number}" for number in range(MAX_INBOUND, 0, -1)]


async def what_is_unknown_is_none(stores: ChatStores, clock: ManualClock) -> None:
    """A session and a thread."""
    await stores.sessions.open(session("s", "chat/t"))
    assert await stores.sessions.load("chat/t") is None
    assert await stores.sessions.thread("s") is None


async def sessions_come_by_key(stores: ChatStores, clock: ManualClock) -> None:
    """In the order of their characters' numbers, page by page."""
    keys = ["a", "B", "é", "a b", "😀", "\uffee"]
    stored = {name: await stores.sessions.open(session(name)) for name in keys}
    ordered = sorted(keys)
    pages, after = [], ""
    while found := await stores.sessions.sessions(after=after, limit=4):
        pages.append([one.session_key for one in found])
        assert [stored[one.session_key] for one in found] == list(found)
        after = found[-1].session_key
    assert pages == [ordered[:4], ordered[4:]]
    assert await stores.sessions.sessions(limit=0) == ()
    assert await stores.sessions.sessions(limit=-1) == ()


async def no_listing_of_sessions_is_longer_than_the_most(stores: ChatStores, clock: ManualClock) -> None:
    """Whatever is asked for."""
    for number in range(MAX_INBOUND + 1):
        await stores.sessions.open(session(f"s{number:03}"))
    found = await stores.sessions.sessions(limit=10**9)
    assert [one.session_key for one in found] == [f"s{number:03}" for number in range(MAX_INBOUND)]


async def what_a_session_holds_is_the_stores_own(stores: ChatStores, clock: ManualClock) -> None:
    """What was given and what was read is the caller's; what is stored stays."""
    source, settings = {"n": [1]}, {"m": [1]}
    opened = await stores.sessions.open(session(source=source, settings=settings))
    source["n"].append(2)
    settings["m"].append(2)
    for read in (
        opened,
        await stores.sessions.load("s"),
        await stores.sessions.open(session()),
        *await stores.sessions.sessions(),
    ):
        assert read is not None
        read.source["n"].append(3)
        read.settings["m"].append(3)
    found = await stores.sessions.load("s")
    assert found is not None
    assert (found.source, found.settings) == ({"n": [1]}, {"m": [1]})
    changed = await stores.sessions.put(found)
    found.source["n"].append(4)
    changed.settings["m"].append(4)
    found = await stores.sessions.load("s")
    assert found is not None
    assert (found.source, found.settings) == ({"n": [1]}, {"m": [1]})


async def an_instant_of_a_session_may_be_given(stores: ChatStores, clock: ManualClock) -> None:
    """Then no clock is looked at."""
    stored = await stores.sessions.open(session("s", "chat/1"), now=5)
    assert (stored.created_at, stored.updated_at, stored.active_at) == (5, 5, 5)
    changed = await stores.sessions.put(replace(stored, thread_id="chat/2"), now=6)
    assert (changed.created_at, changed.updated_at, changed.active_at) == (5, 6, 5)
    first, second = await stores.sessions.thread("chat/1"), await stores.sessions.thread("chat/2")
    assert first is not None
    assert second is not None
    assert (first.created_at, second.created_at) == (5, 6)


PROMISES: tuple[ChatPromise, ...] = (
    a_session_is_opened_with_its_conversation,
    a_session_that_says_nothing_of_it_is_active_now,
    a_known_session_is_returned_unchanged,
    opening_at_the_same_time_makes_one,
    a_session_without_a_name_is_refused,
    a_session_with_half_a_character_is_refused,
    a_title_may_hold_every_character,
    a_thread_of_another_session_is_refused,
    a_thread_is_given_to_one_session,
    a_session_with_another_key_keeps_its_threads,
    a_changed_session_is_stored_as_given,
    a_change_of_an_unknown_session_is_refused,
    a_change_of_a_former_revision_is_refused,
    of_changes_at_the_same_time_one_is_stored,
    a_former_conversation_is_kept_and_taken_up_again,
    a_title_is_that_of_the_present_conversation,
    a_title_is_used_once_in_a_session,
    conversations_without_a_title_are_many,
    conversations_come_by_when_they_were_last_active,
    no_listing_of_conversations_is_longer_than_the_most,
    what_is_unknown_is_none,
    sessions_come_by_key,
    no_listing_of_sessions_is_longer_than_the_most,
    what_a_session_holds_is_the_stores_own,
    an_instant_of_a_session_may_be_given,
)
