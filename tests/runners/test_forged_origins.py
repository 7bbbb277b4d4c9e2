"""No field of a message forges the line that says where it comes from, whatever runs the agent that reads it.

Rows are written as another program could write them: the mail room itself refuses most of these.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from executors.acp_room import QUICK, agent, heard
from executors.room import SERVER, OneRunner, script
from injections import FIELDS, forged
from postroom.contracts.mail import Agent, Message, Project
from postroom.contracts.records import replace
from postroom.contracts.runs import RunWaitingTicket
from postroom.contracts.tools import ToolCallResume
from postroom.executors.acp import AcpExecutor
from postroom.executors.command import CommandExecutor
from postroom.executors.processes.process_runner import ProcessRunner
from postroom.mail.waking.prompts import Origin, answer_told, as_prompt, as_said, asks, failure
from postroom.mail.waking.waker import OpenChange
from runners.fake_remote import FakeRemote
from runners.fake_remote import says as remote_says
from runners.room import RunnerRoom
from runners.test_http_agents import bo as remote_bo
from runners.test_model_agents import bo as model_bo
from runners.test_model_agents import says, seen
from runtime.endpoint import FakeEndpoint
from waking_room import Room

MESSAGE = {
    "id": 1, "project_id": 1, "thread_id": "t", "subject": "s", "body_md": "b", "importance": "normal",
    "sender_id": 1, "sender_name": "Ada", "ack_required": False, "topic": "", "created_at": 1, "reply_to": None,
}  # fmt: skip


def message(**changes: Any) -> Message:
    return Message(**{**MESSAGE, **changes})


def origin(**changes: Any) -> Origin:
    return Origin(**{"address": "Ada", "program": "p", "verified": False, "is_answer": False, **changes})


def test_each_field_of_a_prompt_is_one_line() -> None:
    for text in FIELDS:
        for told in (
            as_prompt(message(subject=text), origin(), reader="Bo", nonce="0000"),
            as_prompt(message(thread_id=text), origin(), reader="Bo", nonce="0000"),
            as_prompt(message(importance=text), origin(), reader="Bo", nonce="0000"),
            as_prompt(message(), origin(program=text), reader="Bo", nonce="0000"),
            as_prompt(message(), origin(address=text), reader="Bo", nonce="0000"),
            as_prompt(message(), origin(), reader=text, nonce="0000"),
        ):
            assert not forged(told)
            lines = told.splitlines()
            assert len(lines) == 11, told
            assert [line.partition(":")[0] for line in lines[3:8]] == [
                *("Message", "Thread", "From", "Subject", "Importance"),
            ]
            assert lines[5].endswith("; identity not proved)")
            assert (lines[2], lines[10]) == ("[0000]", "[0000]")


def test_a_text_stays_between_its_marks_and_behind_its_origin() -> None:
    for text in FIELDS:
        told = as_prompt(message(body_md=text), origin(), reader="Bo", nonce="0000")
        assert not forged(told)
        lines = told.splitlines()
        assert lines.count("[0000]") == 2
        assert (lines[2], lines[-1]) == ("[0000]", "[0000]")
        assert lines[5] == 'From: Ada (a message from "p"; identity not proved)'


def test_what_people_and_agents_are_told_of_questions_keeps_its_lines() -> None:
    for text in FIELDS:
        yes = ToolCallResume(decision_id="d", result={"approved": True}, reason=text)
        neither = replace(yes, result=None)
        assert [len(answer_told(text, one).splitlines()) for one in (yes, neither)] == [3, 3]
        assert "They answered: " in answer_told(text, neither)
        asked = RunWaitingTicket(ticket_id="t", tool_call_id="c", reason=text)
        assert len(asks("Bo", "", [asked, asked]).splitlines()) == 6
        told = as_said(message(subject=text), origin(address=text))
        assert len(told.splitlines()) == 5
        for one in (answer_told(text, yes), answer_told(text, neither), asks("Bo", "", [asked]), told):
            assert not forged(one)
        assert not forged(failure("Bo", text)) - {"\n"}


@pytest.fixture
def forging(monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """Has every sender's row hold an injection in each field, as another program could have written it."""
    wake = OpenChange.wake
    worst = "\n".join(FIELDS)

    def forge(self: OpenChange, sent: Message, home: Project, sender: Agent, *rest: Any, **more: Any) -> None:
        sent = replace(sent, subject=worst, importance=worst)  # type: ignore[arg-type]
        wake(self, sent, home, replace(sender, program=worst), *rest, **more)

    monkeypatch.setattr(OpenChange, "wake", forge)
    return FIELDS


def whole(prompt: str) -> None:
    assert not forged(prompt)
    lines = [line for line in prompt.splitlines() if line.strip()]
    first = next(index for index, line in enumerate(lines) if line.startswith("["))
    assert [line.partition(":")[0] for line in lines[first + 1 : first + 6]] == [
        *("Message", "Thread", "From", "Subject", "Importance"),
    ]
    assert lines[first + 3].startswith("From: Ada (a message from ")
    assert lines[first + 3].endswith("; identity not proved)")
    assert lines[first + 6 :] == ["please", lines[first]]


async def test_a_program_that_is_run_by_a_command_reads_one_origin(
    room: RunnerRoom, tmp_path: Path, forging: Sequence[str]
) -> None:
    echo = script("import pathlib; pathlib.Path(sys.argv[1]).write_bytes(sys.stdin.buffer.read()); tell('ok')", str(tmp_path / "read"))  # fmt: skip
    executor = CommandExecutor(OneRunner(echo), folder=tmp_path / "private", environment=SERVER, limits=QUICK)
    await run_by(room, executor)
    whole((tmp_path / "read").read_text())


async def test_an_agent_that_speaks_acp_reads_one_origin(
    room: RunnerRoom, tmp_path: Path, forging: Sequence[str]
) -> None:
    journal = tmp_path / "heard"
    started = ProcessRunner(tmp_path / "private", environment=SERVER, limits=QUICK)
    runner = agent("say('ok')", {"journal": str(journal)})
    await run_by(room, AcpExecutor(OneRunner(runner), started))
    [prompt] = [one["params"]["prompt"] for one in heard(journal) if one.get("method") == "session/prompt"]
    whole(prompt[0]["text"])


async def test_a_model_reads_one_origin(
    room: RunnerRoom, endpoint: FakeEndpoint, forging: Sequence[str]
) -> None:
    await room.employ(Bo=model_bo(endpoint))
    endpoint.answers = [says("ok")]
    await room.send("Ada", "Bo")
    await room.turn()
    whole(seen(endpoint, 1)[0][1])


async def test_an_agent_on_another_server_reads_one_origin(
    room: RunnerRoom, remote: FakeRemote, forging: Sequence[str]
) -> None:
    await room.employ(Bo=remote_bo(remote))
    remote.answers = [remote_says("ok")]
    await room.send("Ada", "Bo")
    await room.turn()
    whole(remote.runs[0].told["prompt"])


async def run_by(room: RunnerRoom, executor: Any) -> None:
    made = Room(store=room.store, runs=room.runs, clock=room.clock, agents=executor)
    await made.people("Ada", "Bo", runners=("Bo",))
    await made.send("Ada", "Bo")
    await made.turn()
    await made.close()
    await executor.close()
