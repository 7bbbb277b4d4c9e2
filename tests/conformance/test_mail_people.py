"""Projects, agents and contacts."""

import pytest
from msgspec.structs import replace

from conformance.boxes import Box, on_both
from conformance.promises import given
from conformance.promises.given import Office
from postroom.contracts.errors import InputError, StoreError
from postroom.testing import ManualClock


@on_both
def test_a_project_is_found_by_path_slug_and_id(box: Box, clock: ManualClock) -> None:
    stored = {"slug": "home-a", "human_key": "/home/a", "spelling": "/HOME/A", "owner": "Åsa"}
    made = box.insert_project(git_identity="git@example.org:a#1", now=clock.now(), **stored)
    assert {name: getattr(made, name) for name in stored} == stored
    assert (made.git_identity, made.created_at) == ("git@example.org:a#1", clock.now())
    assert [box.project("/home/a"), box.project("home-a"), box.project_by_id(made.id)] == [made] * 3
    assert (box.project("nowhere"), box.project_by_id(made.id + 1)) == (None, None)


@on_both
def test_a_taken_slug_or_path_is_refused(box: Box) -> None:
    made = box.change(given.project)
    for slug, path in ((made.slug, "/elsewhere"), ("elsewhere", made.human_key)):
        with pytest.raises(StoreError):
            box.insert_project(slug=slug, human_key=path, spelling="", git_identity="", owner="", now=1)
    assert box.projects(limit=10) == [made]


def test_an_alias_names_the_first_project_that_claims_it(box: Box) -> None:
    first, second = given.project(box, "one"), given.project(box, "two")
    for one in (first, first, second):
        box.add_project_alias(one.id, "C:\\one")
    assert (box.project("C:\\one"), box.project("c:\\one")) == (first, None)


def test_projects_of_one_spelling_come_oldest_first(box: Box) -> None:
    made = [given.project(box, name, spelling="c:/work") for name in ("b", "a", "c")]
    given.project(box, "d", spelling="c:/worker")
    assert box.projects_spelled("c:/work") == made
    assert box.projects_spelled("nowhere") == []


def test_projects_come_by_id_after_a_cursor(box: Box) -> None:
    assert box.projects(limit=10) == []
    made = [given.project(box, f"p{number}") for number in range(5)]
    assert box.projects(limit=10) == made
    assert box.projects(limit=2) == made[:2]
    assert box.projects(limit=2, after=made[1].id) == made[2:4]
    assert box.projects(limit=2, after=made[-1].id) == box.projects(limit=0) == []


def test_setting_git_identity_or_folder_changes_nothing_else_of_a_project(box: Box) -> None:
    made = given.project(box)
    box.set_git_identity(made.id, "remote#root")
    made = replace(made, git_identity="remote#root")
    assert box.project_by_id(made.id) == made
    for folder in ("/moved", "/again", made.human_key):  # its former folders still name it
        box.set_project_folder(made.id, folder, spelling=folder.upper())
        assert box.project(folder) == replace(made, human_key=folder, spelling=folder.upper())
    expected = replace(made, spelling=made.human_key.upper())
    assert [box.project(name) for name in ("/moved", "/again")] == [expected] * 2


def test_a_new_agent_reads_back_as_it_was_stored(box: Box) -> None:
    home = given.project(box)
    says = {"program": "shell", "model": "m-1", "task_description": "öl"}
    box.insert_agent(home.id, name="Ada", now=5, **says)
    ada = box.agent(home.id, "Ada")
    assert (ada.project_id, ada.name, ada.created_at, ada.last_active_at) == (home.id, "Ada", 5, 5)
    assert {name: getattr(ada, name) for name in says} == says
    assert (ada.contact_policy, ada.retired_at, ada.token_hash) == ("open", None, None)
    assert (ada.inbox_seq, ada.inbox_floor) == (0, 0)


@on_both
def test_names_are_compared_without_regard_to_case(box: Box) -> None:
    one, two = given.project(box, "one"), given.project(box, "two")
    names = ["GreenLake", "Ångström", "Straße", "ΣΊΣ"]
    others = ["greenLAKE", "ÅNGSTRÖM", "STRASSE", "σίς"]
    made = [given.agent(box, one.id, name) for name in names]
    assert [one.name for one in made] == names
    assert [box.agent(one.id, other) for other in others] == made
    assert box.agent(one.id, "Green") is None
    for other in others:
        with pytest.raises(StoreError):
            given.agent(box, one.id, other)
    second = given.agent(box, two.id, "GREENLAKE")
    assert (box.agent(one.id, "greenlake"), box.agent(two.id, "greenlake")) == (made[0], second)


def test_agents_are_found_by_several_names_or_ids_at_once(box: Box, here: Office, there: Office) -> None:
    found = box.agents_named(here.project.id, ["BEN", "ada", "Ben", "Nobody"])
    assert sorted(one.id for one in found) == [here.ada.id, here.ben.id]
    assert box.agents_named(there.project.id, []) == []
    ids = [here.cyd.id, here.ada.id, 999, here.ada.id]
    assert box.agents_by_id(ids) == {here.ada.id: here.ada, here.cyd.id: here.cyd}
    assert box.agents_by_id([]) == {}


def test_agents_come_by_id_after_a_cursor_or_by_their_last_activity(
    box: Box, here: Office, there: Office
) -> None:
    box.touch_agent(here.cyd.id, 9)
    box.set_agent_retired(here.ben.id, 5, now=5)

    def page(limit: int, after: int = 0, *, retired: bool) -> list[str]:
        found = box.agents(here.project.id, include_retired=retired, limit=limit, after=after)
        return [one.name for one in found]

    assert page(10, retired=True) == ["Ada", "Ben", "Cyd"]
    assert page(10, retired=False) == ["Ada", "Cyd"]
    assert page(1, retired=False) == ["Ada"]
    assert page(1, here.ada.id, retired=False) == ["Cyd"]
    assert page(1, here.ada.id, retired=True) == ["Ben"]
    assert page(1, here.cyd.id, retired=True) == []
    assert [one.name for one in box.active_agents(here.project.id, limit=9)] == ["Cyd", "Ada"]
    assert [one.name for one in box.active_agents(here.project.id, limit=1)] == ["Cyd"]


def test_an_update_replaces_what_an_agent_says_of_itself(box: Box, here: Office) -> None:
    box.set_contact_policy(here.ada.id, "approval", now=1)
    box.set_agent_token(here.ada.id, "hash")
    box.put(here.ben, [here.ada])
    before = box.agent(here.project.id, "Ada")
    says = {"program": "p", "model": "m", "task_description": "t"}
    updated = box.update_agent(here.ada.id, now=5, **says)
    assert updated == replace(before, last_active_at=5, **says) == box.agent(here.project.id, "Ada")
    assert (updated.contact_policy, updated.token_hash, updated.inbox_seq) == ("approval", "hash", 1)


def test_activity_never_goes_back(box: Box, here: Office) -> None:
    for now in (9, 5):
        box.touch_agent(here.ada.id, now)
    updated = box.update_agent(here.ada.id, program="", model="", task_description="", now=5)
    assert updated.last_active_at == 9


def test_an_agent_is_retired_and_brought_back(box: Box, here: Office) -> None:
    box.set_agent_retired(here.ada.id, 5, now=5)
    assert box.agent(here.project.id, "Ada").retired_at == 5
    box.set_agent_retired(here.ada.id, None, now=6)
    assert box.agent(here.project.id, "Ada") == here.ada


@on_both
def test_a_token_belongs_to_one_agent_until_it_is_replaced(box: Box, here: Office) -> None:
    assert box.agent_by_token("one") is None
    for _ in range(2):
        box.set_agent_token(here.ada.id, "one")
    found = box.agent_by_token("one")
    assert (found.id, found.token_hash) == (here.ada.id, "one")
    with pytest.raises(StoreError):
        box.set_agent_token(here.ben.id, "one")
    box.set_agent_token(here.ada.id, "two")
    assert box.agent_by_token("one") is None
    box.set_agent_token(here.ada.id, None)
    assert box.agent_by_token("two") is None


def test_a_contact_policy_is_replaced(box: Box, here: Office) -> None:
    for policy in ("same_owner", "approval", "open", "closed"):
        box.set_contact_policy(here.ada.id, policy, now=1)
        assert box.agents_by_id([here.ada.id])[here.ada.id].contact_policy == policy
    assert box.agents_by_id([here.ben.id])[here.ben.id].contact_policy == "open"


def test_a_contact_link_has_a_direction_and_keeps_its_beginning(box: Box, here: Office) -> None:
    ada, ben = here.ada.id, here.ben.id
    for now, status, decided in (
        (5, "pending", None),
        (6, "approved", 6),
        (7, "blocked", 7),
        (8, "pending", None),
    ):
        link = box.put_contact(ada, ben, status=status, reason=f"is {status}", now=now)
        assert (link.from_id, link.to_id, link.status, link.reason) == (ada, ben, status, f"is {status}")
        assert (link.created_at, link.decided_at) == (5, decided)
        assert (box.contact(ada, ben), box.contact(ben, ada)) == (link, None)
    reach = box.reach(ada, [ben, here.cyd.id])
    assert {agent_id: one.granted for agent_id, one in reach.items()} == {ben: "pending", here.cyd.id: None}


def test_contacts_of_an_agent_are_those_from_and_to_it_oldest_first(box: Box, here: Office) -> None:
    ada, ben, cyd = here.ada.id, here.ben.id, here.cyd.id
    for one, other, now in ((cyd, ada, 7), (ada, ben, 6), (ada, ada, 8), (ben, cyd, 5)):
        box.put_contact(one, other, status="pending", reason="", now=now)
    assert [(one.from_id, one.to_id) for one in box.contacts(ada)] == [(ada, ben), (cyd, ada), (ada, ada)]


@on_both
def test_a_change_of_what_is_not_there_is_refused(box: Box, here: Office) -> None:
    for change in (
        lambda tx: tx.set_git_identity(99, ""),
        lambda tx: tx.set_project_folder(99, "/moved", spelling="/moved"),
        lambda tx: tx.update_agent(99, program="", model="", task_description="", now=1),
        lambda tx: tx.set_agent_retired(99, 1, now=1),
        lambda tx: tx.set_agent_token(99, None),
        lambda tx: tx.set_contact_policy(99, "open", now=1),
        lambda tx: tx.touch_agent(99, 1),
        lambda tx: tx.mark_recalled(99, 1),
        lambda tx: tx.extend_reservation(99, expires_at=2, ttl=1, exclusive=True, reason="", now=1),
        lambda tx: tx.release_reservation(99, now=1, by="", reason=""),
    ):
        with pytest.raises(InputError):
            box.change(change)
    with pytest.raises(StoreError):
        given.agent(box, 99, "Dot")
    with pytest.raises(StoreError):
        box.put_contact(here.ada.id, 99, status="pending", reason="", now=1)
