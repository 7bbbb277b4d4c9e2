"""Names of agents: chosen ones are kept exactly, generated ones are made of known words and never taken."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mail_room import Room, room_in_memory
from postroom.contracts.errors import AgentRetired, InvalidName, NameTaken, StateError
from postroom.mail import agents, names
from postroom.mail.commands import CreateAgentIdentity
from postroom.mail.context import Caller, OperationContext, Rules
from postroom.mail.people import name_person
from postroom.mail.service import Mail
from postroom.stores.mail.access import MailWrites
from table_rows import each_row

room = room_in_memory

WHO = {"program": "shell", "model": "none"}


def test_a_name_outside_of_the_rule_is_refused_with_one_that_would_do(subtests: pytest.Subtests) -> None:
    for name in [
        *("", " ", "-a", ".a", "_a", "a b", "a\n", "\na", "a/b", "a\\b", "a@b", "human:ada", "ä", "x" * 65),
        *("a\x00", "a\u200b", "１", "../a", "a:b", "{name}", "<name>", "ada,ben"),
    ]:
        with subtests.test(name=name):
            with pytest.raises(InvalidName) as caught:
                names.check_name(name)
            assert caught.value.value == name
            suggested = re.search(r"for example '([^']*)'", caught.value.remedy)
            assert suggested
            assert names.check_name(suggested[1])


@given(st.text(max_size=80))
@settings(max_examples=20)
def test_every_text_is_either_a_name_or_gets_a_suggestion_that_is_one(text: str) -> None:
    try:
        assert names.check_name(text) == text
    except InvalidName as error:
        suggested = re.search(r"for example '([^']*)'", error.remedy)
        assert suggested
        names.check_name(suggested[1])


async def test_ten_thousand_generated_names_of_one_project_are_all_different(room: Room) -> None:
    await room.open("Ada")
    dice = random.Random(7)

    def make(tx: MailWrites) -> list[str]:
        context = OperationContext(tx=tx, projects=tx, now=1, rules=Rules(), caller=Caller(), dice=dice)
        asked = CreateAgentIdentity(project_key="projects-harbor", program="p", model="m")
        return [agents.create_agent_identity(context, asked)["name"] for _ in range(10_000)]

    made = await room.store.write(make)
    assert len({name.casefold() for name in made}) == 10_000
    assert all(names.check_name(name) for name in made)
    assert sum(name[-1].isdigit() for name in made) < 100, "the lists are large enough"


class _StuckDice(random.Random):
    """Dice that always give the same number."""

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return seq[0]

    def randrange(self, start, stop=None, step=1):  # type: ignore[no-untyped-def]
        return start


async def test_a_generated_name_that_is_taken_is_tried_again_and_the_end_is_a_plain_refusal(
    room: Room,
) -> None:
    await room.open("Ada")
    room.mail = Mail(room.store, room.clock, dice=_StuckDice)
    first = await room.call("create_agent_identity", **WHO)
    second = await room.call("create_agent_identity", **WHO)
    assert second["name"] == first["name"] + "2"
    error = await room.refused(StateError, "create_agent_identity", **WHO)
    assert "choose a name" in error.remedy


async def test_a_chosen_name_is_kept_exactly_and_registering_again_updates_the_same_agent(room: Room) -> None:
    await room.open("Zoe")
    for name in ("x.Y_z-9", "a", "A1", "9", "Ada", "ada.lovelace", "a_b-c.d", "0-0", "x" * 64, "y-", "z.."):
        first = await room.call("register_agent", name=name, **WHO, task_description="one")
        more = {"program": "p2", "model": "m2", "task_description": "two"}
        again = await room.call("register_agent", name=name, **more)
        kept = {key: again[key] for key in ("id", "name", "created_at", *more)}
        assert kept == {"id": first["id"], "name": name, "created_at": first["created_at"], **more}


async def test_a_name_that_differs_by_case_alone_is_refused_with_the_one_in_use(room: Room) -> None:
    await room.open("Ada")
    error = await room.refused(NameTaken, "register_agent", name="ADA", **WHO)
    assert "'Ada'" in error.message
    assert error.value == "ADA"
    assert await room.refused(NameTaken, "start_session", name="aDA", **WHO)


async def test_an_invalid_name_is_refused_wherever_one_is_chosen(room: Room) -> None:
    await room.open("Ada")
    await room.refused(InvalidName, "register_agent", name="", **WHO)
    await room.refused(InvalidName, "register_agent", name="human:ada", **WHO)
    await room.refused(InvalidName, "start_session", name="a b", **WHO)
    await room.refused(InvalidName, "start_session", project_key="/projects/new", name="a b", **WHO)
    long = await room.refused(InvalidName, "register_agent", name="a" * 300, **WHO)
    assert (long.remedy or "").startswith("use 1 to 64 letters")
    assert len(long.message) < 300


async def test_a_person_whose_name_is_refused_is_called_a_person(room: Room) -> None:
    with pytest.raises(InvalidName, match="is not a valid name for a person"):
        await name_person(room.mail, "Bob Ö", None)


@each_row("name", ["System", "user", "Assistant", "postroom"])
async def test_no_new_agent_or_person_has_the_name_of_a_speaker_in_a_prompt(room: Room, name: str) -> None:
    await room.open("Ada")
    await room.refused(InvalidName, "register_agent", name=name, **WHO)
    with pytest.raises(InvalidName, match="reserved"):
        await name_person(room.mail, name, None)


async def test_the_name_of_a_retired_agent_is_not_given_to_another(room: Room) -> None:
    await room.open("Ada")
    await room.call("retire_agent", agent_name="Ada")
    await room.refused(AgentRetired, "register_agent", name="Ada", **WHO)
    await room.refused(NameTaken, "register_agent", name="ada", **WHO)


async def test_names_that_look_like_a_reserved_name_are_refused(
    room: Room, subtests: pytest.Subtests
) -> None:
    await room.call("ensure_project", human_key=(project := "/yard/main"))
    looks = [
        *(
            *("System.", "po.stroom", "user-", "a.s.s.i.s.t.a.n.t", "5ystem", "SYSTEM", "hurnan", "T00L"),
            "p0stro0m",
        ),
        *("Hum4n", "us3r", "all", "Everyone", "everybody", "ME", "m-e", "thread", "Ch4t", "a11"),
        *("\u0455ystem", "\uff33\uff59\uff53\uff54\uff45\uff4d", "sys\u200btem", "user\u0307", "Syst\u0435m"),
    ]
    for name in looks:
        with subtests.test(name):
            with pytest.raises(InvalidName) as caught:
                await room.call("register_agent", project_key=project, name=name, **WHO)
            suggested = re.search(r"for example '([^']*)'", caught.value.remedy)
            assert suggested
            await room.call("register_agent", project_key=project, name=suggested[1], **WHO)
            with pytest.raises(InvalidName):
                await name_person(room.mail, name, None)
    fine = ("system-tests", "user1", "toolbox", "Humane", "post.office", "Ali", "Allan", "chat-2", "Mel")
    for name in fine:
        with subtests.test(name):
            made = await room.call("register_agent", project_key=project, name=name, **WHO)
            assert made["name"] == name


async def test_a_new_name_that_looks_like_an_agent_of_the_project_is_refused(
    room: Room, subtests: pytest.Subtests
) -> None:
    await room.call("ensure_project", human_key=(project := "/yard/main"))
    for name in ("Ben", "bolt", "worker-1-12"):
        await room.call("register_agent", project_key=project, name=name, **WHO)
    for name, other in [
        *(("Ben.", "Ben"), ("B-en", "Ben"), ("b_e.n", "Ben"), ("B0lt", "bolt"), ("bo1t", "bolt")),
        ("worker1-12", "worker-1-12"),
    ]:
        with subtests.test(name=name):
            for operation in ("register_agent", "start_session"):
                error = await room.refused(NameTaken, operation, project_key=project, name=name, **WHO)
                assert f"looks like the existing agent {other!r}" in str(error)
                assert f"use {other!r} if you are that agent" in error.remedy
    for name in ("Ben-2", "Bens", "worker-11-2", "worker-112"):
        with subtests.test(name=name):
            made = await room.call("register_agent", project_key=project, name=name, **WHO)
            assert made["name"] == name
    await room.call("ensure_project", human_key="/yard/other")
    assert await room.call("register_agent", project_key="/yard/other", name="Ben.", **WHO)
