"""Runs whose thread has a place: a mailbox that is that place executes them, and others say for whom they wait."""

from datetime import timedelta

from dispatch_room import Counting, ask
from postroom.contracts.leases import SERVER
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.inspection import WhyNot
from postroom.leases import LENGTH, Leases


def at(room, *places, **more):
    """Return a mailbox that is these places, and what it executes."""
    executor = Counting()
    config = MailboxConfig(places=lambda: places, **more)
    return room.mailbox(executor, consumer_id=places[0], config=config), executor


async def placed(room, place, thread="t"):
    await room.stores.store.write(lambda tx: tx.runs.dispatches.put_place(thread, place) and None)


async def polled(mailbox):
    """Return how many runs one poll for due work started; they have ended."""
    begun = await mailbox.poll()
    await mailbox.settled()
    return begun


async def test_a_run_waits_where_it_is_accepted_and_executes_in_its_place(room):
    await placed(room, "gpu")
    (accepts, here), (executes, there) = at(room, "mill"), at(room, "gpu")
    run = await accepts.submit_background(ask())
    assert [await polled(accepts) for _ in range(3)] == [0, 0, 0]
    assert await polled(executes) == 1
    assert (here.run_count, there.run_count) == (0, 1)
    assert (await accepts.why_not(run.dispatch_id)).why is WhyNot.ENDED


async def test_what_follows_on_the_thread_is_not_taken_along_when_it_was_moved(room):
    await placed(room, "gpu")
    executes, there = at(room, "gpu")
    await executes.submit_background(ask())
    await placed(room, "mill")
    await executes.submit_background(ask())
    await executes.settled()
    other, mill = at(room, "mill")
    assert await polled(other) == 1
    assert (there.run_count, mill.run_count) == (1, 1)


async def test_what_may_run_anywhere_is_not_held_up_by_many_for_another_place(room):
    mailbox, here = at(room, "mill", max_concurrent_runs=2)
    for number in range(50):
        await placed(room, "gpu", f"g{number}")
        await mailbox.submit_background(ask(f"g{number}"))
    await mailbox.submit_background(ask("anywhere"))
    await polled(mailbox)
    assert [one.thread_id for one in here.activations] == ["anywhere"]


async def test_it_is_told_which_server_it_waits_for_and_whether_that_is_up(room):
    await placed(room, "gpu")
    mailbox, _ = at(room, "mill")
    run = await mailbox.submit_background(ask())
    mill, gpu = [Leases(room.stores.store, name, {"places": [name]}) for name in ("mill", "gpu")]
    await mill.renew()
    assert mill.holds(f"{SERVER}mill")
    nobody = "the run is limited to the place gpu, but no running server has this place; running: mill"
    why = await mailbox.why_not(run.dispatch_id)
    assert (why.why, why.text) == (WhyNot.ELSEWHERE, nobody)
    await gpu.renew()
    assert (
        await mailbox.why_not(run.dispatch_id)
    ).text == "the run is limited to the place gpu, so only gpu can execute it"
    room.clock.advance(LENGTH + timedelta(milliseconds=1))
    await mill.renew()
    assert (await mailbox.why_not(run.dispatch_id)).text == nobody


async def test_a_lease_is_a_place_as_well(room):
    await placed(room, "channel telegram 1")
    leases, here = Leases(room.stores.store, "one", {"places": []}), Counting()
    leases.want("channel telegram 1")
    mailbox = room.mailbox(here, config=MailboxConfig(places=leases.places))
    await mailbox.submit_background(ask())
    assert not await polled(mailbox)
    await leases.renew()
    assert (await polled(mailbox), here.run_count) == (1, 1)
