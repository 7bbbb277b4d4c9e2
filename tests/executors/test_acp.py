"""Agents that speak the Agent Client Protocol: turns, events, permissions, sessions, cancel."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_room import PATIENCE
from executors.acp_room import PATIENT, QUICK, AcpRoom, agent, decided, heard
from executors.room import lives, script
from postroom.contracts.agent_events import (
    TextDelta,
    ToolCallDone,
    ToolCallReady,
    ToolCallResumed,
    ToolCallStart,
)
from postroom.contracts.errors import (
    CommandKilled,
    CommandNotEnded,
    CommandTimedOut,
    InvalidRunner,
    StoreUnavailable,
)
from postroom.contracts.messages import Message
from postroom.contracts.runners import Runner
from postroom.contracts.runs import TerminationReason, WaitingReason
from postroom.contracts.tools import ToolCallOutcome
from postroom.executors.acp.permissions import FORGETS
from postroom.executors.command import CommandLimits
from postroom.version import __version__

REMOVE = "{'toolCallId': 'c%d' % asked, 'title': 'Remove', 'kind': 'delete', 'rawInput': {'path': '/old'}}"
ASKS = f"say('I look. '); say('May I: ' + may({REMOVE}))"


async def test_an_agent_is_told_who_we_are_where_it_works_and_what_it_was_asked(tmp_path: Path) -> None:
    journal = tmp_path / "heard"
    room = AcpRoom(tmp_path, agent("say('you said ' + prompt)", {"journal": str(journal)}, cwd=str(tmp_path)))
    assert await room.run("hello") == "you said hello"
    first, second, third = heard(journal)
    assert first["params"] == {
        "protocolVersion": 1,
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
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


async def test_a_request_for_permission_ends_the_turn_and_asks_a_person(tmp_path: Path) -> None:
    journal = tmp_path / "heard"
    runner = agent(f"say('pid %d. ' % os.getpid()); {ASKS}", {"journal": str(journal)})
    room = AcpRoom(tmp_path, runner, limits=PATIENT)
    result = await room.ends()
    assert result.termination == TerminationReason.suspended()
    assert result.waiting.reason is WaitingReason.TOOL_PERMISSION
    assert result.waiting.message == result.response == room.sink.text
    assert "I look. " in result.response
    [ticket] = result.waiting.tickets
    asked = 'May it go on with "Remove" (delete)? It would do this: {"path": "/old"}'
    assert ticket.reason == f"{asked} {FORGETS}"
    cancel, answered = heard(journal)[-2:]
    assert cancel["method"] == "session/cancel"
    assert answered["result"] == {"outcome": {"outcome": "cancelled"}}
    assert not lives(_pid(result.response))
    assert room.files() == []


def _pid(text: str) -> int:
    return int(text.partition("pid ")[2].partition(".")[0])


@pytest.mark.parametrize(("approved", "option"), [(True, "yes"), (False, "no")])
async def test_a_persons_answer_is_given_to_the_same_request(
    tmp_path: Path, approved: bool, option: str
) -> None:
    room = AcpRoom(tmp_path, agent(ASKS))
    asked = await room.ends()
    result = await room.ends("go on", decided(asked, approved))
    assert result.waiting is None
    assert result.response == f"I look. May I: {option}"
    assert ToolCallResumed(target_id="c0", result={"approved": approved}) in room.sink.events


@pytest.mark.parametrize("approved", [True, False])
async def test_a_persons_answer_is_given_once(tmp_path: Path, approved: bool) -> None:
    room = AcpRoom(tmp_path, agent(f"{ASKS}; say(' again: ' + may({REMOVE}))"))
    first = await room.ends()
    second = await room.ends("go on", decided(first, approved))
    assert second.waiting is not None
    assert second.waiting.tickets[0].tool_call_id == first.waiting.tickets[0].tool_call_id
    assert "again: yes" not in second.response


async def test_a_permission_that_was_used_is_not_used_again_when_the_run_is_begun_again(
    tmp_path: Path,
) -> None:
    """As after a crash: the same dispatch, with the same decision, once more."""
    room = AcpRoom(tmp_path, agent(f"{ASKS}; os.kill(os.getpid(), 9)"))
    yes = decided(await room.ends(), True)
    with pytest.raises(CommandKilled):
        await room.ends("go on", yes)
    assert "May I: yes" in room.sink.text
    assert (await room.ends("go on", yes)).waiting is not None
    room.runners.runner = agent(ASKS)
    assert (await room.ends("go on", yes, run="another")).response == "I look. May I: yes"


async def test_a_permission_whose_use_cannot_be_noted_is_asked_for_again(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent(ASKS))
    yes = decided(await room.ends(), True)

    async def refuse(commit: Any, *, now: int | None = None) -> Any:
        raise StoreUnavailable("the disk is full")

    room.stores.coordinator.commit = refuse  # type: ignore[method-assign]
    result = await room.ends("go on", yes)
    assert result.waiting is not None
    assert "May I: yes" not in room.sink.text


async def test_silence_and_words_that_are_no_yes_allow_nothing(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent(ASKS))
    asked = await room.ends()
    again = await room.ends("go on")
    assert again.waiting.tickets[0].reason == asked.waiting.tickets[0].reason
    perhaps = await room.ends("go on", decided(asked, None))
    assert perhaps.waiting.tickets[0].tool_call_id == asked.waiting.tickets[0].tool_call_id


@pytest.mark.parametrize(
    "other",
    [
        "{'toolCallId': 'c', 'title': 'Remove', 'kind': 'delete', 'rawInput': {'path': '/new'}}",
        "{'toolCallId': 'c', 'title': 'Remove all', 'kind': 'delete', 'rawInput': {'path': '/old'}}",
        "{'toolCallId': 'c', 'title': 'Remove', 'kind': 'delete'}",
        "{'toolCallId': 'c', 'title': 'Remove', 'kind': 'delete', 'rawInput': {'path': '/old'}, 'locations': []}",
    ],
)
async def test_an_answer_allows_nothing_else(tmp_path: Path, other: str) -> None:
    room = AcpRoom(tmp_path, agent(ASKS))
    yes = decided(await room.ends(), True)
    room.runners.runner = agent(f"say(may({other}))")
    result = await room.ends("go on", yes)
    assert result.waiting is not None
    assert result.waiting.tickets[0].tool_call_id != yes[0]


async def test_long_details_count_though_they_are_not_shown_whole(tmp_path: Path) -> None:
    def asks(last: str) -> Runner:
        return agent(
            f"say(may({{'toolCallId': 'c', 'title': 'W', 'rawInput': {{'x': 'y' * 50_000 + '{last}'}}}}))"
        )

    room = AcpRoom(tmp_path, asks("a"))
    asked = await room.ends()
    yes = decided(asked, True)
    assert len(asked.waiting.tickets[0].reason) < 3_000
    assert (await room.ends("go on", yes)).response == "yes"
    room.runners.runner = asks("b")
    assert (await room.ends("go on", yes)).waiting is not None


async def test_what_was_told_of_a_call_before_belongs_to_the_question(tmp_path: Path) -> None:
    words = (
        "update('tool_call', toolCallId='c', title='Run', kind='execute', rawInput={'command': 'ls'});"
        "say(may({'toolCallId': 'c'}))"
    )
    result = await AcpRoom(tmp_path, agent(words, {"loads": True})).ends()
    assert result.waiting.tickets[0].reason == (
        'May it go on with "Run" (execute)? It would do this: {"command": "ls"}'
    )


async def test_a_question_shows_what_would_hide_or_turn_its_words(tmp_path: Path) -> None:
    call = "{'toolCallId': 'c', 'title': 'a\\u202eb\\ud800', 'rawInput': {'path': 'ä\\u200b\\U000e0041 c'}}"
    result = await AcpRoom(tmp_path, agent(f"say(may({call}))", {"loads": True})).ends()
    assert result.waiting.tickets[0].reason == (
        'May it go on with "a\\u202eb\\ud800"? It would do this: {"path": "ä\\u200b\\udb40\\udc41 c"}'
    )


async def test_a_permission_that_lasts_is_given_only_when_the_person_was_told_so(tmp_path: Path) -> None:
    options = [{"optionId": "ever", "name": "Always", "kind": "allow_always"}]
    room = AcpRoom(tmp_path, agent(f"say(may({REMOVE}, {options}))"))
    asked = await room.ends()
    assert "no permission for one time" in asked.waiting.tickets[0].reason
    assert (await room.ends("go on", decided(asked, True))).response == "ever"
    assert (await room.ends("go on", decided(asked, False))).response == "cancelled"
    room.runners.runner = agent(ASKS)
    assert (await room.ends("go on", decided(asked, True))).waiting is not None


async def test_requests_that_come_while_one_is_asked_are_not_allowed_either(tmp_path: Path) -> None:
    journal = tmp_path / "heard"
    words = f"say('Before.'); say(may({REMOVE})); say(may({{'toolCallId': 'd', 'title': 'Other'}}))"
    room = AcpRoom(tmp_path, agent(words, {"journal": str(journal)}), limits=PATIENT)
    result = await room.ends()
    assert result.response == "Before."  # what it says to that is no answer
    assert len(result.waiting.tickets) == 1
    outcomes = [one["result"]["outcome"] for one in heard(journal) if "result" in one]
    assert outcomes == [{"outcome": "cancelled"}] * 2


@pytest.mark.parametrize("then", ["sys.exit(3)", "os.kill(os.getpid(), 9)", "hang()", "raw('{}\\n'); hang()"])
async def test_a_question_is_asked_though_the_agent_does_not_end_its_turn(tmp_path: Path, then: str) -> None:
    words = (
        f"signal.signal(signal.SIGTERM, signal.SIG_IGN); say('pid %d. ' % os.getpid()); may({REMOVE}); {then}"
    )
    limits = replace(QUICK, farewell=timedelta(milliseconds=100))
    room = AcpRoom(tmp_path, agent(words), limits=limits)
    result = await room.ends()
    assert result.termination == TerminationReason.suspended()
    assert not lives(_pid(result.response))
    assert room.files() == []


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
    short = timedelta(milliseconds=50)
    limits = CommandLimits(grace=short, kill_wait=short, drain=short, farewell=timedelta(milliseconds=1_400))
    room = AcpRoom(tmp_path, agent("say('pid %d\\n' % os.getpid()); hang()"), limits=limits)
    async with asyncio.TaskGroup() as group:
        group.create_task(room.ends())
        pid = await room.sink.number("pid")
        assert await room.acp.cancel_and_wait_by_thread("t")
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
        assert await room.commands.orphans() == ()
        assert room.acp.cancel("r")
    assert room.acp.executing == 0


async def test_time_and_silence_are_limited(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent("say('so far'); hang()", timeout=timedelta(milliseconds=400)))
    with pytest.raises(CommandTimedOut, match=r"time-out of 0\.4 s"):
        await room.run()
    room.runners.runner = agent("hang()", idle_timeout=timedelta(milliseconds=400))
    with pytest.raises(CommandTimedOut, match="put nothing out"):
        await room.run()
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


@pytest.mark.parametrize(
    ("options", "resume"), [({"loads": True}, False), ({}, True)], ids=["not asked to", "cannot"]
)
async def test_a_session_is_not_restored_where_that_is_not_wanted_or_not_possible(
    tmp_path: Path, options: dict[str, Any], resume: bool
) -> None:
    room = AcpRoom(tmp_path, agent("say(session)", {**options, "memory": str(tmp_path)}, resume=resume))
    assert await room.run(run="r1") != await room.run(run="r2")


async def test_a_run_that_waited_goes_on_with_its_session_and_another_run_does_not(tmp_path: Path) -> None:
    options = {"loads": True, "memory": str(tmp_path)}
    room = AcpRoom(tmp_path, agent(f"say(session + ' ' + may({REMOVE}))", options))
    asked = await room.ends(run="r1")
    room.runners.runner = replace(room.runners.runner, env={"OTHER": "x"})
    session, said = (await room.ends("go on", decided(asked, True), run="r1")).response.split()
    assert said == "yes"
    assert (tmp_path / session).exists()
    assert len([one for one in tmp_path.iterdir() if one.name.startswith("s")]) == 1
    other = await room.ends(run="r2")
    assert other.waiting is not None
    assert len([one for one in tmp_path.iterdir() if one.name.startswith("s")]) == 2


async def test_processes_that_cannot_be_ended_are_named(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent("say('x')"))

    class Powerless(type(room.acp.workshop.machine)):  # type: ignore[misc]
        def find(self, wanted: Any) -> Any:
            return (*super().find(wanted), replace(self.look(1), pid=999_999))

        def send(self, process: Any, wish: Any) -> int | None:
            return None if process.pid == 999_999 else super().send(process, wish)

    room.acp._with = replace(
        room.acp.workshop, machine=Powerless(), limits=replace(QUICK, kill_wait=QUICK.grace)
    )
    with pytest.raises(CommandNotEnded, match="999999"):
        await room.run()


async def test_a_runner_of_another_kind_is_refused(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, script("tell('x')"))
    with pytest.raises(InvalidRunner, match="'command', not 'acp'"):
        await room.run()


@pytest.mark.parametrize("recipe", ["claude", "codex", "gemini", "opencode"])
def test_recipes_are_commands(tmp_path: Path, recipe: str) -> None:
    room = AcpRoom(tmp_path, agent(""))
    assert room.acp.words_of(Runner(kind="acp", recipe=recipe, cwd="/", resume=True))


@pytest.mark.parametrize(
    ("fields", "why", "remedy"),
    [
        ({"prompt": "argument"}, "the runner's prompt is refused: .* told its prompt by the protocol", "leave it"),
        ({"prompt": "file"}, "the runner's prompt is refused", "leave it out"),
        ({"argv": ("x", "{prompt}")}, "the runner's argv is refused: .* by the protocol", "take {prompt}"),
        ({"argv": ("x", "--in={prompt_file}")}, "the runner's argv is refused: .* by the protocol", "take {prompt}"),
        ({"argv": ()}, "no command is named", "or a recipe that has a command: claude, codex, gemini, opencode"),
        ({"argv": (" ",)}, "its first word is the program", ""),
        ({"recipe": "cursor"}, "'cursor' is not known", "one of: shell, claude"),
    ],
)  # fmt: skip
def test_an_acp_runner_has_its_words_by_the_protocol(fields: dict[str, Any], why: str, remedy: str) -> None:
    with pytest.raises(InvalidRunner, match=why) as raised:
        Runner(**{"kind": "acp", "argv": ("x",), "cwd": "/", **fields})
    assert remedy in (raised.value.remedy or "")
