"""Edits, replies, and groups that move."""

from gateway_room import Agent, all_answered, at_work, settled
from postroom.contracts.chat import ChatSession, InboundStatus
from postroom.contracts.records import replace
from postroom.gateway import wording


async def test_who_changes_a_message_too_late_is_told_of_each_change_once_and_only_of_other_words(
    room,
) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    said = await channel.say("paint it red")
    await settled(agent.began(1))
    changed = channel.message("paint it red", id=said.message_id)
    await gateway.intake.edited(changed)  # a preview came to it
    await gateway.intake.edited(channel.message("paint it blue", id=said.message_id))
    agent.free.set()
    await all_answered(room, gateway, 1)
    for words in ("paint it green", "paint it green", "paint it blue"):  # two are told again
        await gateway.intake.edited(channel.message(words, id=said.message_id))
    await channel.say("and now?")
    await all_answered(room, gateway, 2)
    await settled(room.hurry(gateway), lambda: "re: and now?" in channel.texts())
    assert channel.texts().count(wording.EDITED_TOO_LATE) == 2


async def test_what_is_changed_back_from_a_command_is_not_read_and_its_sender_is_told(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await at_work(agent, channel, "paint it red")
    for number, words in enumerate(("and blue", "and blue after all"), start=2):  # as it was, and otherwise
        said = await channel.say("and blue")
        await settled(lambda: not gateway.intake.tasks)
        for change in ("/stop", words, words):
            await gateway.intake.edited(channel.message(change, id=said.message_id))
        await settled(
            lambda number=number: channel.texts().count(wording.EDITED_UNREAD) == number - 1,
            room.hurry(gateway),
        )
    agent.free.set()
    await all_answered(room, gateway, 3)
    assert agent.read == [["paint it red"]]
    assert channel.texts().count(wording.edited_into("/stop")) == 2
    assert channel.texts().count(wording.EDITED_UNREAD) == 2


async def test_a_message_that_is_changed_to_nothing_stays_as_it_was(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await at_work(agent, channel, "hello")
    for words in ("paint it red", "/queue paint it blue"):
        said = await channel.say(words)
        await settled(lambda: not gateway.intake.tasks)
        for change in ("", " \n", "/queue " if words.startswith("/") else ""):
            await gateway.intake.edited(channel.message(change, id=said.message_id))
    agent.free.set()
    await all_answered(room, gateway, 3)
    assert agent.read == [["hello"], ["paint it red"], ["paint it blue"]]


async def test_a_message_that_was_never_kept_is_changed_without_a_word(room) -> None:
    gateway, channel = await room.open(Agent())
    await gateway.intake.edited(channel.message("never seen"))
    await channel.say("hello")
    await all_answered(room, gateway, 1)
    assert channel.texts() == ["re: hello"]


async def test_a_group_that_has_another_id_goes_on_with_its_conversations(room) -> None:
    agent, gateway, channel = await room.with_agent()
    for user in ("u1", "u2"):
        await channel.say("hello", chat="-5", chat_type="group", user=user)
    await all_answered(room, gateway, 2)
    before = await room.stores.sessions.load("agent:main:telegram:group:-5:u1")
    assert before is not None
    agent.free.clear()
    await channel.say("a moment", chat="-5", chat_type="group", user="u1")
    await settled(agent.began(3))
    source = channel.message("", chat="-5", chat_type="group").source
    await gateway.intake.moved(replace(source, user_id=None), "-1005")
    await gateway.intake.moved(replace(source, user_id=None), "-1005")  # told in the old one and in the new
    agent.free.set()
    await all_answered(room, gateway, 3)
    after: ChatSession | None = await room.stores.sessions.load("agent:main:telegram:group:-1005:u1")
    assert after is not None
    assert after.thread_id == before.thread_id
    assert await room.stores.sessions.load("agent:main:telegram:group:-5:u1") is None
    assert [one.thread_id for one in await room.stores.sessions.threads(after.session_key)] == [
        before.thread_id
    ]
    await channel.say("and here?", chat="-1005", chat_type="group", user="u1")
    await all_answered(room, gateway, 4)
    assert [one.chat_id for one in channel.said][-1] == "-1005"
    assert await room.statuses() == {InboundStatus.DONE: 4}
    sessions = await room.stores.sessions.sessions()
    assert sorted(one.session_key for one in sessions) == [
        "agent:main:telegram:group:-1005:u1",
        "agent:main:telegram:group:-1005:u2",
    ]


async def test_a_message_that_is_changed_into_a_command_is_taken_back_and_never_read(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    at_work = await channel.say("paint it red")
    await settled(agent.began(1))
    for number, words in enumerate(("/new", "/stop", "/no_such_command"), start=2):
        said = await channel.say(f"never mind {number}")
        await settled(lambda said=said: not gateway.intake.tasks)
        await gateway.intake.edited(channel.message(words, id=said.message_id))
        await gateway.intake.edited(channel.message(words, id=said.message_id))  # the platform tells it again
    await gateway.intake.edited(channel.message("/stop", id=at_work.message_id))
    agent.free.set()
    await all_answered(room, gateway, 4)
    assert agent.read == [["paint it red"]]
    assert await room.statuses() == {InboundStatus.DONE: 1, InboundStatus.RETRACTED: 3}
    told = [
        wording.edited_into("/new"),
        wording.edited_into("/stop"),
        wording.edited_into("/no_such_command"),
    ]
    told.append(wording.EDITED_TOO_LATE)
    await settled(lambda: set(told) <= set(channel.texts()), room.hurry(gateway))
    assert all(channel.texts().count(one) == 1 for one in told)


async def test_what_a_command_gave_the_agent_is_changed_without_the_command(room) -> None:
    agent, gateway, channel = await room.with_agent(held=True)
    await at_work(agent, channel, "hello")
    said = await channel.say("/queue paint it red")
    await settled(lambda: not gateway.intake.tasks)
    await gateway.intake.edited(channel.message("/queue paint it blue", id=said.message_id))
    agent.free.set()
    await all_answered(room, gateway, 2)
    assert agent.read == [["hello"], ["paint it blue"]]
