"""Failed runs of chats: the author gets the reason, and the operator can retry them."""

from types import SimpleNamespace

import pytest

from chats.test_delivery import FINAL
from gateway_room import Agent, all_answered, settled
from postroom.contracts.errors import IllegalTransition, RequestRefused, Unauthorized
from postroom.services.runs import RunService
from postroom.services.work import WorkService
from work_room import no_facts


def operator_of(room):
    """Return the administration of the only open gateway, and its runs."""
    runs = RunService.__new__(RunService)
    runs.stores, runs.mailbox = room.runs, room.opened[0][1]
    return WorkService(runs, SimpleNamespace(), no_facts), runs


async def failed(room, agent, error):
    """Have a message fail; return its gateway, channel and run."""

    async def fail(activation, sink):
        raise error

    agent.act = fail
    gateway, channel = await room.open(agent, capabilities=FINAL)
    await channel.say("count the bees")
    await all_answered(room, gateway, 1)
    [dead] = await operator_of(room)[0].dead()
    return gateway, channel, dead


@pytest.mark.parametrize("error", [Unauthorized("the key is not known"), RequestRefused("no")])
async def test_a_failed_run_of_a_chat_is_tried_again_and_the_chat_has_its_answer(room, error) -> None:
    agent = Agent()
    gateway, channel, dead = await failed(room, agent, error)
    operator, runs = operator_of(room)
    work = await operator.named(dead["run_id"][:12])
    seen = (work.state, work.project, work.agent, work.chat, work.can_replay)
    assert seen == ("failed", "", "default", "telegram/bot", True)
    assert [one.run_id for one in await operator.works("")] == [work.run_id]
    assert await runs.untold_dead_letters() == 0
    agent.act = None
    again = await operator.replay(work.run_id)
    assert again.parent_run_id == work.run_id
    await settled(lambda: "re: count the bees" in channel.texts(), room.hurry(gateway))
    assert await operator.dead() == []
    with pytest.raises(IllegalTransition, match="is not a dead letter"):
        await operator.replay(work.run_id)


async def test_a_failed_run_of_a_chat_is_discarded_once_and_keeps_its_error(room) -> None:
    _, channel, dead = await failed(room, Agent(), Unauthorized("the key is not known"))
    said = channel.texts()
    operator, _ = operator_of(room)
    work = await operator.discard(dead["run_id"])
    assert (work.state, work.can_replay, "the key is not known" in work.why) == ("failed", False, True)
    assert await operator.dead() == []
    for act in (operator.discard, operator.replay):
        with pytest.raises(IllegalTransition, match="is not a dead letter"):
            await act(work.run_id)
    assert channel.texts() == said
