"""Promises of a mail store about projects that become one: nothing is lost, renumbered or told to nobody."""

from conformance.promises.given import (
    Office,
    agent,
    an_office,
    file,
    never_made,
    project,
    put_message,
    reservation,
)
from postroom.contracts.mail import Agent, Project, Term
from postroom.contracts.project_log import ProjectEvent
from postroom.contracts.tokens import SCOPES, KeptToken
from postroom.stores.mail.access import MailReads, MailWrites
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock


async def _two(store: MailStore) -> tuple[Office, Project, Agent]:
    """Store an office with mail, and a project with an agent, mail to and from the office, and the rest."""
    here = await an_office(store)

    def made(tx: MailWrites) -> tuple[Project, Agent]:
        other = project(tx, "worktree")
        tx.add_project_alias(other.id, "/projects/link")
        dan = agent(tx, other.id, "Dan")
        put_message(tx, here.ada, [here.ben, dan], body="plum", thread="t")
        mine = put_message(tx, dan, [here.ada], body="plum jam", thread="t")
        put_message(tx, dan, [dan], body="pear", thread="mine")
        tx.insert_blob("a" * 64, b"a")
        tx.insert_attachment(mine.id, file("a" * 64))
        reservation(tx, dan, "src", now=tx.now())
        tx.put_token(
            KeptToken(
                id="t",
                name="ci",
                hash="f" * 64,
                scopes=frozenset({SCOPES[0]}),
                project_id=other.id,
                created_at=1,
            )
        )
        return other, dan

    other, dan = await store.write(made)
    await store.settle()
    return here, other, dan


async def all_of_a_merged_project_is_the_others_under_its_ids(store: MailStore, clock: ManualClock) -> None:
    """Agents, inboxes, messages, threads, reservations, tokens, words to search, and every name."""
    here, other, dan = await _two(store)
    inbox = await store.read(lambda tx: tx.inbox(dan.id, limit=9))
    late = await store.write(lambda tx: put_message(tx, dan, [dan], body="plum late", thread="mine"))
    await never_made(store, lambda tx: tx.merge_projects(other, here.project, renames={}, now=9))
    assert await store.read(lambda tx: tx.project_by_id(other.id)) == other
    await store.write(lambda tx: tx.merge_projects(other, here.project, renames={}, now=9))
    await store.settle()
    after = await store.write(lambda tx: put_message(tx, here.ben, [dan], body="plum after", thread="mine"))
    await store.settle()

    def look(tx: MailReads) -> None:
        assert tx.project_by_id(other.id) is None
        for name in (other.slug, other.human_key, "/projects/link"):
            assert tx.project(name) == here.project, name
        moved = tx.agent(here.project.id, "dan")
        assert moved is not None
        assert (moved.id, moved.inbox_seq) == (dan.id, 4)
        assert [one.message.id for one in tx.inbox(dan.id, limit=9)][-2:] == [one.message.id for one in inbox]
        assert {one.project_id for one in tx.messages(range(1, after.id + 1)).values()} == {here.project.id}
        heads = {one.thread_id: (one.messages, one.last_id) for one in tx.threads(here.project.id, limit=9)}
        assert heads == {"t": (2, 2), "mine": (3, after.id)}
        assert tx.thread_size(here.project.id, "t") == 2
        assert [one.holder for one in tx.live_reservations(here.project.id, now=tx.now())] == ["Dan"]
        assert tx.attached_in(here.project.id, ["a" * 64]) == {"a" * 64}
        [token] = tx.tokens(limit=9)
        assert token.project_id == here.project.id
        hits = tx.search(here.project.id, Term("plum"), order="newest", limit=9)
        assert [hit.message.id for hit in hits] == [after.id, late.id, 2, 1]

    await store.read(look)


async def whoever_follows_a_log_that_was_merged_misses_nothing(store: MailStore, clock: ManualClock) -> None:
    """From any number of either log: all that came after it, and what comes; without gaps."""
    await _follows(store, "short", agents=1, keep=99)
    await _follows(store, "long", agents=30, keep=12)


async def _follows(store: MailStore, slug: str, *, agents: int, keep: int) -> None:
    here = await an_office(store, f"harbor-{slug}")

    def made(tx: MailWrites) -> Project:
        other = project(tx, f"worktree-{slug}")
        for number in range(agents):
            agent(tx, other.id, f"Dan{number}")
        return other

    other = await store.write(made)
    await store.write(lambda tx: tx.trim_log(other.id, keep=keep, limit=99))
    logs = [await _log(store, number) for number in (here.project.id, other.id)]
    await store.write(lambda tx: tx.merge_projects(other, here.project, renames={}, now=9))
    merged = await _log(store, here.project.id)
    numbers = [one.seq for one in merged]
    assert numbers == list(range(numbers[0], numbers[0] + len(merged)))
    last = merged[-1].happening
    assert (last.kind, last.detail) == ("project.merged", {"former": other.slug})
    for log in logs:
        for after in log:
            told = [one.happening for one in merged if one.seq > after.seq]
            assert told, "what happens from now on has a greater number"
            assert [one for one in log if one.seq > after.seq and one.happening not in told] == []


async def _log(store: MailStore, project_id: int) -> list[ProjectEvent]:
    return await store.read(lambda tx: tx.project_events(project_id, after=0, limit=99))


async def an_agent_that_is_renamed_by_a_merge_is_found_by_its_new_name(
    store: MailStore, clock: ManualClock
) -> None:
    """Its profile, its messages and their words; the agent whose name it had keeps its own."""
    here, other, dan = await _two(store)
    twin = await store.write(lambda tx: agent(tx, other.id, "ADA"))
    sent = await store.write(lambda tx: put_message(tx, twin, [dan], body="plum of the twin", thread="mine"))
    await store.settle()
    await store.write(lambda tx: tx.merge_projects(other, here.project, renames={twin.id: "Adamant"}, now=9))
    await store.settle()

    def look(tx: MailReads) -> None:
        for name, number in (("ada", here.ada.id), ("adamant", twin.id)):
            found = tx.agent(here.project.id, name)
            assert found is not None, name
            assert found.id == number
        assert tx.messages([sent.id])[sent.id].sender_name == "Adamant"
        hits = tx.search(here.project.id, Term("adamant"), order="newest", limit=9)
        assert [hit.message.id for hit in hits] == [sent.id]
        hits = tx.search(here.project.id, Term("twin"), order="newest", limit=9)
        assert [hit.message.sender_name for hit in hits] == ["Adamant"]

    await store.read(look)


async def what_stands_against_a_merge_is_found(store: MailStore, clock: ManualClock) -> None:
    """Names and threads that both have, how much there is, and which files of the archive tell of it."""
    here, other, dan = await _two(store)
    await store.write(lambda tx: agent(tx, other.id, "ADA"))

    def look(tx: MailReads) -> None:
        size = tx.project_size(other.id)
        assert (size.agents, size.messages, size.reservations, size.tokens) == (2, 2, 1, 1)
        assert tx.shared_agents(other.id, here.project.id) == ["ADA"]
        assert tx.shared_threads(other.id, here.project.id) == ["t"]
        assert not tx.has_threads_of_runs("agent:worktree/")
        found = tx.archived_records(other.id)
        assert found[here.project.id] == ["message:1"], "a message to one of its agents names the project"
        assert found[other.id] == [f"agent:{dan.id}", f"agent:{dan.id + 1}", "message:2", "message:3", *_ONE]

    await store.read(look)


_ONE = ["reservation:1"]

PROMISES = (
    all_of_a_merged_project_is_the_others_under_its_ids,
    whoever_follows_a_log_that_was_merged_misses_nothing,
    an_agent_that_is_renamed_by_a_merge_is_found_by_its_new_name,
    what_stands_against_a_merge_is_found,
)
