"""Programs that take no messages while they work: the answer of a tool tells them, and the run takes what it told."""

from pathlib import Path

from conformance import run_backends
from dispatch_room import dispatch_in
from executors.room import HANG, script
from executors.test_steered_programs import last_text
from executors.test_with_a_mailbox import Application, application, number_in, pid_in
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.messages import Boundary, DeliveryMode, Message
from postroom.contracts.runners import Runner

__all__ = ["application"]

prepared_stores = run_backends.prepared_stores
run_place = run_backends.run_place
run_stores = run_backends.run_stores
NEXT = DeliveryMode(boundary=Boundary.NEXT_STEP, starts_run=True)
ACKED, DEAD = RunDispatchStatus.ACKED, RunDispatchStatus.DEAD_LETTER


class AtWork:
    """A program that works on the first message of a thread until `go_on`; a second message arrives during it."""

    def __init__(self, application: Application, folder: Path) -> None:
        self.application = application
        self._is_at_work, self._may_end = folder / "at-work", folder / "may-end"

    def runner(self, end: str) -> Runner:
        text = "asked = sys.stdin.read()\nif asked == 'second': print('of second', end=''); sys.exit()\n"
        text += pid_in(self._is_at_work)
        return script(f"{text}while not os.path.exists({str(self._may_end)!r}): time.sleep(0.01)\n{end}")

    async def begin(self, runner: Runner) -> str:
        """Return the dispatch of the first message, when its program works and the second message waits."""
        self.mailbox = self.application.open(runner)
        first = await self.mailbox.submit_background(RunActivation.new("t", ["first"], agent_id="Ada"))
        await number_in(self._is_at_work)
        await self.mailbox.deliver("t", [Message.user("second")], NEXT)
        self.run_id = first.run_id
        return first.dispatch_id

    async def tell(self) -> str:
        """Return what the answer of a tool tells the program."""
        return await self.application.executor.untold(self.run_id)

    def go_on(self) -> None:
        self._may_end.touch()


async def test_a_message_that_a_tool_told_is_told_once_and_answered_with_the_first(
    application: Application, tmp_path: Path
) -> None:
    work = AtWork(application, tmp_path)
    first = await work.begin(work.runner("print('of both', end='')"))
    assert [await work.tell(), await work.tell()] == ["second", ""]
    work.go_on()
    await dispatch_in(application.stores, first, ACKED)
    assert await application.texts() == ["first", "second", "of both"]
    assert await work.mailbox.pending("t") == ()


async def test_a_message_that_no_tool_told_begins_the_next_run(
    application: Application, tmp_path: Path
) -> None:
    work = AtWork(application, tmp_path)
    await work.begin(work.runner("print('of first', end='')"))
    work.go_on()
    assert await last_text(application, "of second") == ["first", "of first", "second", "of second"]


async def test_a_message_that_was_told_to_a_program_that_failed_begins_the_next_run(
    application: Application, tmp_path: Path
) -> None:
    work = AtWork(application, tmp_path)
    first = await work.begin(work.runner("sys.exit(3)"))
    assert await work.tell() == "second"
    work.go_on()
    await dispatch_in(application.stores, first, DEAD)
    assert await last_text(application, "of second") == ["first", "second", "of second"]


async def test_a_message_that_was_told_to_a_run_that_is_cancelled_begins_the_next_run(
    application: Application, tmp_path: Path
) -> None:
    work = AtWork(application, tmp_path)
    first = await work.begin(work.runner(HANG))
    assert await work.tell() == "second"
    assert await work.mailbox.cancel(first)
    assert await last_text(application, "of second")


async def test_a_tool_tells_nothing_to_a_run_that_is_not_here(
    application: Application, tmp_path: Path
) -> None:
    work = AtWork(application, tmp_path)
    await work.begin(work.runner("print('of first', end='')"))
    assert await application.executor.untold("another") == ""
    work.go_on()
