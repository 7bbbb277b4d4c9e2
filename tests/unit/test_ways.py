"""`whois`, and with it `postroom agents show`, says by which way a new message would reach an agent, and why."""

from mail_room import HARBOR, Room, room_in_memory
from postroom.contracts.runners import Recipe, Runner, written_runner

room = room_in_memory


async def told(room: Room, name: str) -> list[tuple[str, bool, str]]:
    found = await room.call("whois", agent_name=name)
    return [(one["way"], one["taken"], one["why"]) for one in found["ways"]]


async def test_an_agent_that_nothing_tells_has_to_look(room: Room) -> None:
    await room.open()
    assert await told(room, "Ada") == [
        ("live", False, "the agent has no runner"),
        ("wake by runner", False, "the agent has no runner: `postroom agents set-runner`"),
        ("hook at next step", False, "no client with hooks has acted as this agent: `postroom setup`"),
        ("inbox only", True, "the agent gets no notification of messages: it must fetch its inbox"),
    ]


async def test_the_hook_of_a_client_comes_before_the_inbox(room: Room) -> None:
    await room.open()
    [ada] = [one["id"] for one in (await room.call("list_agents"))["agents"] if one["name"] == "Ada"]
    await room.store.write(lambda tx: tx.bind_client_session("claude", "s", ada, tx.now()))
    [*_, (way, taken, why)] = await told(room, "Ada")
    assert (way, taken) == ("hook at next step", True)
    assert "an idle Claude Code or Codex starts a turn" in why
    assert (await told(room, "Ben"))[-1][0] == "inbox only"


async def test_a_runner_comes_before_hooks_and_says_what_it_starts(room: Room) -> None:
    await room.open()
    for recipe, at_work in (
        (Recipe.CLAUDE, "only a message on the thread of an active run is passed to that run"),
        (Recipe.GEMINI, "the agent's runner passes messages to a run only at its start"),
    ):
        await room.mail.set_runner(HARBOR, "Ada", written_runner(Runner(recipe=recipe, cwd="/")))
        assert await told(room, "Ada") == [
            ("live", False, at_work),
            (
                "wake by runner",
                True,
                f"a run starts now, or when the active run has ended: command, {recipe}",
            ),
        ]


async def test_a_runner_that_does_not_read_back_is_named(room: Room) -> None:
    await room.open()
    await room.mail.set_runner(HARBOR, "Ada", '{"argv": []}')
    [_, (_, taken, why)] = await told(room, "Ada")
    assert taken
    assert why.startswith("a run starts, and will fail: ")


async def test_a_retired_agent_is_reached_by_nothing(room: Room) -> None:
    await room.open()
    await room.call("retire_agent", agent_name="Ada")
    assert await told(room, "Ada") == [("inbox only", False, "the agent is retired and receives no messages")]
