"""Invalid arguments of the library: each is refused with its name and its value, and changes nothing."""

import asyncio
from datetime import datetime, timedelta

import pytest

from embedded_room import echo, told
from machine import PATIENCE
from postroom import (
    Budget,
    BudgetScope,
    InvalidArgument,
    Item,
    Mailbox,
    MailboxConfig,
    RunUnsuccessful,
    State,
    sync,
)
from postroom.contracts.errors import ConfigError, InvalidSchedule, InvalidSubmission, UnknownRun

REFUSED = (InvalidArgument, InvalidSubmission, InvalidSchedule, UnknownRun)
HOUR = timedelta(hours=1)
OPTIONS = (
    ({"priority": 256}, "the priority must be from 0 to 255, not 256"),
    ({"priority": True}, "priority must be an integer, not bool"),
    ({"attempts": 0}, "attempts must be at least 1, not 0"),
    ({"interruptions": -1}, "must not be negative: -1"),
    ({"interruptions": True}, "interruptions must be an integer or None"),
    ({"delay": timedelta(-1)}, "the delay must not be negative"),
    ({"delay": "5"}, "delay must be a number of seconds or a timedelta, not str"),
    ({"retry_delay": True}, "retry_delay must be a number of seconds or a timedelta, not bool"),
    ({"max_retry_delay": float("nan")}, "max_retry_delay must be a number of seconds"),
    ({"delay": 1e20}, "delay is too long: 1e\\+20 seconds"),
    ({"delay": -1}, "the delay must not be negative"),
    ({"deadline": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - the point
    ({"key": " "}, "a key must not be blank"),
    ({"tenant": "a\0"}, r"tenant must not contain control characters: 'a\\x00'"),
    ({"limit_key": "a\n"}, r"limit_key must not contain control characters: 'a\\n'"),
    ({"agent": "a\x1b[2J"}, "agent must not contain control characters"),
    ({"agent": "a" * 513}, "the agent id must have at most"),
)
CONTENTS = (
    ("t2", object(), "the enqueued content cannot be stored"),
    ("t2", "\ud800", "unpaired surrogate"),
    (7, "a", "thread must be text, not int"),
    ("t2\t", "a", "thread must not contain control characters"),
    ("t" * 513, "a", "at most 512 characters.* has 513: 'ttt"),
)
CALLS = (
    (lambda _, run: run.result(timeout="5"), "timeout must be a number of seconds"),
    (lambda _, run: run.result(timeout=True), "timeout must be a number of seconds"),
    (lambda _, run: run.result(timeout=float("nan")), "timeout must be a number"),
    (lambda _, run: run.result(timeout=10**400), "timeout must be a number"),
    (lambda _, run: run.result(type=5), "the values of type must be valid JSON: Type '5'"),
    (lambda _, run: run.result(type="int"), "the values of type must be valid JSON"),
    (lambda box, _: box.enqueue_many(None), "items must be an iterable of Item, not NoneType"),
    (lambda box, _: box.enqueue_many(5), "items must be an iterable of Item, not int"),
    (lambda box, _: box.enqueue_many(Item("t2", "a")), "items must be an iterable of Item"),
    (lambda box, _: box.enqueue_many([Item("t2", "a"), ("t2", "a")]), "item 1: .*an Item, not tuple"),
    (
        lambda box, _: box.enqueue_many([Item("t2", "a")], progress=5),
        "progress must be a function of two numbers",
    ),
    (lambda box, _: box.pending.reorder("t", None), "ids must be a list .*, not NoneType"),
    (lambda box, _: box.pending.reorder("t", "ab"), "ids must be a list .*, not str"),
    (lambda box, _: box.handle("a\0"), r"the id of a run must not contain a zero byte: 'a\\x00'"),
    (lambda box, _: box.handle("nobody's"), "nobody's"),
    (lambda box, _: box.cancel("a\0"), "the id of a run or a thread must not contain a zero byte"),
    (lambda box, _: box.dead_letters.replay("a\0"), "the id of a run must not contain a zero byte"),
    (lambda box, _: box.pending.list("a\0"), "the id of a thread must not contain a zero byte"),
    (lambda box, _: box.schedules.pause("a\0"), "name of a schedule must not contain a zero byte"),
    (
        lambda box, _: box.schedules.add("a", "t2", object(), every=HOUR),
        "the enqueued content cannot be stored",
    ),
    (lambda box, _: box.schedules.add("a", "t2", "go", every=HOUR, priority=256), "priority"),
    (lambda box, _: box.schedules.add("a", "t2", "go", every=HOUR, interruptions=-1), "must not be negative"),
    (lambda box, _: box.schedules.add("a", "t2", "go"), "either a cron expression or an interval"),
    (
        lambda box, _: box.enqueue("t2", "a", when_busy="no"),
        "when_busy must be one of interrupt, .*, not 'no'",
    ),
)
NAMING = (
    lambda box, id: box.handle(id),
    lambda box, id: box.cancel(id),
    lambda box, id: box.schedules.pause(id),
    lambda box, id: box.schedules.resume(id),
    lambda box, id: box.schedules.trigger(id),
    lambda box, id: box.schedules.remove(id),
    lambda box, id: box.schedules.add(id, "t2", "go", every=HOUR),
    lambda box, id: box.dead_letters.replay(id),
    lambda box, id: box.dead_letters.discard(id),
    lambda box, id: box.pending.list(id),
    lambda box, id: box.pending.edit("t", "m", id),
    lambda box, id: box.pending.retract("t", id),
    lambda box, id: box.pending.reorder("t", [id]),
)


async def wrongly(why, call, *arguments, **options):
    """Assert that a call is refused in this way, and that the refusal has a remedy."""
    with pytest.raises(REFUSED, match=why) as refused:
        await call(*arguments, **options)
    assert refused.value.remedy


async def test_an_invalid_argument_is_refused_at_once_and_writes_nothing(opening):
    goes_on = asyncio.Event()

    async def work(run):
        await goes_on.wait()
        return "7"

    async with opening(work) as mailbox, asyncio.timeout(60):
        handle = await mailbox.enqueue("t", "go")
        for _ in ("while the run is at work", "when it is over"):
            for call, why in CALLS:
                await wrongly(why, call, mailbox, handle)
            for call in NAMING:
                for id in (None, 5, b"x", "\ud800"):
                    await wrongly("must be text, not|unpaired surrogate", call, mailbox, id)
            goes_on.set()
            await handle.result()
        assert await mailbox.stores.threads.load_messages("t2") is None
        assert await mailbox.schedules.list() == []


async def test_a_bad_option_or_content_is_refused_and_among_many_with_its_place_before_anything_is_written(
    opening,
):
    bad = [("t2", "a", options, why) for options, why in OPTIONS] + [
        (*one[:2], {}, one[2]) for one in CONTENTS
    ]
    async with opening(echo) as mailbox:
        for thread, content, options, why in bad:
            await wrongly(why, mailbox.enqueue, thread, content, **options)
            items = [Item("t2", 0), Item("t2", 1), Item(thread, content, **options)]
            await wrongly(f"^item 2: .*{why}", mailbox.enqueue_many, items)
            assert await mailbox.stores.threads.load_thread("t2") is None


STEPS = (
    (lambda run: run.step("x", 5), "function for step 'x' must be callable, not int"),
    (lambda run: run.step(5, print), "must be text, not int"),
    (lambda run: run.step("x", print, attempts="2"), "attempts must be an integer"),
    (
        lambda run: run.step("x", print, delay="5"),
        "delay must be a number of seconds or a timedelta, not str",
    ),
    (lambda run: run.step("x", print, delay=timedelta(-1)), "delay must be at least 0"),
    (lambda run: run.step("x", print, delay=-1), "delay must be at least 0"),
    (lambda run: run.step("x", print, returns=5), "the values of returns must be valid JSON: Type '5'"),
    (lambda run: run.step("a\0", print), "the name of a step must not contain a zero byte"),
    (lambda run: run.sleep(timedelta.max), "after the year 9999"),
    (lambda run: run.sleep("5"), "must be a number of seconds or a timedelta, not str"),
    (lambda run: run.sleep(float("inf")), "is too long"),
    (lambda run: run.ask("?", timeout=timedelta.max), "after the year 9999"),
    (lambda run: run.ask("?", timeout=timedelta(0)), "timeout"),
    (lambda run: run.ask("?", timeout=timedelta(seconds=-1)), "timeout"),
    (lambda run: run.ask("?", timeout="5"), "the timeout of a question must be a number of seconds"),
    (lambda run: run.ask("?", timeout=-1), "a question's timeout must be greater than 0"),
    (lambda run: run.ask(None), "must be text"),
    (lambda run: run.ask(" "), "blank|empty|needs"),
    (lambda run: run.ask("half \ud800"), "unpaired surrogate"),
    (lambda run: run.stream(5), "the text to stream must be a str, not int"),
    (lambda run: run.log(5), "the text to log must be text, not int"),
    (lambda run: run.used(cost_micros=-1), "cost_micros"),
    (lambda run: run.used(cost_micros=1.5), "cost_micros"),
)


async def test_an_invalid_argument_in_a_run_ends_it_for_good(opening):
    executions = []

    async def work(run):
        executions.append(run.id)
        await STEPS[int(run.text)][0](run)

    async with opening(work) as mailbox:
        for number, (_, why) in enumerate(STEPS):
            handle = await mailbox.enqueue("t", f"{number}")
            with pytest.raises(RunUnsuccessful, match=why):
                await handle.result(timeout=PATIENCE)
            assert (await handle.status()).state is State.FAILED
            assert [type for type, _ in await told(handle.events())] == ["end"]
            assert executions.pop() == handle.id
            assert not executions


def test_an_invalid_argument_in_a_run_that_blocks_ends_it_for_good():
    executions = []

    def work(run):
        executions.append(run.id)
        STEPS[int(run.text)][0](run)

    with sync.Mailbox.open("memory", work) as mailbox:
        for number, (_, why) in enumerate(STEPS):
            with pytest.raises(RunUnsuccessful, match=why):
                mailbox.enqueue("t", f"{number}").result(timeout=PATIENCE)
            assert len(executions) == number + 1
        with pytest.raises(InvalidArgument, match="progress must be a function"):
            mailbox.enqueue_many([Item("t2", "a")], progress=5)
    with pytest.raises(ConfigError), sync.Mailbox.open("runs.db", echo):
        pass


# What a mailbox is opened with.


async def refused_to_open(url="memory", work=echo, **given):
    with pytest.raises(ConfigError) as refused:
        async with Mailbox.open(url, work, **given):
            pass
    return refused.value


async def test_an_address_of_no_database_is_refused_and_shows_no_password():
    hosts = ("mysql://u:secret@h/d", "mysql://u:sec@ret@host/d", "postgres//u:secret@")
    paths = (
        "",
        "runs.db",
        "x",
        "sqlite:runs.db",
        "sqlite://host/runs.db",
        "sqlite:///:memory:",
        "sqlite:///\0",
    )
    for url in (
        *paths,
        *hosts,
        "sqlite:///a\nb.db",
        "sqlite:///\ud800.db",
        "postgresql://[",
        5,
        None,
        b"memory",
    ):
        error = await refused_to_open(url)
        assert "" in str(error)
        assert "sqlite:///runs.db" in error.remedy
        if url in hosts:
            assert "…@" in str(error)
            assert "ret" not in str(error).replace("runs", "")


async def test_a_database_in_a_folder_that_does_not_exist_is_refused(tmp_path):
    folder = tmp_path / "mispelt" / "deep"
    error = await refused_to_open(f"sqlite:///{folder}/runs.db")
    assert f"the folder {folder} of the database does not exist" in str(error)
    assert error.remedy == "create the folder, or correct the URL"
    assert list(tmp_path.iterdir()) == []
    folder.mkdir(parents=True)
    async with Mailbox.open(f"sqlite:///{folder}/runs.db", echo) as mailbox:
        assert await (await mailbox.enqueue("t", "hello")).result(timeout=PATIENCE) == "you said hello"


async def test_work_that_cannot_be_awaited_or_takes_no_run_is_refused():
    async def takes_none():
        pass

    async def takes_two(run, other):
        pass

    for wrong in (takes_none, takes_two):
        assert "must take one argument, the run" in str(await refused_to_open(work=wrong))
    for wrong in (5, lambda run: "hello", "answer"):
        assert "coroutine function" in str(await refused_to_open(work=wrong))
    with (
        pytest.raises(ConfigError, match="must take one argument"),
        sync.Mailbox.open("memory", lambda: None),
    ):
        pass


async def test_a_config_under_which_nothing_executes_is_refused(tmp_path):
    least = dict.fromkeys(
        (
            "max_concurrent_runs",
            "max_concurrent_runs_per_tenant",
            "max_queued_per_thread",
            "max_pending_per_thread",
        ),
        (0, 1),
    )
    url = f"sqlite:///{tmp_path}/runs.db"
    for setting, (wrong, right) in {**least, "lease_ms": (1, 1_000)}.items():
        error = await refused_to_open(url, config=MailboxConfig(**{setting: wrong}))
        assert f"{setting} must be at least {right}, not {wrong}" in str(error)
        assert list(tmp_path.iterdir()) == []
        async with Mailbox.open("memory", echo, config=MailboxConfig(**{setting: right})) as mailbox:
            handle = await mailbox.enqueue("t", "hello", tenant="a")
            assert await handle.result(timeout=PATIENCE) == "you said hello"
    async with Mailbox.open("memory", None, config=MailboxConfig(max_concurrent_runs=0)) as mailbox:
        assert (await (await mailbox.enqueue("t", "hello")).status()).state is State.QUEUED
    for option in ("config", "schema"):
        assert f"{option} must be " in str(await refused_to_open(**{option: 5}))


def test_give_up_on_takes_only_a_tuple_of_exception_classes():
    for given in (ValueError, [ValueError], ("ValueError",), (SystemExit,)):
        with pytest.raises(ConfigError, match="give_up_on must be a tuple of exception classes"):
            MailboxConfig(give_up_on=given)


async def test_a_small_budget_asks_with_its_own_numbers(opening):
    async def work(run):
        run.used(cost_micros=int(run.text))

    for limit, used, text in (
        (1_000, 1_000, "0.001 of 0.001 USD"),
        (2_500_000, 2_504_999, "2.50 of 2.50 USD"),
        (1, 1, "0.000001 of 0.000001 USD"),
    ):
        config = MailboxConfig(budgets=(Budget(per=BudgetScope.ALL, cost_micros=limit),))
        async with Mailbox.open("memory", work, config=config) as mailbox:
            await (await mailbox.enqueue("t", used)).result(timeout=PATIENCE)
            held = await mailbox.enqueue("t", "two")
            assert text in (await anext(held.events())).text
