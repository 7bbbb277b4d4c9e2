"""Runs whose thread has a place: a mailbox that is that place executes them, and others say for whom they wait."""

from collections.abc import Sequence
from datetime import timedelta

from dispatch.conftest import room
from dispatch_room import Counting
from postroom.contracts.activation import RunActivation
from postroom.contracts.leases import SERVER
from postroom.contracts.messages import Message
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.inspection import WhyNot
from postroom.leases import LENGTH, Leases
from postroom.stores.transaction import Transaction

__all__ = ["room"]


def at(*places: str, **more: object) -> MailboxConfig:
    return MailboxConfig(places=lambda: places, **more)  # type: ignore[arg-type]


def ask(thread: str = "t") -> RunActivation:
    return RunActivation.new(thread, [Message.user("go")])


async def placed(room, place: str, thread: str = "t") -> None:
    def change(tx: Transaction) -> None:
        tx.runs.dispatches.put_place(thread, place)

    await room.stores.store.write(change)


async def test_a_run_waits_where_it_is_accepted_and_executes_in_its_place(room) -> None:
    await placed(room, "gpu")
    here, there = Counting(), Counting()
    accepts = room.mailbox(here, consumer_id="here", config=at("mill"))
    executes = room.mailbox(there, consumer_id="there", config=at("gpu"))
    run = await accepts.submit_background(ask())
    for _ in range(3):
        assert not await accepts.poll()
        await accepts.settled()
    assert not here.run_count
    assert await executes.poll() == 1
    await executes.settled()
    assert (here.run_count, there.run_count) == (0, 1)
    assert (await accepts.why_not(run.dispatch_id)).why is WhyNot.ENDED


async def test_what_follows_on_the_thread_is_not_taken_along_when_it_was_moved(room) -> None:
    await placed(room, "gpu")
    there = Counting()
    executes = room.mailbox(there, consumer_id="there", config=at("gpu"))
    await executes.submit_background(ask())
    await placed(room, "mill")
    await executes.submit_background(ask())
    await executes.settled()
    assert there.run_count == 1
    mill = Counting()
    other = room.mailbox(mill, consumer_id="mill", config=at("mill"))
    assert await other.poll() == 1
    await other.settled()
    assert (there.run_count, mill.run_count) == (1, 1)


async def test_what_may_run_anywhere_is_not_held_up_by_a_thousand_for_another_place(room) -> None:
    here = Counting()
    mailbox = room.mailbox(here, consumer_id="here", config=at("mill", max_concurrent_runs=2))
    for number in range(50):
        await placed(room, "gpu", f"g{number}")
        await mailbox.submit_background(ask(f"g{number}"))
    await mailbox.submit_background(ask("anywhere"))
    await mailbox.poll()
    await mailbox.settled()
    assert [one.thread_id for one in here.activations] == ["anywhere"]


async def test_it_is_told_which_server_it_waits_for_and_whether_that_is_up(room) -> None:
    await placed(room, "gpu")
    mailbox = room.mailbox(Counting(), consumer_id="here", config=at("mill"))
    run = await mailbox.submit_background(ask())
    mill, gpu = await up(room, "one", ["mill"]), Leases(room.stores.store, "two", {"places": ["gpu"]})
    why = await mailbox.why_not(run.dispatch_id)
    assert (why.why, why.text) == (
        WhyNot.ELSEWHERE,
        "its place is gpu, and no server that is this place is up; up: one",
    )
    await gpu.renew()
    assert (await mailbox.why_not(run.dispatch_id)).text == "its place is gpu: it is for two"
    room.clock.advance(LENGTH + timedelta(milliseconds=1))
    await mill.renew()
    assert "no server that is this place is up; up: one" in (await mailbox.why_not(run.dispatch_id)).text


async def test_a_lease_is_a_place_as_well(room) -> None:
    await placed(room, "channel telegram 1")
    leases = Leases(room.stores.store, "one", {"places": []})
    leases.want("channel telegram 1")
    here = Counting()
    mailbox = room.mailbox(here, consumer_id="here", config=MailboxConfig(places=leases.places))
    await mailbox.submit_background(ask())
    assert not await mailbox.poll()
    await leases.renew()
    assert await mailbox.poll() == 1
    await mailbox.settled()
    assert here.run_count == 1


async def up(room, name: str, places: Sequence[str]) -> Leases:
    leases = Leases(room.stores.store, name, {"places": list(places)})
    await leases.renew()
    assert leases.holds(SERVER + name)
    return leases
