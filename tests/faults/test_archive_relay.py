"""The relay and the archive: nothing is lost, written twice or held up, whatever Git or the store does."""

import asyncio
import json
import subprocess
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from postroom.contracts.clock import iso
from postroom.contracts.errors import StateError, StoreCorrupt, StoreUnavailable
from postroom.contracts.mail import KeepRule
from postroom.mail import retention as rules_of_mail
from postroom.mail.archive.archive import Archive, Author, gather
from postroom.mail.archive.rebuild import read_root, write_rows
from postroom.mail.context import Caller
from postroom.mail.outgoing import ARCHIVE, to_archive
from postroom.mail.service import Mail
from postroom.relay import Relay
from postroom.stores.sqlite import SqliteStore
from postroom.stores.store import SqlStore
from postroom.testing import ManualClock

PROJECT = "/srv/lighthouse"
SLUG = "srv-lighthouse"
AUTHOR = Author(name="postroom", email="postroom@example.org")


class Losing:
    """Loses the answer to one write: everything is written, and the caller gets a failure."""

    def __init__(self, store: SqlStore, nth: int) -> None:
        self._store, self._left, self.lost = store, nth, False
        self.clock, self.changes, self.read = store.clock, store.changes, store.read

    async def write(self, change: Any, *, key: str = "") -> Any:
        self._left -= 1
        done = await self._store.write(change, key=key)
        if self._left == 0:
            self.lost = True
            raise StoreUnavailable("the answer was lost on purpose; the change was stored")
        return done


@pytest.fixture
async def mail(sqlite_store: SqliteStore, clock: ManualClock) -> Mail:
    mail = Mail(sqlite_store, clock)
    await mail.call("ensure_project", {"human_key": PROJECT})
    for name in ("Ada", "Ben", "Cleo"):
        await mail.call(
            "register_agent", {"project_key": PROJECT, "program": "p", "model": "m", "name": name}
        )
    return mail


def archive_of(mail: Mail, root: Path, *, store: Any = None) -> Archive:
    return Archive(root / "archive", store or mail.store, mail.clock, AUTHOR)


def relay_of(mail: Mail, archive: Archive, *, store: Any = None, batch: int = 200) -> Relay:
    archive.at_once = batch
    return Relay(store or mail.store.store, {ARCHIVE: archive})  # type: ignore[attr-defined]


async def send(mail: Mail, subject: str, **more: Any) -> int:
    sent = await mail.call(
        "send_message",
        {
            "project_key": PROJECT,
            "sender_name": "Ada",
            "to": ["Ben"],
            "subject": subject,
            "body_md": "Body",
            **more,
        },
    )
    return int(sent["deliveries"][0]["payload"]["id"])


async def paths(archive: Archive, below: str = "") -> list[str]:
    return await asyncio.to_thread(lambda: archive.repository(SLUG).paths(below))


async def content(archive: Archive, path: str) -> str:
    found = await asyncio.to_thread(lambda: archive.repository(SLUG).read(path))
    assert found is not None, path
    return found.decode()


async def waiting(mail: Mail) -> int:
    return (await mail.store.read(lambda tx: tx.outbox.backlog(ARCHIVE))).waiting


async def test_a_message_lies_in_the_archive_as_people_read_it(mail: Mail, tmp_path: Path) -> None:
    archive = archive_of(mail, tmp_path)
    number = await send(
        mail, "Lamp & lens", cc=["Cleo"], thread_id="lamp:1", importance="high", ack_required=True
    )
    assert await relay_of(mail, archive).drain() > 0
    assert await waiting(mail) == 0
    text = await content(archive, f"messages/2023/11/{number}-lamp-lens.md")
    head, _, body = text.removeprefix("---\n").partition("\n---\n\n")
    fields = {line.partition(": ")[0]: json.loads(line.partition(": ")[2]) for line in head.splitlines()}
    assert body == "Body"
    assert fields == {
        "id": number,
        "project": SLUG,
        "from": "Ada",
        "to": ["Ben"],
        "cc": ["Cleo"],
        "subject": "Lamp & lens",
        "thread": "lamp:1",
        "importance": "high",
        "ack_required": True,
        "created": "2023-11-14T22:13:20.000Z",
        "attachments": [],
    }
    assert f"[#{number}](../messages/2023/11/{number}-lamp-lens.md)" in await content(
        archive, "threads/lamp%3A1.md"
    )
    assert json.loads(await content(archive, "agents/Ada/profile.json"))["name"] == "Ada"


async def test_a_burst_becomes_one_commit_that_names_its_messages(mail: Mail, tmp_path: Path) -> None:
    archive = archive_of(mail, tmp_path)
    numbers = [await send(mail, f"Message {count}") for count in range(7)]
    await relay_of(mail, archive).drain()
    log = await asyncio.to_thread(
        subprocess.check_output,
        ["git", "-C", str(tmp_path / "archive" / f"{SLUG}.git"), "log", "--format=%s%n%b"],
        text=True,
    )
    assert log.splitlines()[0] == "mail: 7 messages, Message 0"
    assert [line for line in log.splitlines() if line.startswith("Message-Id:")] == [
        f"Message-Id: {number}" for number in numbers
    ]


async def test_a_lost_reply_after_the_commit_writes_nothing_twice(mail: Mail, tmp_path: Path) -> None:
    await send(mail, "Once")
    losing = Losing(mail.store.store, nth=3)  # what is forgotten, the claim, the end
    archive = archive_of(mail, tmp_path)
    await relay_of(mail, archive, store=losing).drain()  # the row's end is written, and nobody is told
    assert losing.lost
    commits = await asyncio.to_thread(lambda: archive.repository(SLUG).commit_count())
    await relay_of(mail, archive).drain()
    assert await asyncio.to_thread(lambda: archive.repository(SLUG).commit_count()) == commits == 1
    assert await waiting(mail) == 0


async def test_a_crash_between_commit_and_outbox_replays_to_the_same_archive(
    mail: Mail, tmp_path: Path
) -> None:
    await send(mail, "Once")
    archive = archive_of(mail, tmp_path)
    rows = await mail.store.read(lambda tx: tx.outbox.open(ARCHIVE, limit=100))
    project = await mail.store.read(lambda tx: tx.project(SLUG))
    assert project is not None
    batch = await mail.store.read(lambda tx: gather(tx, project, [row.payload["record"] for row in rows]))
    await asyncio.to_thread(archive._commit, batch)  # the process died here
    before = await asyncio.to_thread(lambda: archive.repository(SLUG).tip())
    assert await relay_of(mail, archive).drain() == len(rows)
    assert await asyncio.to_thread(lambda: archive.repository(SLUG).tip()) == before


async def test_mail_works_while_git_is_broken_and_the_backlog_drains_afterwards(
    mail: Mail, clock: ManualClock, tmp_path: Path
) -> None:
    (tmp_path / "archive").write_text("in the way")
    archive = archive_of(mail, tmp_path)
    relay = relay_of(mail, archive)
    numbers = [await send(mail, "While broken"), await send(mail, "Still broken")]
    assert await relay.drain() == 0
    assert await waiting(mail) == 5  # three profiles and two messages
    row = (await mail.store.read(lambda tx: tx.outbox.open(ARCHIVE, limit=1)))[0]
    assert row.attempt_count == 1
    assert row.last_error
    (tmp_path / "archive").unlink()
    assert await relay.drain() == 0  # at rest for a second
    clock.advance(timedelta(seconds=1))
    assert await relay.drain() == 5
    assert len(await paths(archive, "messages/")) == len(numbers)


async def test_one_broken_project_does_not_hold_up_the_others(mail: Mail, tmp_path: Path) -> None:
    await mail.call("ensure_project", {"human_key": "/srv/harbour"})
    await mail.call(
        "register_agent", {"project_key": "/srv/harbour", "program": "p", "model": "m", "name": "Dora"}
    )
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / f"{SLUG}.git").write_text("in the way")
    archive = archive_of(mail, tmp_path)
    await relay_of(mail, archive, batch=2).drain()
    assert await asyncio.to_thread(lambda: archive.repository("srv-harbour").paths("agents/")) == [
        "agents/Dora/profile.json"
    ]
    assert await waiting(mail) == 3


async def test_a_recalled_message_is_emptied_where_it_lies(mail: Mail, tmp_path: Path) -> None:
    archive = archive_of(mail, tmp_path)
    number = await send(mail, "Too early", body_md="the secret plan")
    await relay_of(mail, archive).drain()
    await mail.call("recall_message", {"project_key": PROJECT, "sender_name": "Ada", "message_id": number})
    await relay_of(mail, archive).drain()
    (path,) = await paths(archive, "messages/")
    text = await content(archive, path)
    assert "secret" not in text
    assert '"2023-11-14T22:13:20.000Z"' in text.partition("recalled: ")[2]
    assert "(recalled)" in await content(archive, f"threads/msg-{number}.md")


async def test_hidden_recipients_are_in_no_file(mail: Mail, tmp_path: Path) -> None:
    archive = archive_of(mail, tmp_path)
    await send(mail, "Between us", bcc=["Cleo"])
    await relay_of(mail, archive).drain()
    for path in await paths(archive, "messages/") + await paths(archive, "threads/"):
        assert "Cleo" not in await content(archive, path)


async def test_the_archive_rebuilt_from_the_database_is_the_one_the_relay_wrote(
    mail: Mail, tmp_path: Path
) -> None:
    for count in range(5):
        await send(mail, f"Message {count}", thread_id="one")
    await mail.call(
        "file_reservation_paths",
        {"project_key": PROJECT, "agent_name": "Ben", "paths": ["src/**", "docs/a.md"]},
    )
    archive = archive_of(mail, tmp_path)
    await relay_of(mail, archive).drain()
    anew = archive_of(mail, tmp_path / "anew")
    project = await mail.store.read(lambda tx: tx.project(SLUG))
    assert project is not None
    assert await anew.rebuild(project, page=2) == 3 + 5 + 2
    assert await _files(anew) == await _files(archive)
    assert await archive.rebuild(project) == 10
    assert await _files(archive) == await _files(anew)


async def _files(archive: Archive) -> dict[str, bytes]:
    return await asyncio.to_thread(lambda: dict(archive.repository(SLUG).walk()))


async def test_the_database_rebuilt_from_the_archive_holds_the_same_mail(
    mail: Mail, clock: ManualClock, tmp_path: Path
) -> None:
    first = await send(
        mail, "Plan", cc=["Cleo"], topic="lamp", attachments=[{"name": "a.txt", "content_base64": "aGk="}]
    )
    await mail.call(
        "reply_message",
        {"project_key": PROJECT, "sender_name": "Ben", "message_id": first, "body_md": "Done.\n---\n"},
    )
    await mail.call(
        "file_reservation_paths", {"project_key": PROJECT, "agent_name": "Ben", "paths": ["src/**"]}
    )
    archive = archive_of(mail, tmp_path)
    await relay_of(mail, archive).drain()
    store = await asyncio.to_thread(SqliteStore.open, tmp_path / "new.db", clock=clock)
    try:
        counts = await write_rows(
            await read_root(tmp_path / "archive", (AUTHOR.name, AUTHOR.email)), tmp_path / "archive", store
        )
        assert counts["messages"] == 2
        again = Mail(store, clock)
        for name in ("Ada", "Ben", "Cleo"):
            asked = {"project_key": PROJECT, "agent_name": name, "limit": 50}
            assert await again.call("fetch_inbox", asked) == await mail.call("fetch_inbox", asked)
        found = await again.call("search_messages", {"project_key": SLUG, "query": "plan"})
        assert [hit["id"] for hit in found["hits"]] == [2, 1]
        for asked in ({"project_key": SLUG}, {"project_key": PROJECT, "agent_name": "Ben"}):
            assert await again.call("list_file_reservations", asked) == await mail.call(
                "list_file_reservations", asked
            )
        sent = await again.call(
            "send_message",
            {"project_key": PROJECT, "sender_name": "Ada", "to": ["Ben"], "subject": "Next", "body_md": "."},
        )
        assert sent["deliveries"][0]["payload"]["id"] == 3
        with pytest.raises(StateError):
            await write_rows(
                await read_root(tmp_path / "archive", (AUTHOR.name, AUTHOR.email)),
                tmp_path / "archive",
                store,
            )
    finally:
        await asyncio.to_thread(store.close)


async def test_a_damaged_archive_is_refused_whole(mail: Mail, clock: ManualClock, tmp_path: Path) -> None:
    await send(mail, "Plan")
    archive = archive_of(mail, tmp_path)
    await relay_of(mail, archive).drain()
    await asyncio.to_thread(
        lambda: archive.repository(SLUG).write({"messages/2023/11/9-x.md": b"no head"}, subject="x", now=0)
    )
    store = await asyncio.to_thread(SqliteStore.open, tmp_path / "new.db", clock=clock)
    try:
        with pytest.raises(StoreCorrupt, match="9-x"):
            await write_rows(
                await read_root(tmp_path / "archive", (AUTHOR.name, AUTHOR.email)),
                tmp_path / "archive",
                store,
            )
        assert await store.read(lambda tx: tx.projects(limit=1)) == []
    finally:
        await asyncio.to_thread(store.close)


async def test_a_row_whose_project_is_unknown_does_not_stay_for_ever(mail: Mail, tmp_path: Path) -> None:
    await relay_of(mail, archive_of(mail, tmp_path)).drain()
    await mail.store.write(lambda tx: to_archive(mail.context(tx, Caller()), "message", 1, 999))
    assert await relay_of(mail, archive_of(mail, tmp_path)).drain() == 1
    assert await waiting(mail) == 0


async def test_a_batch_that_fails_in_no_known_way_ends_neither_the_relay_nor_mail(
    mail: Mail, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = archive_of(mail, tmp_path)
    relay = relay_of(mail, archive)
    with monkeypatch.context() as broken:
        broken.setattr(archive, "_commit", lambda _: {}["a fault of ours"])
        assert await relay.drain() == 0
    row = (await mail.store.read(lambda tx: tx.outbox.open(ARCHIVE, limit=1)))[0]
    assert (row.attempt_count, row.last_error) == (1, "KeyError inside postroom; its log has the cause")
    await send(mail, "Meanwhile")
    clock.advance(timedelta(seconds=1))
    assert await relay.drain() == 4
    assert await waiting(mail) == 0


async def test_a_deleted_message_leaves_the_newest_tree_with_what_nothing_else_refers_to(
    mail: Mail, tmp_path: Path
) -> None:
    archive = archive_of(mail, tmp_path)
    file = {"name": "a.txt", "content_base64": "YQ=="}
    gone = await send(mail, "Zebra", thread_id="zoo", attachments=[file])
    alone = await send(mail, "Alone", attachments=[{"name": "b.txt", "content_base64": "Yg=="}])
    stays = await send(mail, "Stays", thread_id="zoo", attachments=[file])
    relay = relay_of(mail, archive)
    await relay.drain()
    await mail.store.settle()
    before = await paths(archive)
    rules = rules_of_mail.ProjectRules([KeepRule(keep=timedelta(days=1), unread_stays=False)])
    mail.clock.advance(timedelta(days=2))  # type: ignore[attr-defined]
    assert (
        await mail.store.write(
            lambda tx: rules_of_mail.delete_some(tx, project_id=1, ids=[gone, alone], rules=rules)
        )
        == 2
    )
    losing = Losing(mail.store.store, 3)  # type: ignore[attr-defined]
    await relay_of(mail, archive, store=losing).drain()
    assert losing.lost
    mail.clock.advance(timedelta(hours=1))  # type: ignore[attr-defined]
    await relay.drain()
    after = await paths(archive)
    assert set(before) - set(after) == {
        f"messages/2023/11/{gone}-zebra.md",
        f"messages/2023/11/{alone}-alone.md",
        f"threads/msg-{alone}.md",
        f"attachments/{sha256(b'b').hexdigest()[:2]}/{sha256(b'b').hexdigest()}",
    }
    assert set(after) < set(before)
    assert "Zebra" not in await content(archive, "threads/zoo.md")
    assert f"#{stays}" in await content(archive, "threads/zoo.md")
    [project] = await mail.store.read(lambda tx: tx.projects(limit=9))
    assert await archive.differing(project) == []
    rebuilt = SqliteStore.in_memory(mail.clock)
    rows = await write_rows(await read_root(archive.root, ("a", "a@b")), archive.root, rebuilt)
    rebuilt.close()
    assert rows["messages"] == 1


async def test_a_reservation_that_a_call_of_its_agent_extended_is_no_damage(
    mail: Mail, tmp_path: Path
) -> None:
    archive = archive_of(mail, tmp_path)
    ada = {"project_key": PROJECT, "agent_name": "Ada"}
    await mail.call("file_reservation_paths", {**ada, "paths": ["piers/**"]})
    await relay_of(mail, archive).drain()
    mail.clock.advance(timedelta(minutes=1))  # type: ignore[attr-defined]
    await send(mail, "Still at it")
    await mail.store.settle()
    await relay_of(mail, archive).drain()
    [project] = await mail.store.read(lambda tx: tx.projects(limit=9))
    [held] = await mail.store.read(lambda tx: tx.live_reservations(project.id, now=mail.clock.now()))
    assert iso(held.expires_at) != json.loads(await content(archive, "reservations/1.json"))["expires_at"]
    assert await archive.differing(project) == []
