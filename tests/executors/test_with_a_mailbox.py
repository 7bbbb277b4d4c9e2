"""Programs with a real mailbox, over every store: the handling of an answer, a failure and a lost lease."""

import asyncio
import select
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import pytest_asyncio

from conformance import run_backends
from dispatch_room import dispatch_that
from executors.room import DEAF, FORKING, HANG, SERVER, OneRunner, lives, script, shown
from machine import PATIENCE
from postroom.contracts.activation import BusyPolicy, RunActivation
from postroom.contracts.dispatch import RunDispatch, RunDispatchStatus
from postroom.contracts.errors import StaleClaim, VersionConflict
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runners import Recipe, Runner
from postroom.contracts.runs import (
    RunStatus,
    RunWaitingState,
    RunWaitingTicket,
    TerminationReason,
    WaitingReason,
)
from postroom.contracts.tools import ToolCallResume
from postroom.dispatch.config import MailboxConfig
from postroom.dispatch.mailbox import Mailbox
from postroom.executors.command import CommandExecutor, CommandLimits
from postroom.executors.command.executor import KEY
from postroom.executors.processes import process_runner
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

prepared_stores = run_backends.prepared_stores
run_stores = run_backends.run_stores

QUICK = CommandLimits(grace=timedelta(milliseconds=100))


@pytest.fixture(params=["sqlite"])
def run_place(request: pytest.FixtureRequest, tmp_path: Path) -> run_backends.Place:
    return run_backends.Place(request.param, tmp_path)


class Application:
    """Stores, a command executor and a mailbox over both; the mailbox goes by a clock that a test moves."""

    def __init__(self, folder: Path, stores: RunStores, clock: ManualClock) -> None:
        self.folder, self.stores, self.clock = folder, stores, clock
        self.runners = OneRunner(None)
        self.opened: list[tuple[Mailbox, CommandExecutor]] = []

    def open(self, runner: Runner | None, config: MailboxConfig | None = None, stores: Any = None) -> Mailbox:
        self.runners.runner = runner
        self.executor = CommandExecutor(
            self.runners,
            folder=self.folder / "private",
            environment=SERVER,
            limits=QUICK,
        )
        mailbox = Mailbox(
            self.executor,
            stores or self.stores,
            consumer_id="c",
            timer=self.clock,
            random=Random(len(self.opened)),
            config=config,
        )
        self.opened.append((mailbox, self.executor))
        return mailbox

    async def texts(self) -> list[str]:
        return [message.text() for message in await self.stores.threads.load_messages("t") or ()]

    async def settled(
        self, mailbox: Mailbox, text: str = "go", *, as_: RunDispatchStatus = RunDispatchStatus.ACKED
    ) -> Any:
        submitted = await mailbox.submit_background(RunActivation.new("t", [text], agent_id="Ada"))

        async def look() -> Any:
            row = await self.stores.dispatches.load_dispatch(submitted.dispatch_id)
            return row if row and row.status is as_ else None

        return await shown(look)


@pytest_asyncio.fixture
async def application(
    tmp_path: Path, run_stores: RunStores, clock: ManualClock
) -> AsyncIterator[Application]:
    made = Application(tmp_path, run_stores, clock)
    yield made
    for mailbox, executor in made.opened:
        await mailbox.aclose(timedelta(0))
        await executor.close()


def pid_in(path: Path) -> str:
    return f"open({str(path)!r} + '.new', 'w').write(str(os.getpid())); os.rename({str(path)!r} + '.new', {str(path)!r})\n"


async def number_in(path: Path) -> int:
    async def look() -> int | None:
        return int(path.read_text()) if path.exists() else None

    return await shown(look)


async def test_an_answer_is_the_threads_next_message(application: Application) -> None:
    row = await application.settled(
        application.open(script("sys.stdout.write(sys.stdin.read().upper())")), "hello"
    )
    assert await application.texts() == ["hello", "HELLO"]
    run = await application.stores.threads.load_run(row.run_id)
    assert run is not None
    assert (run.status, run.final_output, run.termination) == (
        RunStatus.DONE,
        "HELLO",
        TerminationReason.natural_end(),
    )
    assert row.run_response == "HELLO"


async def test_a_failure_for_good_is_a_dead_letter_with_its_reason(application: Application) -> None:
    row = await application.settled(
        application.open(script("print('broken', file=sys.stderr); sys.exit(3)")),
        as_=RunDispatchStatus.DEAD_LETTER,
    )
    assert "exit code 3: broken" in row.last_error
    assert await application.texts() == ["go"]
    row = await application.settled(application.open(None), as_=RunDispatchStatus.DEAD_LETTER)
    assert "agent 'Ada' has no runner" in row.last_error


async def test_a_failure_that_may_pass_is_tried_again(application: Application, tmp_path: Path) -> None:
    mark = tmp_path / "tried"
    text = "path = sys.argv[1]\nif os.path.exists(path): tell('done')\nelse: open(path, 'w'); sys.exit(75)"
    mailbox = application.open(script(text, str(mark)))
    submitted = await mailbox.submit_background(RunActivation.new("t", ["go"], agent_id="Ada"))
    row = await dispatch_that(application.stores, submitted.dispatch_id, lambda row: row.attempt_count == 1)
    assert "exit code 75" in (row.last_error or "")

    async def passing() -> Any:
        row = await application.stores.dispatches.load_dispatch(submitted.dispatch_id)
        if (
            row is not None and row.status is RunDispatchStatus.QUEUED
        ):  # time that passes later costs its lease
            application.clock.advance(timedelta(seconds=1))
        return row if row and row.status is RunDispatchStatus.ACKED else None

    async with mailbox:
        await mailbox.start_lifecycle_ready()
        assert (await shown(passing)).run_response == "done\n"
    assert await application.texts() == ["go", "done\n"]


async def test_a_lost_lease_ends_the_program_and_writes_nothing(
    application: Application, tmp_path: Path
) -> None:
    leader, child = tmp_path / "leader", tmp_path / "child"
    text = DEAF + FORKING + f"leave(lambda: exec({pid_in(child)!r}))\n" + pid_in(leader) + HANG
    mailbox = application.open(script(text))
    submitted = await mailbox.submit_background(RunActivation.new("t", ["go"], agent_id="Ada"))
    pids = [await number_in(leader), await number_in(child)]
    row = await application.stores.dispatches.load_dispatch(submitted.dispatch_id)
    assert row is not None
    await application.stores.dispatches.interrupt("t")
    active = application.executor._runs.on_thread("t")
    assert active is not None
    application.clock.advance(timedelta(seconds=10))
    await active.ended.wait()
    assert not any(map(lives, pids))
    assert await application.texts() == ["go"]
    row = await dispatch_that(application.stores, submitted.dispatch_id, lambda row: row.status.is_terminal)
    assert row.status is RunDispatchStatus.SUPERSEDED


async def test_a_program_that_was_ended_at_its_deadline_is_interrupted_and_has_not_failed(
    application: Application, tmp_path: Path
) -> None:
    """As if the server was suspended for too long, and its claim is invalid when it continues."""
    path = tmp_path / "pid"
    text = f"if os.path.exists({str(path)!r}): tell('done'); sys.exit()\n{pid_in(path)}{HANG}"
    mailbox = application.open(script(text))
    submitted = await mailbox.submit_background(RunActivation.new("t", ["go"], agent_id="Ada"))
    await number_in(path)
    programs = application.executor.process_runner

    async def is_reached() -> bool | None:
        return bool(programs.controls) or None

    await shown(is_reached)
    programs.hold(-1_000)
    programs.until = None  # the next program of the server has time

    def is_over(row: RunDispatch) -> bool:
        return row.attempt_count + row.interruption_count > 0

    row = await dispatch_that(application.stores, submitted.dispatch_id, is_over)
    assert (row.attempt_count, row.interruption_count) == (0, 1)
    await dispatch_that(application.stores, submitted.dispatch_id, lambda row: row.status.is_terminal)
    assert await application.texts() == ["go", "done\n"]


async def test_a_program_that_ends_before_the_server_looks_has_its_own_exit_code(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow server tells the shim a new deadline after the shim has reported the end and has gone."""

    def started_slowly(*given: Any, **named: Any) -> process_runner.Started:
        program = started(*given, **named)
        over = select.poll()
        over.register(program.control, select.POLLHUP)
        assert over.poll(PATIENCE * 1_000)
        return program

    started = process_runner.started
    monkeypatch.setattr(process_runner, "started", started_slowly)
    mailbox = application.open(script("tell('done')"))
    application.executor.process_runner.hold(3_600_000)
    submitted = await mailbox.submit_background(RunActivation.new("t", ["go"], agent_id="Ada"))
    row = await dispatch_that(
        application.stores, submitted.dispatch_id, lambda row: row.attempt_count > 0 or row.status.is_terminal
    )
    assert (row.status, row.attempt_count, row.last_error) == (RunDispatchStatus.ACKED, 0, None)


async def test_an_interrupt_ends_the_program_and_the_next_run_begins(
    application: Application, tmp_path: Path
) -> None:
    leader = tmp_path / "leader"
    patient = MailboxConfig(cancel_wait_ms=3_600_000)  # the clock of the test outruns the program's end
    mailbox = application.open(script(DEAF + pid_in(leader) + HANG), patient)
    await mailbox.submit_background(RunActivation.new("t", ["go"], agent_id="Ada"))
    pid = await number_in(leader)
    application.runners.runner = script("tell('next', os.path.exists('/proc/' + sys.argv[1]))", str(pid))
    request = RunActivation.new("t", ["stop that"], agent_id="Ada")
    submitting = asyncio.ensure_future(mailbox.submit(request, strategy=BusyPolicy.INTERRUPT))

    async def passing() -> Any:
        application.clock.advance(timedelta(milliseconds=10))
        texts = await application.texts()
        return texts if "next False\n" in texts else None

    assert await shown(passing) == ["go", "stop that", "next False\n"]
    await submitting
    assert not lives(pid)


CLIENT = """
import json
def say(**line): print(json.dumps(line), flush=True)
words, asked = sys.argv[1:], sys.stdin.read()
known = sys.argv[1]
session = words[words.index('--resume') + 1] if '--resume' in words else None
if session and not os.path.exists(known + session):
    print('No conversation found with session ID: ' + session, file=sys.stderr); sys.exit(1)
new = 's%d' % (len(os.listdir(os.path.dirname(known))) + 1)
open(known + new, 'w')
say(type='system', subtype='init', session_id=new)
say(type='assistant', message={'content': [{'type': 'text', 'text': 'thinking'}]})
say(type='result', subtype='success', is_error=False, result='%s after %s' % (asked, session), session_id=new)
"""


def client(folder: Path, **fields: Any) -> Runner:
    folder.mkdir(exist_ok=True)
    return script(CLIENT, f"{folder}/", **{"recipe": Recipe.CLAUDE, "resume": True, **fields})


async def test_a_thread_goes_on_with_the_clients_session(application: Application, tmp_path: Path) -> None:
    runner = client(tmp_path / "known")
    mailbox = application.open(runner)
    assert (await application.settled(mailbox, "a")).run_response == "a after None"
    assert (await application.settled(mailbox, "b")).run_response == "b after s1"
    assert (await application.settled(mailbox, "c")).run_response == "c after s2"
    state = await application.stores.threads.load_thread_state("t")
    assert state == {KEY: {"Ada": {"made_with": ["claude", "/"], "session": "s3"}}}
    application.runners.runner = replace(runner, cwd=str(tmp_path))
    assert (await application.settled(mailbox, "d")).run_response == "d after None"
    application.runners.runner = replace(runner, resume=False)
    assert (await application.settled(mailbox, "e")).run_response == "e after None"


async def test_a_session_that_the_client_has_lost_is_begun_anew(
    application: Application, tmp_path: Path
) -> None:
    mailbox = application.open(client(tmp_path / "known"))
    await application.settled(mailbox, "a")
    (tmp_path / "known/s1").rename(tmp_path / "known/lost")
    row = await application.settled(mailbox, "b")
    assert (row.run_response, row.attempt_count) == ("b after None", 0)
    assert (await application.settled(mailbox, "c")).run_response == "c after s2"


async def test_a_program_without_a_session_is_asked_all_again_behind_an_answer(
    application: Application,
) -> None:
    mailbox = application.open(script("sys.stdout.write(sys.stdin.read())"))
    prepared = await mailbox.prepare_run_for_dispatch(
        RunActivation.new("t", [Message.user("the lamp is 77", id="m")], agent_id="Ada")
    )
    run = await application.stores.threads.load_run(prepared.run_id)
    assert run is not None
    ticket = RunWaitingTicket(ticket_id="q", tool_call_id="q", tool_name="ask", reason="May I?")
    waiting = RunWaitingState(reason=WaitingReason.USER_INPUT, tickets=(ticket,))
    waits = replace(run, status=RunStatus.WAITING, waiting=waiting)
    await application.stores.coordinator.commit(ThreadCommit(thread_id="t", run=waits))
    yes = ToolCallResume(decision_id="d", result={"approved": True})
    answer = RunActivation.new(
        "t", ["The answer is yes."], continue_run_id=run.run_id, decisions=[("q", yes)]
    )
    submitted = await mailbox.submit_background(answer)
    row = await dispatch_that(application.stores, submitted.dispatch_id, lambda row: row.status.is_terminal)
    assert row.run_response == "the lamp is 77\n\nThe answer is yes."


async def test_a_rollback_begins_a_new_session(application: Application, tmp_path: Path) -> None:
    """The client cannot forget the messages of its session; the next run continues with the new session."""
    known, leader = tmp_path / "known", tmp_path / "leader"
    mailbox = application.open(client(known))
    await application.settled(mailbox, "a")
    application.runners.runner = script(pid_in(leader) + HANG)
    await mailbox.submit_background(RunActivation.new("t", ["b"], agent_id="Ada"))
    await number_in(leader)
    application.runners.runner = client(known)
    request = RunActivation.new("t", ["c"], agent_id="Ada")
    submitting = asyncio.ensure_future(mailbox.submit(request, strategy=BusyPolicy.ROLLBACK))

    async def passing() -> Any:
        application.clock.advance(timedelta(milliseconds=10))
        return True if "c after None" in await application.texts() else None

    await shown(passing)
    await submitting
    assert (await application.settled(mailbox, "d")).run_response == "d after s2"


async def test_what_others_keep_for_the_thread_stays(application: Application, tmp_path: Path) -> None:
    await application.stores.coordinator.commit(ThreadCommit(thread_id="t", thread_state={"other": 1}))
    await application.settled(application.open(client(tmp_path / "known")), "a")
    state = await application.stores.threads.load_thread_state("t")
    assert state is not None
    assert (state["other"], state[KEY]["Ada"]["session"]) == (1, "s1")


class Refusing:
    """A coordinator that refuses thread states; everything else it passes on."""

    def __init__(self, inner: Any, error: Exception) -> None:
        self.inner, self.error, self.refused = inner, error, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def commit(self, commit: Any, *, now: int | None = None) -> Any:
        if commit.thread_state is not None:
            assert commit.claim is not None, "every write proves its claim"
            self.refused += 1
            raise self.error
        return await self.inner.commit(commit, now=now)


class Wrapped:
    def __init__(self, inner: RunStores, coordinator: Refusing) -> None:
        self._inner, self.coordinator = inner, coordinator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_an_answer_outlives_a_session_that_cannot_be_written(
    application: Application, tmp_path: Path
) -> None:
    coordinator = Refusing(application.stores.coordinator, VersionConflict("changed meanwhile"))
    mailbox = application.open(client(tmp_path / "known"), stores=Wrapped(application.stores, coordinator))
    assert (await application.settled(mailbox, "a")).run_response == "a after None"
    assert coordinator.refused == 3
    assert (await application.settled(mailbox, "b")).run_response == "b after None"


async def test_a_claim_that_was_lost_at_the_end_writes_no_answer(
    application: Application, tmp_path: Path
) -> None:
    coordinator = Refusing(application.stores.coordinator, StaleClaim("lost"))
    mailbox = application.open(client(tmp_path / "known"), stores=Wrapped(application.stores, coordinator))
    await mailbox.submit_background(RunActivation.new("t", ["a"], agent_id="Ada"))

    async def look() -> Any:
        return (coordinator.refused and not application.executor.executing) or None

    await shown(look)
    assert await application.texts() == ["a"]
