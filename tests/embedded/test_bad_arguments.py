"""Invalid arguments of the library: each is refused by its name, with what was given, and changes nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from embedded_room import Open, echo
from postroom import (
    InvalidArgument,
    Item,
    Mailbox,
    MailboxConfig,
    Run,
    RunHandle,
    RunUnsuccessful,
    State,
    sync,
)
from postroom.contracts.errors import ConfigError, InvalidSubmission

Call = Callable[[Mailbox, RunHandle], Awaitable[object]]
CALLS: dict[str, tuple[Any, str]] = {
    "a timeout of text": (lambda _, run: run.result(timeout="5"), "timeout must be a number of seconds"),
    "a timeout of True": (lambda _, run: run.result(timeout=True), "timeout must be a number of seconds"),
    "a timeout of NaN": (lambda _, run: run.result(timeout=float("nan")), "timeout must be a number"),
    "a timeout no float holds": (lambda _, run: run.result(timeout=10**400), "timeout must be a number"),
    "a number as a type": (lambda _, run: run.result(type=5), "type must be a type"),
    "the name of a type": (lambda _, run: run.result(type="int"), "type must be a type"),
    "no items": (lambda box, _: box.enqueue_many(None), "items must be an iterable of Item, not NoneType"),
    "a number as items": (lambda box, _: box.enqueue_many(5), "items must be an iterable of Item, not int"),
    "one item": (lambda box, _: box.enqueue_many(Item("t2", "a")), "items must be an iterable of Item"),
    "no order": (lambda box, _: box.pending.reorder("t", None), "ids must be a list .*, not NoneType"),
    "a text as an order": (lambda box, _: box.pending.reorder("t", "ab"), "ids must be a list .*, not str"),
    "NUL in a run": (lambda box, _: box.handle("a\0"), r"the id of a run must not contain NUL: 'a\\x00'"),
    "NUL to cancel": (lambda box, _: box.cancel("a\0"), "the id of a run or a thread must not contain NUL"),
    "NUL to replay": (lambda box, _: box.dead_letters.replay("a\0"), "the id of a run must not contain NUL"),
    "NUL in a thread": (lambda box, _: box.pending.list("a\0"), "the id of a thread must not contain NUL"),
    "NUL in a schedule": (
        lambda box, _: box.schedules.pause("a\0"),
        "name of a schedule must not contain NUL",
    ),
    "another policy": (
        lambda box, _: box.enqueue("t2", "a", when_busy="no"),
        "when_busy is one of interrupt, .*, not 'no'",
    ),
    "a priority": (lambda box, _: box.enqueue("t2", "a", priority=256), "priority is from 0 to 255, not 256"),
    "no attempts": (lambda box, _: box.enqueue("t2", "a", attempts=0), "at least one attempt, not 0"),
    "interruptions": (lambda box, _: box.enqueue("t2", "a", interruptions=-1), "not be negative: -1"),
    "a long thread": (lambda box, _: box.enqueue("t" * 513, "a"), "at most 512 characters.* has 513: 'ttt"),
    "a number as progress": (
        lambda box, _: box.enqueue_many([Item("t2", "a")], progress=5),
        "progress must be a function of two numbers or None, not int",
    ),
}


@pytest.mark.parametrize("case", CALLS)
async def test_an_invalid_argument_is_refused_at_once_and_writes_nothing(opening: Open, case: str) -> None:
    call, text = CALLS[case]
    goes_on = asyncio.Event()

    async def work(run: Run) -> str:
        await goes_on.wait()
        return "7"

    async with opening(work) as mailbox, asyncio.timeout(30):
        handle = await mailbox.enqueue("t", "go")
        with pytest.raises((InvalidArgument, InvalidSubmission), match=text):
            await call(mailbox, handle)
        goes_on.set()
        await handle.result()
        with pytest.raises((InvalidArgument, InvalidSubmission), match=text):
            await call(mailbox, handle)
        assert await mailbox.stores.threads.load_messages("t2") is None


async def test_a_timeout_may_be_a_timedelta() -> None:
    async def work(run: Run) -> str:
        await asyncio.Event().wait()
        return "never"

    async with Mailbox.open("memory", work, config=MailboxConfig(drain_grace=timedelta(0))) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        for timeout in (timedelta(0), timedelta(milliseconds=1)):
            with pytest.raises(TimeoutError):
                await handle.result(timeout=timeout)


STEPS: dict[str, tuple[Any, str]] = {
    "a step of a number": (lambda run: run.step("x", 5), "function of step 'x' must be callable, not int"),
    "attempts as text": (lambda run: run.step("x", print, attempts="2"), "attempts must be a whole number"),
    "a delay of a number": (lambda run: run.step("x", print, delay=5), "delay must be a timedelta"),
    "a negative delay": (lambda run: run.step("x", print, delay=timedelta(-1)), "delay must be a timedelta"),
    "a step that returns 5": (lambda run: run.step("x", print, returns=5), "returns must be a type"),
    "NUL in a step": (lambda run: run.step("a\0", print), "the name of a step must not contain NUL"),
    "a sleep without end": (lambda run: run.sleep(timedelta.max), "after the year 9999"),
    "a timeout without end": (lambda run: run.ask("?", timeout=timedelta.max), "after the year 9999"),
    "a number to stream": (lambda run: run.stream(5), "the text to stream must be text, not int"),
    "a number to log": (lambda run: run.log(5), "the text to log must be text, not int"),
}


@pytest.mark.parametrize("case", STEPS)
async def test_an_invalid_argument_in_a_run_ends_it_for_good(opening: Open, case: str) -> None:
    call, text = STEPS[case]
    executions: list[int] = []

    async def work(run: Run) -> None:
        executions.append(1)
        await call(run)

    async with opening(work) as mailbox:
        handle = await mailbox.enqueue("t", "go")
        with pytest.raises(RunUnsuccessful, match=text):
            await handle.result(timeout=30)
        assert (await handle.status()).state is State.FAILED
        assert [event.type async for event in handle.events()] == ["end"]
    assert len(executions) == 1


@pytest.mark.parametrize("case", STEPS)
def test_an_invalid_argument_in_a_run_that_blocks_ends_it_for_good(case: str) -> None:
    call, text = STEPS[case]
    executions: list[int] = []

    def work(run: sync.Run) -> None:
        executions.append(1)
        call(run)

    with sync.Mailbox.open("memory", work) as mailbox:
        with pytest.raises(RunUnsuccessful, match=text):
            mailbox.enqueue("t", "go").result(timeout=30)
        with pytest.raises(InvalidArgument, match="progress must be a function"):
            mailbox.enqueue_many([Item("t2", "a")], progress=5)  # type: ignore[arg-type,call-arg]
    assert len(executions) == 1


@pytest.mark.parametrize(
    "url",
    [
        5,
        None,
        b"memory",
        "",
        "sqlite:///\0",
        "sqlite:///a\nb.db",
        "sqlite:///\ud800.db",
        "postgresql://[",
        "x",
    ],
    ids=repr,
)
async def test_an_address_of_no_database_is_refused(url: Any) -> None:
    with pytest.raises(ConfigError, match="this is not the address of a database: ") as refused:
        async with Mailbox.open(url, echo):
            pass
    assert "sqlite:///runs.db" in refused.value.remedy


@pytest.mark.parametrize("url", ["mysql://u:sec@ret@host/d", "postgres//u:secret@"])
async def test_a_refused_address_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError, match="…@") as refused:
        async with Mailbox.open(url, echo):
            pass
    assert "ret" not in str(refused.value).replace("runs", "")


async def test_a_function_that_takes_no_run_is_refused() -> None:
    async def takes_none() -> None:
        pass

    async def takes_two(run: Run, other: object) -> None:
        pass

    for wrong in (takes_none, takes_two):
        with pytest.raises(ConfigError, match="must take one argument, the run"):
            async with Mailbox.open("memory", wrong):  # type: ignore[arg-type]
                pass
    with (
        pytest.raises(ConfigError, match="must take one argument"),
        sync.Mailbox.open("memory", lambda: None),
    ):
        pass


async def test_a_database_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "mispelt" / "deep"
    with pytest.raises(ConfigError, match=f"the folder {folder} of the database does not exist") as caught:
        async with Mailbox.open(f"sqlite:///{folder}/runs.db", echo):
            pass
    assert caught.value.remedy == "make the folder, or correct the address"
    assert list(tmp_path.iterdir()) == []
    folder.mkdir(parents=True)
    async with Mailbox.open(f"sqlite:///{folder}/runs.db", echo) as mailbox:
        assert await (await mailbox.enqueue("t", "hello")).result(timeout=30) == "you said hello"


@pytest.mark.parametrize(
    ("setting", "least"),
    [
        ("max_concurrent_runs", 1),
        ("max_concurrent_runs_per_tenant", 1),
        ("max_queued_per_thread", 1),
        ("max_pending_per_thread", 1),
        ("lease_ms", 1_000),
    ],
)
async def test_a_config_under_which_nothing_executes_is_refused(
    tmp_path: Path, setting: str, least: int
) -> None:
    url, tried = f"sqlite:///{tmp_path}/runs.db", least - 1 if least == 1 else 1
    given: dict[str, Any] = {setting: tried}
    with pytest.raises(ConfigError, match=f"{setting} must be at least {least}, not {tried}"):
        async with Mailbox.open(url, echo, config=MailboxConfig(**given)):
            pass
    assert list(tmp_path.iterdir()) == []
    async with Mailbox.open(url, echo, config=MailboxConfig(**{setting: least})) as mailbox:  # type: ignore[arg-type]
        assert await (await mailbox.enqueue("t", "hello", tenant="a")).result(timeout=30) == "you said hello"


@pytest.mark.parametrize("given", [{"config": 5}, {"schema": 5}])
async def test_an_option_of_another_type_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{next(iter(given))} must be .*, not int"):
        async with Mailbox.open("memory", echo, **given):
            pass


async def test_a_process_that_executes_nothing_may_have_no_slots() -> None:
    async with Mailbox.open("memory", None, config=MailboxConfig(max_concurrent_runs=0)) as mailbox:
        handle = await mailbox.enqueue("t", "hello")
        assert (await handle.status()).state is State.QUEUED
