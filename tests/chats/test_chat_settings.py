"""The settings of a chat, made by `/set` or in the file, reach the agent with each message."""

from datetime import timedelta

from gateway_room import CONFIG, Agent, all_answered, at_work, settled, with_rules
from postroom.contracts.inference import CallerRequest
from postroom.contracts.records import replace
from postroom.gateway import wording
from postroom.gateway.config import ChatRules


async def said(room, gateway, channel, text, **details):
    """Send a message, and return the next answer."""
    before = len(channel.said)
    await channel.say(text, **details)
    await settled(lambda: len(channel.said) > before, room.hurry(gateway))
    return channel.said[before].text


def asked_of(agent):
    """Return model and instructions that the newest message asks for."""
    asked = CallerRequest.of(agent.activations[-1].messages[-1])
    return asked.overrides and asked.overrides.upstream_model, asked.instructions


async def test_model_and_instructions_go_with_each_message_of_the_chat(room) -> None:
    agent, rules = Agent(), ChatRules(model="small", instructions="Be brief.")
    gateway, channel = await room.open(agent, config=with_rules({"12345": rules}))
    await said(room, gateway, channel, "one")
    assert asked_of(agent) == ("small", "Be brief.")
    await said(room, gateway, channel, "two", chat="99")
    assert asked_of(agent) == (None, "")
    assert await said(room, gateway, channel, "/set model large") == "model: large"
    assert await said(room, gateway, channel, "/set instructions Rhyme.") == "instructions: Rhyme."
    await said(room, gateway, channel, "three")
    assert asked_of(agent) == ("large", "Rhyme.")
    assert await said(room, gateway, channel, "/set model default") == "model: small"
    await said(room, gateway, channel, "four")
    assert asked_of(agent) == ("small", "Rhyme.")


async def test_a_model_that_is_not_offered_is_refused(room) -> None:
    agent = Agent()
    config = replace(CONFIG, models={None: ("small", "a" * 80)})
    gateway, channel = await room.open(agent, config=config)
    assert await said(room, gateway, channel, "/model huge") == (
        f"The model 'huge' is not offered here. Offered models: small, {'a' * 80}."
    )
    assert await said(room, gateway, channel, "/model SMALL") == "model: small"
    await said(room, gateway, channel, "one")
    assert asked_of(agent) == ("small", "")
    assert await said(room, gateway, channel, "/model default") == "model: as the agent's"
    await said(room, gateway, channel, "two")
    assert asked_of(agent) == (None, "")


async def test_the_command_names_the_present_model_and_offers_buttons_to_operators_alone(room) -> None:
    config = replace(CONFIG, models={None: ("small", "large")}, own_models={None: "small"})
    gateway, channel = await room.open(Agent(), config=config)
    assert await said(room, gateway, channel, "/model") == "model: small (the agent's own)"
    assert [one.label for one in channel.said[-1].card.buttons] == ["small", "large", "default"]
    member = {"user": "u2", "chat": "77"}
    shown = await said(room, gateway, channel, "/model", **member)
    assert shown == f"model: small (the agent's own)\n{wording.OPERATORS_CHOOSE}"
    assert channel.said[-1].card is None
    assert await said(room, gateway, channel, "/model large", **member) == wording.NOT_ALLOWED
    assert await said(room, gateway, channel, "/model large") == "model: large"


async def test_without_offered_models_the_command_says_how_to_offer_them(room) -> None:
    gateway, channel = await room.open(Agent())
    shown = await said(room, gateway, channel, "/model")
    assert shown == f"model: as the agent's\n{wording.NO_MODELS}"


async def test_an_edited_message_asks_what_its_chat_asks(room) -> None:
    agent = Agent()
    rules = ChatRules(model="small")
    gateway, channel = await room.open(agent, config=with_rules({"12345": rules}))
    agent.free.clear()
    await at_work(agent, channel, "first")
    second = await channel.say("second")
    await settled(lambda: not gateway.intake.tasks)
    await channel.edit(second, "second, mended")
    agent.free.set()
    await all_answered(room, gateway, 2)
    assert agent.read[-1] == ["second, mended"]
    assert asked_of(agent) == ("small", "")


async def test_everything_is_listed_and_given_back(room) -> None:
    gateway, channel = await room.open(Agent())
    usual = "busy: queue\nreset: none\nquiet: off\nvoice: off\nmodel: as the agent's\ninstructions: as the agent's"
    assert await said(room, gateway, channel, "/set") == usual
    chosen = {
        "busy collect": "busy: collect",
        "reset daily 5": "reset: daily at 5",
        "reset idle 2h": "reset: after 2h idle",
        "quiet 22:00-07:00 UTC": "quiet: 22:00-07:00 UTC",
        "model large": "model: large",
        "instructions " + "Rhyme. " * 20: "instructions: " + ("Rhyme. " * 20)[:59] + "…",
    }
    for words, answer in chosen.items():
        assert await said(room, gateway, channel, f"/set {words}") == answer
    assert await said(room, gateway, channel, "/busy") == "busy: collect"
    for name in ("busy", "reset", "quiet", "model", "instructions"):
        await said(room, gateway, channel, f"/set {name} default")
    assert await said(room, gateway, channel, "/set") == usual


async def test_a_conversation_begins_anew_as_its_chat_says(room) -> None:
    agent, gateway, channel = await room.with_agent()
    await said(room, gateway, channel, "/set reset idle 2h")
    await said(room, gateway, channel, "one")
    room.clock.advance(timedelta(hours=3))
    assert await said(room, gateway, channel, "two") == wording.BEGAN_ANEW
    await settled(agent.began(2))
    first, second = (one.thread_id for one in agent.activations)
    assert first != second
    await all_answered(room, gateway, 3)
    assert await said(room, gateway, channel, "/set reset") == "reset: after 2h idle"


WRONG = (
    "busy rollback",
    "busy x",
    "reset hourly",
    "reset daily 24",
    "reset daily 99",
    "reset idle",
    "quiet 25:00-1:00",
    "quiet x",
    "instructions " + "x" * 4001,
    "weather fine",
)


async def test_what_cannot_be_is_refused_in_one_sentence(room) -> None:
    gateway, channel = await room.open(Agent())
    before = await said(room, gateway, channel, "/set")
    for words in WRONG:
        answer = await said(room, gateway, channel, f"/set {words}")
        assert answer.startswith(("Rejected: ", "There is no setting ")), words
        assert "\n" not in answer
        assert "`postroom" not in answer
    assert await said(room, gateway, channel, "/set") == before


async def test_what_concerns_others_is_for_operators_and_no_model_is_chosen_for_a_program(room) -> None:
    config = replace(CONFIG, programs=frozenset({None}))
    gateway, channel = await room.open(Agent(), config=config)
    member = {"user": "u2", "chat": "77"}
    for words in ("model large", "instructions Rhyme."):
        assert await said(room, gateway, channel, f"/set {words}", **member) == wording.NOT_ALLOWED
    assert (
        await said(room, gateway, channel, "/set quiet 22:00-07:00 UTC", **member) == "quiet: 22:00-07:00 UTC"
    )
    group = {"chat": "-1", "chat_type": "group"}
    quiet = "/set quiet 22:00-07:00 UTC"
    assert await said(room, gateway, channel, quiet, user="u2", **group) == wording.NOT_ALLOWED
    assert await said(room, gateway, channel, quiet, **group) == "quiet: 22:00-07:00 UTC"
    assert "uses no model of the gateway" in await said(room, gateway, channel, "/set model large")
