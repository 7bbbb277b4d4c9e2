"""Projects, agents and contacts."""

import pytest

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


def test_activity_never_goes_back(box: Box, here: Office) -> None:
    for now in (9, 5):
        box.touch_agent(here.ada.id, now)
    updated = box.update_agent(here.ada.id, program="", model="", task_description="", now=5)
    assert updated.last_active_at == 9


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
