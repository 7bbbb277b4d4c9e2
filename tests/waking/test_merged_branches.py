"""Subscriptions to merged branches, in real repositories: what Git does becomes one message."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from postroom.contracts.errors import EventNotReported, InvalidArgument
from postroom.mail.waking.subscription_rounds import MAX_EVENTS_READ, SubscriptionRounds
from postroom.stores.mail.store import MailStore
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock
from waking_room import Room


class Harbor(Room):
    """A room whose project is a repository, with Ada, who is notified of merged branches."""

    folder: Path
    server: SubscriptionRounds

    async def git(self, *words: str) -> None:
        named = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        command = ["git", "-C", str(self.folder), *named, *words]
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=20)

    async def commit(self, name: str) -> None:
        (self.folder / name).write_text(name)
        await self.git("add", name)
        await self.git("commit", "-qm", f"add {name}")

    async def branch(self, name: str, *files: str) -> None:
        """Make a branch of the main branch with a commit for each file, and go back to the main branch."""
        await self.git("switch", "-qc", name)
        for file in files:
            await self.commit(file)
        await self.git("switch", "-q", "main")

    async def call(self, operation: str, **arguments: Any) -> Any:
        named = {"project_key": str(self.folder), "agent_name": "Ada", **arguments}
        return await self.mail.call(operation, {key: one for key, one in named.items() if one is not None})

    async def subscribe(self, about: str = "", **more: Any) -> Any:
        made = await self.call("subscribe", kind="branch_merged", about=about, **more)
        await self.round()
        return made

    async def round(self, *, restarted: bool = False) -> list[str]:
        """Let a server look until nothing is left; return the sentences of all messages so far."""
        if restarted:
            self.server = SubscriptionRounds(self.mail, self.waker)
        for _ in range(2):  # the first logs what Git shows, the next sends the message
            await self.server.round()
        found = await self.call("fetch_inbox", limit=100, include_bodies=True)
        return [
            line[2:] for one in reversed(found) for line in one["body_md"].splitlines() if line[:2] == "- "
        ]


@pytest_asyncio.fixture
async def harbor(
    stores: tuple[MailStore, RunStores], clock: ManualClock, tmp_path: Path
) -> AsyncIterator[Harbor]:
    made = Harbor(*stores, clock=clock)
    made.folder = tmp_path / "harbor"
    made.folder.mkdir()
    await made.git("init", "-q", "-b", "main")
    await made.commit("first")
    await made.call("ensure_project", agent_name=None)
    for name in ("Ada", "Ben"):
        await made.call("register_agent", agent_name=None, name=name, program="test", model="test")
    made.server = SubscriptionRounds(made.mail, made.waker)
    yield made
    await made.close()


def told(*names: str) -> list[str]:
    return [f'"{name}" was merged into "main"' for name in names]


def short(sentences: list[str]) -> list[str]:
    return [one.partition(" (")[0] for one in sentences]


MERGES = {
    "a merge commit": [("merge", "-q", "--no-ff", "pier", "-m", "x")],
    "a fast-forward": [("merge", "-q", "pier")],
    "a fast-forward without `git merge`": [
        ("branch", "-f", "copy", "main"),
        ("reset", "-q", "--hard", "pier"),
    ],
    "and the branch is deleted": [("merge", "-q", "--no-ff", "pier"), ("branch", "-qd", "pier")],
    "forward, and the branch is deleted": [("merge", "-q", "pier"), ("branch", "-qd", "pier")],
    "and the main branch goes on": [("merge", "-q", "pier"), ("commit", "-q", "--allow-empty", "-m", "x")],
    "and new branches begin": [("merge", "-q", "pier", "--no-ff"), ("branch", "next"), ("branch", "other")],
    "as a forge does": [
        ("merge", "-q", "--no-ff", "pier", "-m", "Merge pull request #7 from ben/pier"),
        ("branch", "-qD", "pier"),
    ],
}


@pytest.mark.parametrize("how", MERGES)
async def test_a_merged_branch_is_told_once_however_it_was_merged(harbor: Harbor, how: str) -> None:
    await harbor.subscribe()
    await harbor.branch("pier", "a", "b")
    assert await harbor.round() == []
    for words in MERGES[how]:
        await harbor.git(*words)
    for restarted in (False, True, False):
        assert short(await harbor.round(restarted=restarted)) == told("pier"), how
    log = await harbor.call("fetch_events", agent_name=None, kinds=["branch.merged"])
    assert [one["detail"]["branch"] for one in log["events"]] == ["pier"]


NOT_MERGED = {
    "a new branch": [("branch", "pier")],
    "a commit on the main branch, and a new branch": [
        ("commit", "-q", "--allow-empty", "-m", "x"),
        ("branch", "pier"),
    ],
    "a squash": [("merge", "-q", "--squash", "pier"), ("commit", "-qm", "all of pier")],
    "a rebase that copies the commits": [("cherry-pick", "pier~1", "pier")],
    "a branch that is deleted unmerged": [("branch", "-qD", "pier")],
    "a branch that follows the main branch": [
        ("commit", "-q", "--allow-empty", "-m", "x"),
        ("branch", "-f", "pier", "main"),
    ],
    "the main branch goes back": [("reset", "-q", "--hard", "main~1")],
}


@pytest.mark.parametrize("what", NOT_MERGED)
async def test_other_changes_of_branches_are_no_merges(harbor: Harbor, what: str) -> None:
    await harbor.commit("second")
    if "new branch" not in what:
        await harbor.branch("pier", "a", "b")
    await harbor.subscribe()
    for words in NOT_MERGED[what]:
        await harbor.git(*words)
    assert await harbor.round() == [], what
    assert await harbor.round(restarted=True) == []


async def test_a_merge_made_while_no_server_ran_is_told_at_the_next_start(harbor: Harbor) -> None:
    await harbor.subscribe("pier")
    await harbor.subscribe("north")
    await harbor.branch("pier", "a")
    for number in range(MAX_EVENTS_READ // 100 + 1):  # many other entries do not move the cursor away
        paths = [f"{number}/{one}" for one in range(100)]
        await harbor.call("file_reservation_paths", agent_name="Ben", paths=paths)
        await harbor.round()
    await harbor.git("merge", "-q", "--no-ff", "pier")
    await harbor.branch("north", "b")
    assert short(await harbor.round(restarted=True)) == told("pier")
    await harbor.git("merge", "-q", "--no-ff", "north")
    assert short(await harbor.round(restarted=True)) == told("pier", "north")


async def test_what_was_merged_before_the_subscription_is_not_told(harbor: Harbor) -> None:
    first = await harbor.subscribe("", once=True)
    await harbor.branch("old", "a")
    await harbor.git("merge", "-q", "old")
    assert short(await harbor.round()) == told("old")
    await harbor.branch("unwatched", "b")
    await harbor.git("merge", "-q", "--no-ff", "unwatched")
    assert len(await harbor.round()) == 1, "the subscription has ended"
    assert (await harbor.subscribe())["id"] == first["id"] + 1
    await harbor.branch("new", "c")
    await harbor.git("merge", "-q", "new")
    assert short(await harbor.round()) == told("old", "new")


async def test_a_main_branch_that_was_pushed_with_force_is_compared_with_its_former_commit(
    harbor: Harbor,
) -> None:
    await harbor.commit("second")
    await harbor.subscribe()
    await harbor.branch("pier", "a")
    await harbor.git("merge", "-q", "--no-ff", "pier")
    await harbor.git("reset", "-q", "--hard", "main~1")
    assert await harbor.round() == [], "merged and taken back between two looks"
    await harbor.git("merge", "-q", "--no-ff", "pier")
    assert short(await harbor.round()) == told("pier")
    await harbor.git("reset", "-q", "--hard", "main~1")
    await harbor.round()
    await harbor.git("reflog", "expire", "--expire=all", "--all")
    await harbor.git("gc", "-q", "--prune=now")
    await harbor.branch("north", "b")
    await harbor.git("merge", "-q", "north")
    assert short(await harbor.round(restarted=True)) == told("pier", "north")


async def test_a_branch_of_a_remote_is_told_by_its_name_when_the_main_branch_has_it(
    harbor: Harbor, tmp_path: Path
) -> None:
    here = harbor.folder
    await harbor.git("clone", "-q", str(here), str(tmp_path / "other"))
    harbor.folder = tmp_path / "other"
    await harbor.branch("pier", "a")
    harbor.folder = here
    await harbor.git("remote", "add", "origin", str(tmp_path / "other"))
    await harbor.subscribe()
    await harbor.git("fetch", "-q", "origin")
    assert await harbor.round() == []
    await harbor.git("pull", "-q", "origin", "pier")
    assert short(await harbor.round()) == told("pier")


async def test_two_servers_tell_of_a_merge_once(harbor: Harbor) -> None:
    await harbor.subscribe()
    await harbor.branch("pier", "a")
    await harbor.git("merge", "-q", "pier")
    servers = [SubscriptionRounds(harbor.mail, harbor.waker) for _ in range(4)]
    for _ in range(2):
        await asyncio.gather(*(server.round() for server in servers))
    assert short(await harbor.round()) == told("pier")


async def test_a_subscription_needs_a_repository_and_a_name_of_one_line(
    harbor: Harbor, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    key = {"project_key": str(plain)}
    await harbor.call("ensure_project", agent_name=None, **key)
    await harbor.call("register_agent", agent_name=None, name="Ada", program="test", model="test", **key)
    with pytest.raises(EventNotReported):
        await harbor.call("subscribe", kind="branch_merged", **key)
    for bad in ("a\nb", "x" * 201):
        with pytest.raises(InvalidArgument):
            await harbor.call("subscribe", kind="branch_merged", about=bad)


async def test_a_repository_that_is_gone_or_damaged_stops_no_other_subscription(harbor: Harbor) -> None:
    await harbor.subscribe()
    await harbor.call("subscribe", kind="task_ready")
    harbor.folder.rename(harbor.folder.with_name("elsewhere"))
    await harbor.call("add_task", agent_name="Ben", title="one")
    assert await harbor.round(restarted=True) == ['Task 1 is ready: "one".']
