"""Projects that become one: nothing is lost, renumbered or told to nobody. Indexes follow on both engines."""

import pytest

from conformance.boxes import Box, on_both
from conformance.promises.given import Office, agent, file, project, reservation
from postroom.contracts.mail import Agent, Project, ProjectEvent, Term
from postroom.contracts.tokens import SCOPES, KeptToken


@pytest.fixture
def two(box: Box, here: Office) -> tuple[Project, Agent]:
    """A project with an agent, mail to and from the office, and the rest."""
    other = project(box, "worktree")
    box.add_project_alias(other.id, "/projects/link")
    dan = agent(box, other.id, "Dan")
    box.put(here.ada, [here.ben, dan], body="plum", thread="t")
    mine = box.put(dan, [here.ada], body="plum jam", thread="t")
    box.put(dan, [dan], body="pear", thread="mine")
    box.insert_blob("a" * 64, b"a")
    box.insert_attachment(mine.id, file("a" * 64))
    box.change(lambda tx: reservation(tx, dan, "src", now=tx.now()))
    scopes = frozenset({SCOPES[0]})
    box.put_token(
        KeptToken(id="t", name="ci", hash="f" * 64, scopes=scopes, project_id=other.id, created_at=1)
    )
    box.settle()
    return other, dan


def merge(box: Box, other: Project, here: Office, renames: dict[int, str] | None = None) -> None:
    box.merge_projects(other, here.project, renames=renames or {}, now=9)
    box.settle()


def found(box: Box, office: Office, word: str) -> list[int]:
    return [hit.message.id for hit in box.search(office.project.id, Term(word), order="newest", limit=9)]


@on_both
def test_all_of_a_merged_project_is_the_others_under_its_ids(
    box: Box, here: Office, two: tuple[Project, Agent]
) -> None:
    (other, dan), home = two, here.project.id
    inbox = [one.message.id for one in box.inbox(dan.id, limit=9)]
    late = box.put(dan, [dan], body="plum late", thread="mine").id
    box.undo(lambda tx: tx.merge_projects(other, here.project, renames={}, now=9))
    assert box.project_by_id(other.id) == other
    merge(box, other, here)
    after = box.put(here.ben, [dan], body="plum after", thread="mine").id
    box.settle()
    assert box.project_by_id(other.id) is None
    for name in (other.slug, other.human_key, "/projects/link"):
        assert box.project(name) == here.project, name
    moved = box.agent(home, "dan")
    assert (moved.id, moved.inbox_seq) == (dan.id, 4)
    assert [one.message.id for one in box.inbox(dan.id, limit=9)][-2:] == inbox
    assert {one.project_id for one in box.messages(range(1, after + 1)).values()} == {home}
    heads = {one.thread_id: (one.messages, one.last_id) for one in box.threads(home, limit=9)}
    assert heads == {"t": (2, 2), "mine": (3, after)}
    assert box.thread_size(home, "t") == 2
    held = box.change(lambda tx: tx.live_reservations(home, now=tx.now()))
    assert [one.holder for one in held] == ["Dan"]
    assert box.attached_in(home, ["a" * 64]) == {"a" * 64}
    assert [token.project_id for token in box.tokens(limit=9)] == [home]
    assert found(box, here, "plum") == [after, late, 2, 1]


@pytest.mark.parametrize(("agents", "keep"), [(1, 99), (30, 12)])
def test_whoever_follows_a_log_that_was_merged_misses_nothing(
    box: Box, here: Office, agents: int, keep: int
) -> None:
    def log(project_id: int) -> list[ProjectEvent]:
        return box.project_events(project_id, after=0, limit=99)

    other = project(box, "worktree")
    for number in range(agents):
        agent(box, other.id, f"Dan{number}")
    box.trim_log(other.id, keep=keep, limit=99)
    logs = [log(here.project.id), log(other.id)]
    merge(box, other, here)
    merged = log(here.project.id)
    numbers = [one.seq for one in merged]
    assert numbers == list(range(numbers[0], numbers[0] + len(merged)))
    last = merged[-1].happening
    assert (last.kind, last.detail) == ("project.merged", {"former": other.slug})
    for before in logs:
        for seen in before:
            told = [one.happening for one in merged if one.seq > seen.seq]
            assert told, "what happens from now on has a greater number"
            assert [one for one in before if one.seq > seen.seq and one.happening not in told] == []


@on_both
def test_an_agent_that_is_renamed_by_a_merge_is_found_by_its_new_name(
    box: Box, here: Office, two: tuple[Project, Agent]
) -> None:
    other, dan = two
    twin = agent(box, other.id, "ADA")
    sent = box.put(twin, [dan], body="plum of the twin", thread="mine").id
    box.settle()
    merge(box, other, here, {twin.id: "Adamant"})
    agents = [box.agent(here.project.id, name).id for name in ("ada", "adamant")]
    assert agents == [here.ada.id, twin.id]
    assert box.messages([sent])[sent].sender_name == "Adamant"
    assert found(box, here, "adamant") == found(box, here, "twin") == [sent]
