"""Agents that speak the Agent Client Protocol: turns, events, sessions, cancel."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_room import PATIENCE
from executors.acp_room import PATIENT, QUICK, AcpRoom, agent, heard
from executors.room import Sink, go_on, is_gone, lives, parent_of, script, shown, stand_still
from postroom.contracts.agent_events import TextDelta, ToolCallDone, ToolCallReady, ToolCallStart
from postroom.contracts.errors import CommandNotEnded, CommandTimedOut, InvalidRunner
from postroom.contracts.messages import Message
from postroom.contracts.records import replace
from postroom.contracts.runners import Runner
from postroom.contracts.runs import TerminationReason
from postroom.contracts.tools import ToolCallOutcome
from postroom.testing import ManualClock
from postroom.version import __version__


async def test_an_agent_is_told_who_we_are_where_it_works_and_what_it_was_asked(tmp_path: Path) -> None:
    journal = tmp_path / "heard"
    room = AcpRoom(tmp_path, agent("say('you said ' + prompt)", {"journal": str(journal)}, cwd=str(tmp_path)))
    assert await room.run("hello") == "you said hello"
    first, second, third = heard(journal)
    assert first["params"] == {
        "protocolVersion": 1,
        "clientCapabilities": {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
            "session": {"notices": {}},
        },
        "clientInfo": {"name": "postroom", "title": "postroom", "version": __version__},
    }
    assert (second["method"], second["params"]) == ("session/new", {"cwd": str(tmp_path), "mcpServers": []})
    assert third["method"] == "session/prompt"
    assert third["params"]["prompt"] == [{"type": "text", "text": "hello"}]
    assert room.files() == []


async def test_a_long_prompt_is_told_whole(tmp_path: Path) -> None:
    text = "ä" * 3_000_000
    room = AcpRoom(tmp_path, agent("say(str(len(prompt)))"))
    assert await room.run(text) == str(len(text))


async def test_text_and_calls_are_streamed_as_they_come(tmp_path: Path) -> None:
    words = """
say('I '); say('look.')
update('agent_thought_chunk', content={'type': 'text', 'text': 'secret thought'})
update('plan', entries=[]); update('something_new', x=1)
update('notice', severity='warning', title='Billing has changed', description='Read the terms.')
update('tool_call', toolCallId='c1', title='Read', kind='read', rawInput={'path': 'a'})
update('tool_call_update', toolCallId='c1', status='in_progress')
update('tool_call_update', toolCallId='c1', status='completed', content=[{'type': 'content'}])
update('tool_call_update', toolCallId='c1', status='completed')
update('tool_call', toolCallId='c2', title='Write', status='failed', rawOutput='full')
say('Done.', messageId='m1'); say(' Well done.', messageId='m1'); say('And more.', messageId='m2')
"""
    room = AcpRoom(tmp_path, agent(words))
    assert await room.run() == "I look.\n\nDone. Well done.\n\nAnd more."
    assert room.sink.text == "I look.\n\nDone. Well done.\n\nAnd more."
    told = [event for event in room.sink.events[1:] if not isinstance(event, TextDelta)]
    assert [type(event) for event in told] == [ToolCallStart, ToolCallReady, ToolCallDone] * 2
    ready, done, failed = told[1], told[2], told[5]
    assert isinstance(ready, ToolCallReady)
    assert isinstance(done, ToolCallDone)
    assert isinstance(failed, ToolCallDone)
    assert (ready.id, ready.name, ready.arguments) == ("c1", "Read", '{"path": "a"}')
    assert (done.outcome, done.result.data) == (ToolCallOutcome.SUCCEEDED, '[{"type": "content"}]')
    assert (failed.outcome, failed.result.message) == (ToolCallOutcome.FAILED, '"full"')


async def test_what_is_of_another_session_or_after_the_turn_is_not_the_answer(tmp_path: Path) -> None:
    words = """
send(method='session/update', params={'sessionId': 'other', 'update': {'sessionUpdate': 'agent_message_chunk',
    'content': {'type': 'text', 'text': 'not ours'}}})
say('ours'); send(id=id, result={'stopReason': 'end_turn'}); say('late'); hang()
"""
    room = AcpRoom(tmp_path, agent(words))
    assert await room.run() == "ours"


async def test_an_answer_keeps_its_end_and_its_calls_are_told_within_bounds(tmp_path: Path) -> None:
    words = """
for n in range(4000): update('tool_call', toolCallId='c%d' % n, title='t', rawInput={'x': 'y' * 500})
for _ in range(200): say('x' * 1000)
say('the end')
"""
    room = AcpRoom(tmp_path, agent(words, max_output_bytes=10_000))
    answer = await room.run()
    assert answer.endswith("xthe end")
    assert answer.startswith("[the beginning was cut off: ")
    assert len(answer) < 11_000
    assert len(room.sink.events) < 3_300


async def test_tokens_are_counted_where_the_agent_tells_them(tmp_path: Path) -> None:
    used = "{'inputTokens': 7, 'outputTokens': 3, 'totalTokens': 10}"
    words = f"say('x'); send(id=id, result={{'stopReason': 'end_turn', 'usage': {used}}}); hang()"
    result = await AcpRoom(tmp_path, agent(words)).ends()
    assert (result.usage.input_tokens, result.usage.output_tokens) == (7, 3)


async def test_what_we_do_not_offer_is_refused_and_the_agent_goes_on(tmp_path: Path) -> None:
    words = """
for method, params in (('fs/read_text_file', {'path': '/etc/passwd'}), ('terminal/create', {'command': 'sh'}),
                       ('_vendor/own', None), ('session/request_permission', {'sessionId': session}),
                       ('session/request_permission', {'sessionId': 'other', 'toolCall': {'toolCallId': 'c'},
                                                       'options': ONCE}),
                       ('session/request_permission', {'sessionId': session, 'toolCall': {'toolCallId': 'c'},
                                                       'options': [{'optionId': 'no', 'kind': 'reject_once'}]})):
    say('%d ' % request(method, params)['error']['code'])
send(method='_vendor/told', params={})
"""
    room = AcpRoom(tmp_path, agent(words))
    assert await room.run() == "-32601 -32601 -32601 -32602 -32602 -32602 "


async def test_a_cancelled_agent_is_told_so_and_may_end_its_turn(tmp_path: Path) -> None:
    journal = tmp_path / "heard"
    words = "say('pid %d\\n' % os.getpid())\nwhile not hear().get('method'): pass\nsay('ended')"
    room = AcpRoom(tmp_path, agent(words, {"journal": str(journal)}), limits=PATIENT)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.ends())
        pid = await room.sink.number("pid")
        assert room.acp.cancel("r")
    assert run.result().termination == TerminationReason.cancelled()
    assert heard(journal)[-1]["method"] == "session/cancel"
    assert "ended" in room.sink.text
    assert not lives(pid)


async def test_an_agent_that_is_cancelled_before_its_turn_is_told_nothing_more(tmp_path: Path) -> None:
    journal = tmp_path / "heard"
    options = {
        "journal": str(journal),
        "first": "hear(); Path(OPTIONS['journal']).with_name('pid').touch(); hang()",
    }
    room = AcpRoom(tmp_path, agent("say('x')", options), limits=replace(QUICK, farewell=timedelta(0)))
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.ends())
        await shown(lambda: asyncio.to_thread(lambda: (tmp_path / "pid").exists() or None))
        assert room.acp.cancel("r")
    assert run.result().termination == TerminationReason.cancelled()
    assert [one["method"] for one in heard(journal)] == ["initialize"]
    assert room.files() == []


async def test_an_agent_that_does_not_hear_a_cancel_is_ended_with_its_children(tmp_path: Path) -> None:
    words = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); child = os.fork()\n"
        "if not child: hang()\nsay('pids %d %d\\n' % (os.getpid(), child)); hang()"
    )
    quick = replace(QUICK, farewell=timedelta(milliseconds=100))
    room = AcpRoom(tmp_path, agent(words), limits=quick)
    async with asyncio.TaskGroup() as group:
        run = group.create_task(room.ends())
        text = await room.sink.tells("pids")
        assert await room.acp.cancel_and_wait_by_thread("t")
    assert run.result().termination == TerminationReason.cancelled()
    assert not any(lives(int(pid)) for pid in text.split()[1:])
    assert room.files() == []


async def test_who_waits_for_a_cancel_waits_for_the_farewell_too(tmp_path: Path) -> None:
    farewell = timedelta(minutes=1)
    clock = ManualClock()
    words = "say('pid %d\\n' % os.getpid()); hang()"
    room = AcpRoom(tmp_path, agent(words), limits=replace(QUICK, farewell=farewell), clock=clock, timer=clock)
    async with asyncio.TaskGroup() as group:
        group.create_task(room.ends())
        pid = await room.sink.number("pid")
        before = clock.sleeping
        gone = group.create_task(room.acp.cancel_and_wait_by_thread("t"))
        while clock.sleeping < before + 2:  # the farewell, and who waits for the end
            await asyncio.sleep(0)
        assert lives(pid)
        clock.advance(farewell)
    assert gone.result()
    assert not lives(pid)


async def test_a_run_that_is_given_up_ends_the_agent(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent("say('pid %d\\n' % os.getpid()); hang()"))
    run = asyncio.ensure_future(room.ends())
    pid = await room.sink.number("pid")
    run.cancel()
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait((run,))
    assert run.cancelled()
    assert not lives(pid)


async def test_a_message_or_a_decision_is_not_taken_while_it_works(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent("say('pid %d\\n' % os.getpid()); hang()"))
    async with asyncio.TaskGroup() as group:
        group.create_task(room.ends())
        await room.sink.number("pid")
        assert not room.acp.send_messages("r", [Message.user("more")])
        assert not room.acp.wake_pending_boundary("r")
        assert room.acp.executing == 1
        assert room.acp.cancel("r")
    assert room.acp.executing == 0


async def test_time_and_silence_are_limited(tmp_path: Path) -> None:
    clock, limit = ManualClock(), timedelta(minutes=1)
    words = "say('so far\\n'); hang()"
    room = AcpRoom(
        tmp_path, agent(words), limits=replace(QUICK, farewell=timedelta(0)), clock=clock, timer=clock
    )
    for runner, why in (
        (agent(words, timeout=limit), r"time-out of 60 s"),
        (agent(words, idle_timeout=limit), r"idle time-out of 60 s"),
    ):
        room.runners.runner, room.sink = runner, Sink()
        run = asyncio.ensure_future(room.run())
        await room.sink.tells("so far")
        clock.advance(limit)
        with pytest.raises(CommandTimedOut, match=why):
            await run
    assert room.files() == []


@pytest.mark.parametrize("way", ["loads", "resumes"])
async def test_a_thread_goes_on_with_the_agents_session(tmp_path: Path, way: str) -> None:
    journal = tmp_path / "heard"
    options = {way: True, "memory": str(tmp_path), "journal": str(journal)}
    room = AcpRoom(tmp_path, agent("say(session)", options, resume=True))
    first = await room.run(run="r1")
    assert await room.run(run="r2") == first
    assert room.sink.text.count("old answer") == 0
    restored = [one for one in heard(journal) if one["method"] == f"session/{way.removesuffix('s')}"]
    assert [one["params"]["sessionId"] for one in restored] == [first]
    (tmp_path / first).unlink()
    assert await room.run(run="r3") != first
    state = await room.stores.threads.load_thread_state("t")
    assert state is not None


async def test_a_session_of_gemini_is_not_erased_and_what_it_tells_late_is_no_answer(tmp_path: Path) -> None:
    options = {"loads": True, "is_gemini": True, "memory": str(tmp_path)}
    room = AcpRoom(tmp_path, agent("say(session)", options, resume=True, recipe="gemini"))
    first = await room.run(run="r1")
    assert [await room.run(run="r2"), await room.run(run="r3")] == [f" {first}", f" {first}"]


@pytest.mark.parametrize(
    ("options", "resume"), [({"loads": True}, False), ({}, True)], ids=["not asked to", "cannot"]
)
async def test_a_session_is_not_restored_where_that_is_not_wanted_or_not_possible(
    tmp_path: Path, options: dict[str, Any], resume: bool
) -> None:
    room = AcpRoom(tmp_path, agent("say(session)", {**options, "memory": str(tmp_path)}, resume=resume))
    assert await room.run(run="r1") != await room.run(run="r2")


async def test_processes_that_cannot_be_ended_are_named(tmp_path: Path) -> None:
    """The shim of the agent is suspended, as if a process waited for a disk that does not answer."""
    limits = replace(QUICK, kill_wait=QUICK.grace, farewell=QUICK.grace)
    room = AcpRoom(tmp_path, agent("say('pid %d\\n' % os.getpid()); hang()"), limits=limits)
    run = asyncio.ensure_future(room.ends())
    pid = await room.sink.number("pid")
    shim = parent_of(pid)
    stand_still(shim)
    try:
        assert room.acp.cancel("r")
        with pytest.raises(CommandNotEnded, match=str(pid)):
            await run
    finally:
        go_on(shim)
    await is_gone(shim)


async def test_a_runner_of_another_kind_is_refused(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, script("tell('x')"))
    with pytest.raises(InvalidRunner, match="'command', not 'acp'"):
        await room.run()


@pytest.mark.parametrize("recipe", ["claude", "codex", "gemini", "opencode"])
def test_recipes_are_commands(tmp_path: Path, recipe: str) -> None:
    room = AcpRoom(tmp_path, agent(""))
    assert room.acp.build_command(Runner(kind="acp", recipe=recipe, cwd="/", resume=True))


def test_an_acp_runner_has_its_words_by_the_protocol(subtests: pytest.Subtests) -> None:
    for fields, why, remedy in [
        (
            {"prompt": "argument"},
            "the runner's prompt is invalid: .* gets its prompt through the protocol",
            "leave this field out",
        ),
        ({"prompt": "file"}, "the runner's prompt is invalid", "leave this field out"),
        (
            {"argv": ("x", "{prompt}")},
            "the runner's argv is invalid: .* through the protocol",
            "remove {prompt}",
        ),
        (
            {"argv": ("x", "--in={prompt_file}")},
            "the runner's argv is invalid: .* through the protocol",
            "remove {prompt}",
        ),
        (
            {"argv": ()},
            "it is missing, and the recipe",
            "or a recipe with a command: claude, codex, gemini, opencode",
        ),
        ({"argv": (" ",)}, "its first word must be the program", ""),
        ({"recipe": "cursor"}, "'cursor' is unknown", "one of: shell, claude"),
    ]:
        with subtests.test(fields=fields, why=why, remedy=remedy):
            with pytest.raises(InvalidRunner, match=why) as raised:
                Runner(**{"kind": "acp", "argv": ("x",), "cwd": "/", **fields})
            assert remedy in (raised.value.remedy or "")
