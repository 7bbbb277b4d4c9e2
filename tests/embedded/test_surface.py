"""The names, errors and answers that a newcomer meets: on both engines where a store is concerned."""

import asyncio
import traceback
from collections.abc import Callable
from datetime import timedelta

import pytest

import postroom
from embedded_room import Open, echo
from postroom import Budget, BudgetScope, GiveUp, Mailbox, MailboxConfig, Run, RunUnsuccessful, State


@pytest.mark.parametrize(
    "failure",
    [
        lambda: GiveUp("550 no such user"),
        lambda: KeyError("550 no such user"),
        lambda: ExceptionGroup("two", [ValueError("away"), GiveUp("550 no such user")]),
        lambda: ExceptionGroup("two", [ValueError("away"), KeyError("550 no such user")]),
    ],
    ids=["GiveUp", "give_up_on", "GiveUp in a group", "give_up_on in a group"],
)
@pytest.mark.parametrize("in_step", [False, True])
async def test_work_that_cannot_succeed_is_executed_once(
    opening: Open, failure: Callable[[], Exception], *, in_step: bool
) -> None:
    executions: list[int] = []

    async def call() -> None:
        executions.append(1)
        raise failure()

    async def work(run: Run) -> object:
        return await (run.step("call", call, attempts=1) if in_step else call())

    config = MailboxConfig(give_up_on=(KeyError,), default_retry_delay_ms=0)
    async with opening(work, config=config) as mailbox:
        handle = await mailbox.enqueue("mail", "to nobody")
        with pytest.raises(RunUnsuccessful, match=r"550 no such user|two"):
            await handle.result(timeout=30)
        assert (await handle.status()).state is State.FAILED
    assert len(executions) == 1


@pytest.mark.parametrize("failure", [GiveUp("550 no such user"), KeyError("550 no such user")])
async def test_a_step_that_cannot_succeed_is_called_once(opening: Open, failure: Exception) -> None:
    calls: list[int] = []

    async def call() -> None:
        calls.append(1)
        raise failure

    async def work(run: Run) -> object:
        return await run.step("call", call, attempts=5, delay=timedelta(0))

    async with opening(work, config=MailboxConfig(give_up_on=(KeyError,))) as mailbox:
        with pytest.raises(RunUnsuccessful, match="550 no such user"):
            await (await mailbox.enqueue("mail", "to nobody")).result(timeout=30)
    assert len(calls) == 1


@pytest.mark.parametrize("given", [ValueError, [ValueError], ("ValueError",), (SystemExit,)])
def test_give_up_on_takes_only_a_tuple_of_exception_classes(given: object) -> None:
    with pytest.raises(postroom.PostroomError, match="give_up_on must be a tuple of exception classes"):
        MailboxConfig(give_up_on=given)  # type: ignore[arg-type]


async def test_events_are_read_from_the_cursor_that_a_browser_sends(opening: Open) -> None:
    async def work(run: Run) -> str:
        await run.log("one")
        await run.log("two")
        return "done"

    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await handle.result(timeout=30)
        told = [event async for event in handle.events()]
        assert [event async for event in handle.events(after=None)] == told
        for place, event in enumerate(told):
            assert [later async for later in handle.events(after=str(event.cursor))] == told[place + 1 :]


@pytest.mark.parametrize("after", ["", "x", "-1", "1.5", "²", "9" * 40, -1, 1.5, True, b"1", 10**18, 2**63])
async def test_an_invalid_cursor_is_refused_by_name(after: object) -> None:
    async with Mailbox.open("memory", echo) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        with pytest.raises(postroom.InvalidArgument, match="`after` must be the cursor"):
            await anext(handle.events(after=after))  # type: ignore[arg-type]


async def test_the_largest_cursor_is_ahead_of_every_event(opening: Open) -> None:
    async with opening(echo) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        await handle.result(timeout=30)
        with pytest.raises(postroom.PostroomError, match="the newest event of"):
            await anext(handle.events(after=10**18 - 1))


async def test_the_result_of_a_finished_run_needs_no_time(opening: Open) -> None:
    go = asyncio.Event()

    async def work(run: Run) -> str:
        await go.wait()
        return "done"

    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        for timeout in (0, -1):
            with pytest.raises(TimeoutError):
                await handle.result(timeout=timeout)
        go.set()
        await handle.result(timeout=30)
        assert [await handle.result(timeout=timeout) for timeout in (0, -1, 1e-9)] == ["done"] * 3


async def test_events_come_in_the_order_in_which_the_run_told_them(opening: Open) -> None:
    async def work(run: Run) -> str:
        for part in ("a", "b"):
            await run.stream(part)
            await run.log(f"behind {part}")
            await run.step(f"step {part}", lambda: None)
        await run.stream("c")
        return "abc"

    async with opening(work) as mailbox:
        told = [(event.type, event.text) async for event in mailbox.stream("t", "go")]
    assert told == [
        ("text", "a"),
        ("log", "behind a"),
        ("step", "step a"),
        ("text", "b"),
        ("log", "behind b"),
        ("step", "step b"),
        ("text", "c"),
        ("end", "abc"),
    ]


@pytest.mark.parametrize(
    ("limit", "used", "text"),
    [
        ({"cost_micros": 1_000}, 1_000, "0.001 of 0.001 in money"),
        ({"cost_micros": 2_500_000}, 2_504_999, "2.50 of 2.50 in money"),
        ({"cost_micros": 1}, 1, "0.000001 of 0.000001 in money"),
    ],
)
async def test_a_small_budget_asks_with_its_own_numbers(limit: dict[str, int], used: int, text: str) -> None:
    async def work(run: Run) -> str:
        run.used(cost_micros=used)
        return "done"

    config = MailboxConfig(budgets=(Budget(per=BudgetScope.ALL, **limit),))  # type: ignore[arg-type]
    async with Mailbox.open("memory", work, config=config) as mailbox:
        await (await mailbox.enqueue("t", "one")).result(timeout=30)
        held = await mailbox.enqueue("t", "two")
        async for event in held.events():
            assert text in event.text
            break


async def test_a_traceback_shows_the_remedy() -> None:
    with pytest.raises(postroom.PostroomError) as caught:
        async with Mailbox.open("mysql://x", echo):
            pass
    shown = "".join(traceback.format_exception(caught.value))
    assert caught.value.remedy
    assert f"Remedy: {caught.value.remedy}" in shown


async def test_a_reader_gets_an_error_by_its_public_name_when_the_mailbox_closes(opening: Open) -> None:
    begun = asyncio.Event()

    async def work(run: Run) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def events(handle: postroom.RunHandle) -> None:
        async for _ in handle.events():
            pass

    async with opening(work, MailboxConfig(drain_grace=timedelta(0))) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        readers = [asyncio.ensure_future(handle.result()), asyncio.ensure_future(events(handle))]
        await begun.wait()
    async with asyncio.timeout(30):
        for told in await asyncio.gather(*readers, return_exceptions=True):
            assert isinstance(told, postroom.StoreClosed)
