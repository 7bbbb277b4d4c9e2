"""Programs that accept messages during their work, with a real mailbox: accepted messages are answered, the others wait."""

import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from conformance import run_backends
from dispatch_room import dispatch_in, dispatch_that
from executors.room import HANG, script, shown
from executors.test_with_a_mailbox import Application, number_in, pid_in
from postroom.contracts.activation import RunActivation
from postroom.contracts.dispatch import RunDispatchStatus
from postroom.contracts.runners import Recipe, Runner
from postroom.dispatch.mailbox import Mailbox
from postroom.stores.runs.ports import RunStores
from postroom.testing import ManualClock

prepared_stores = run_backends.prepared_stores
run_place = run_backends.run_place
run_stores = run_backends.run_stores
ACKED, DEAD, QUEUED = RunDispatchStatus.ACKED, RunDispatchStatus.DEAD_LETTER, RunDispatchStatus.QUEUED

CLAUDE = """
import json
def say(**line): print(json.dumps(line), flush=True)
def heard(): return json.loads(sys.stdin.readline())
def text(line): return line['message']['content']
def took(line): say(type='user', isReplay=True, uuid=line['uuid'], message=line['message'])
def result(text, **more): say(type='result', subtype='success', is_error=False, result=text, session_id='s', **more)
def over(): assert sys.stdin.read() == '', 'more was told behind the end'
"""
CODEX = """
import json
def say(**line): print(json.dumps(line), flush=True)
def heard(): return json.loads(sys.stdin.readline())
def text(asked): return asked['params']['input'][0]['text']
def answer(asked, **result): say(id=asked['id'], result=result)
def happened(method, **params): say(method=method, params=params)
def item(type, **more):
    happened('item/started', item={'type': type, **more}); happened('item/completed', item={'type': type, **more})
def took(asked): item('userMessage', clientId=asked['params']['clientUserMessageId'])
def opened():
    asked = heard(); answer(asked, userAgent='codex'); assert heard()['method'] == 'initialized'
    asked = heard(); answer(asked, thread={'id': 't1'}); return asked
def begun():
    asked = heard(); answer(asked, turn={'id': 'u1'}); happened('turn/started', turn={'id': 'u1'}); took(asked)
    return asked
def ended(status='completed', **more): happened('turn/completed', turn={'id': 'u1', 'status': status, **more})
def over(): assert sys.stdin.read() == '', 'more was told behind the end'
"""
OPENCODE = """
import json, socket
def say(type, **line): print(json.dumps({'type': type, 'sessionID': 'ses_1', **line}), flush=True)
def told(): return json.loads(lines.readline())
def took(line): print(json.dumps({'type': 'postroom.taken', 'name': line['name']}), flush=True)
def step(text='', reason='tool-calls'):
    say('step_start'); text and say('text', part={'text': text}); say('step_finish', part={'reason': reason})
prompt = sys.stdin.read()
assert json.loads(os.environ['OPENCODE_CONFIG_CONTENT'])['plugin'][-1].endswith('/opencode_steering.js')
plugin = socket.socket(socket.AF_UNIX); plugin.connect(os.environ['POSTROOM_STEERING']); lines = plugin.makefile()
"""


@pytest_asyncio.fixture
async def application(
    tmp_path: Path, run_stores: RunStores, clock: ManualClock
) -> AsyncIterator[Application]:
    made = Application(tmp_path, run_stores, clock)
    yield made
    for mailbox, executor in made.opened:
        await mailbox.aclose()
        await executor.close()


@pytest.fixture
def at_work(tmp_path: Path) -> Path:
    """The output of a program that works on its prompt."""
    return tmp_path / "at-work"


def claude(text: str, **fields: Any) -> Runner:
    return script(CLAUDE + text, "--input-format", recipe=Recipe.CLAUDE, **fields)


def codex(text: str, **fields: Any) -> Runner:
    return script(CODEX + text, "app-server", recipe=Recipe.CODEX, **fields)


def opencode(text: str, **fields: Any) -> Runner:
    return script(OPENCODE + text, "run", recipe=Recipe.OPENCODE, **fields)


async def steered(application: Application, runner: Runner, at_work: Path) -> tuple[Mailbox, str, str]:
    """Have a second message come while the program works on the first; return both dispatches' ids."""
    mailbox = application.open(runner)
    first = await mailbox.submit_background(RunActivation.new("t", ["first"], agent_id="Ada"))
    await number_in(at_work)
    second = await mailbox.submit_live_then_queue(RunActivation.new("t", ["second"], agent_id="Ada"))
    return mailbox, first.dispatch_id, second.dispatch_id


async def last_text(application: Application, text: str) -> list[str]:
    """Return the texts of the thread when this is the last."""

    async def look() -> list[str] | None:
        texts = await application.texts()
        return texts if texts[-1] == text else None

    return await shown(look)


PID, SENT = "<the pid is told>\n", "<the second message is sent>"
"""Marks in the texts of programs; at the second mark the program waits until the message is there."""


async def at_the_end(
    application: Application, made: Callable[..., Runner], text: str, at_work: Path
) -> tuple[str, str]:
    """Have a program do what a text says, with a message while it works; return the first two dispatches."""
    sent = at_work.with_name("sent")
    text = text.replace(PID, pid_in(at_work)).replace(
        SENT, f"while not os.path.exists({str(sent)!r}): time.sleep(0.01)"
    )
    _, first, second = await steered(application, made("import time\n" + text), at_work)
    sent.touch()
    await dispatch_in(application.stores, first, ACKED)
    return first, second


TOGETHER = {
    claude: f"""one = heard(); took(one)
{PID}two = heard(); took(two)
result(text(one) + ' and ' + text(two)); over()""",
    codex: f"""opened(); one = begun()
{PID}two = heard(); answer(two, turnId='u1')
assert (two['method'], two['params']['expectedTurnId']) == ('turn/steer', 'u1')
item('agentMessage', text='I look.'); item('commandExecution'); took(two)
item('agentMessage', text=text(one) + ' and ' + text(two)); ended(); over()""",
    opencode: f"""say('step_start')
{PID}two = told(); assert two['session'] == 'ses_1'
took(two); step(prompt + ' and ' + two['text'], 'stop')""",
}
BEHIND = {
    claude: f"""one = heard(); took(one)
{PID}two = heard(); result('of ' + text(one))
over(); took(two); result('of ' + text(two))""",
    codex: f"""opened(); one = begun()
{PID}two = heard(); answer(two, turnId='u1')
item('agentMessage', text='of first'); took(two); item('agentMessage', text='of second'); ended()""",
    opencode: f"""step('I look.')
{PID}two = told(); step('of first', 'stop')
took(two); step('I count.'); step('of second', 'stop')""",
}
CLAUDE_AGAIN = "one = heard()\nif text(one) == 'second': result('of second'); sys.exit()\n"
OPENCODE_TOLD = "say('step_start')\nif prompt == 'first':\n  %s\nstep('of ' + prompt, 'stop')"
NOT_TAKEN = [
    (claude, f"""{CLAUDE_AGAIN}{PID}heard(); print('{{', flush=True); say(type='user', isReplay=True)
say(type='user', isReplay=True, uuid=7); say(type='user', isReplay=True, uuid=one['uuid'] + 'x')
{SENT}
result('of first')"""),
    (codex, f"""opened(); one = begun()
if text(one) == 'first':
  {PID}  say(id=heard()['id'], error={{'code': -32600, 'message': 'no active turn'}})
  {SENT}
item('agentMessage', text='of ' + text(one)); ended(); over()"""),
    (opencode, OPENCODE_TOLD % f"{PID}  told()\n  {SENT}"),
    (opencode, OPENCODE_TOLD % (f"{PID}  told(); " + 'print(\'{"type": "postroom.taken"}\')' + f"\n  {SENT}")),
    (opencode, OPENCODE_TOLD % f"plugin.close()\n  {PID}  {SENT}"),
]  # fmt: skip


@pytest.mark.parametrize(("made", "is_deep"), [*((made, False) for made in TOGETHER), (opencode, True)])
async def test_what_comes_while_a_program_works_is_answered_with_the_first(
    application: Application,
    at_work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[..., Runner],
    is_deep: bool,
) -> None:
    """Also where the folder for temporary files is too deep for the path of a socket."""
    if is_deep:
        deep = tmp_path / ("d" * 100)
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
    first, second = await at_the_end(application, made, TOGETHER[made], at_work)
    assert first == second
    assert await application.texts() == ["first", "second", "first and second"]


@pytest.mark.parametrize("made", BEHIND)
async def test_what_is_taken_behind_an_answer_has_one_of_its_own(
    application: Application, at_work: Path, made: Callable[..., Runner]
) -> None:
    await at_the_end(application, made, BEHIND[made], at_work)
    assert await application.texts() == ["first", "second", "of first\n\nof second"]


@pytest.mark.parametrize(("made", "text"), NOT_TAKEN)
async def test_what_a_program_did_not_take_begins_the_next_run(
    application: Application, at_work: Path, made: Callable[..., Runner], text: str
) -> None:
    await at_the_end(application, made, text, at_work)
    assert await last_text(application, "of second") == ["first", "of first", "second", "of second"]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (claude, CLAUDE_AGAIN),
        (opencode, "say('step_start')\nif prompt == 'second': step('of second', 'stop'); sys.exit()\n"),
    ],
)
async def test_a_program_that_is_cancelled_leaves_what_was_not_taken(
    application: Application, at_work: Path, made: Callable[..., Runner], text: str
) -> None:
    mailbox, first, _ = await steered(application, made(text + pid_in(at_work) + HANG), at_work)
    assert await mailbox.cancel(first)
    assert await last_text(application, "of second")


async def test_what_a_program_was_told_and_had_not_taken_when_it_died_begins_the_next_run(
    application: Application, at_work: Path
) -> None:
    text = "one = heard()\nif text(one) == 'second': took(one); result('of the second'); sys.exit()\n"
    runner = claude(text + "took(one)\n" + pid_in(at_work) + "heard(); sys.exit(3)")
    _, first, _ = await steered(application, runner, at_work)
    await dispatch_in(application.stores, first, DEAD)
    assert await last_text(application, "of the second") == ["first", "second", "of the second"]


async def test_what_a_program_had_taken_when_it_died_failed_with_it(
    application: Application, at_work: Path
) -> None:
    text = "one = heard(); took(one)\n" + pid_in(at_work) + "took(heard()); sys.exit(3)"
    mailbox, first, _ = await steered(application, claude(text), at_work)
    row = await dispatch_in(application.stores, first, DEAD)
    run = await application.stores.threads.load_run(row.run_id)
    assert run is not None
    assert run.input is not None
    assert len(run.input.trigger_message_ids) == 2
    assert await mailbox.pending("t") == ()


async def test_what_a_program_had_taken_when_it_was_cut_off_it_is_asked_when_it_begins_again(
    application: Application, at_work: Path, tmp_path: Path
) -> None:
    """Its next attempt is a program without any memory."""
    cut_off = tmp_path / "cut-off"
    text = f"one = heard(); took(one)\nif os.path.exists({str(cut_off)!r}): result(text(one)); sys.exit()\n"
    text += f"open({str(cut_off)!r}, 'w').close()\n{pid_in(at_work)}took(heard()); sys.exit(75)"
    mailbox, first, second = await steered(application, claude(text), at_work)
    assert first == second
    row = await dispatch_that(
        application.stores, first, lambda row: row.status is QUEUED and row.attempt_count == 1
    )
    application.clock.set(row.available_at)
    async with mailbox:
        await mailbox.start_lifecycle_ready()
        await dispatch_in(application.stores, first, ACKED)
    assert await application.texts() == ["first", "second", "first\n\nsecond"]


async def test_a_program_that_never_reads_loses_nothing(application: Application, tmp_path: Path) -> None:
    at_work, told = tmp_path / "at-work", tmp_path / "told"
    text = f"if os.path.exists({str(told)!r}): result('of ' + text(heard())); sys.exit()\n" + pid_in(at_work)
    text += f"while not os.path.exists({str(told)!r}): time.sleep(0.01)\nresult('it did not read')"
    _, first, _ = await steered(application, claude(text), at_work)
    told.touch()
    await dispatch_in(application.stores, first, ACKED)
    texts = await last_text(application, "of second")
    assert texts == ["first", "it did not read", "second", "of second"]


async def test_codex_goes_on_with_its_thread_or_begins_anew(application: Application) -> None:
    text = "asked = opened(); one = begun()\n"
    text += "item('agentMessage', text=asked['method'] + ' ' + str(asked['params'].get('threadId'))); ended()"
    mailbox = application.open(codex(text, resume=True))
    assert (await application.settled(mailbox, "a")).run_response == "thread/start None"
    assert (await application.settled(mailbox, "b")).run_response == "thread/resume t1"
    lost = (
        "asked = heard(); answer(asked); heard(); asked = heard()\nif asked['method'] == 'thread/resume':\n"
    )
    lost += (
        "  say(id=asked['id'], error={'message': 'no rollout found for thread id t1'}); over(); sys.exit()\n"
    )
    lost += "answer(asked, thread={'id': 't2'}); begun(); item('agentMessage', text=asked['method']); ended()"
    mailbox = application.open(codex(lost, resume=True))
    assert (await application.settled(mailbox, "c")).run_response == "thread/start"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "opened(); begun(); ended('failed', error={'message': 'the model is gone'}); over()",
            "the model is gone",
        ),
        ("opened(); begun(); ended('interrupted'); over()", "the turn ended: interrupted"),
        ("say(id=heard()['id'], error={'message': 'log in first'}); over()", "initialize: log in first"),
        (
            "opened(); begun(); say(id=9, method='item/tool/ask'); assert heard()['error']; ended(); over()",
            "without an answer",
        ),
        (
            "[print(one, flush=True) for one in ('{', '{}', '[]', '{\"id\": 7}', '{\"id\": \"x\", \"error\": 1}')]",
            "ended before its turn was complete",
        ),
    ],
)
async def test_a_codex_that_fails_is_a_failed_run_with_its_words(
    application: Application, text: str, reason: str
) -> None:
    row = await application.settled(application.open(codex(text)), as_=DEAD)
    assert reason in (row.last_error or "")
