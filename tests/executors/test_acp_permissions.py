"""Permissions that an agent asks for: a question to a person, whose answer is given to the same request, once."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from executors.acp_room import PATIENT, QUICK, AcpRoom, agent, decided, heard
from executors.room import lives
from postroom.contracts.agent_events import ToolCallResumed
from postroom.contracts.errors import CommandKilled, StoreUnavailable
from postroom.contracts.records import replace
from postroom.contracts.runners import Runner
from postroom.contracts.runs import TerminationReason, WaitingReason
from postroom.executors.acp.conversation import FORGETS

REMOVE = "{'toolCallId': 'c%d' % asked, 'title': 'Remove', 'kind': 'delete', 'rawInput': {'path': '/old'}}"
ASKS = f"say('I look. '); say('May I: ' + may({REMOVE}))"


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
    asked = 'May the agent continue with "Remove" (delete)? The call: {"path": "/old"}'
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


AS_CODEX = (
    "{'toolCallId': f'call_{os.getpid()}', 'title': 'touch a', 'kind': 'execute', 'rawInput': {'call_id': "
    "f'%s_{os.getpid()}', 'turn_id': f'turn-{os.getpid()}', 'started_at_ms': os.getpid(), 'command': %s}}"
)


@pytest.mark.parametrize("command", ["['touch', 'a']", "['touch', 'a' * 20_000]"])
async def test_a_permission_is_the_same_when_only_its_turn_differs(tmp_path: Path, command: str) -> None:
    """In the form of `codex-acp` 0.16: each time with the ids of another call and turn, and another instant."""
    room = AcpRoom(tmp_path, agent(f"say('May I: ' + may({AS_CODEX % ('call', command)}))"))
    asked = await room.ends()
    assert "turn-" not in asked.waiting.tickets[0].reason
    assert (await room.ends("go on", decided(asked, True))).response == "May I: yes"


async def test_an_argument_of_the_model_counts_also_when_it_is_called_as_the_turn_is(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent(f"say('May I: ' + may({AS_CODEX % ('other', '[]')}))"))
    asked = await room.ends()
    again = await room.ends("go on", decided(asked, True))
    assert again.waiting is not None


async def test_the_id_of_a_call_is_told_as_it_can_be_kept(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent("say(may({'toolCallId': '\\ud800' * 9_000, 'title': 'Remove'}))"))
    asked = await room.ends()
    assert (await room.ends("go on", decided(asked, True))).response == "yes"
    [told] = [one for one in room.sink.events if isinstance(one, ToolCallResumed)]
    assert len(told.target_id.encode()) < 10_000


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
        'May the agent continue with "Run" (execute)? The call: {"command": "ls"}'
    )


async def test_a_question_shows_what_would_hide_or_turn_its_words(tmp_path: Path) -> None:
    call = "{'toolCallId': 'c', 'title': 'a\\u202eb\\ud800', 'rawInput': {'path': 'ä\\u200b\\U000e0041 c'}}"
    result = await AcpRoom(tmp_path, agent(f"say(may({call}))", {"loads": True})).ends()
    assert result.waiting.tickets[0].reason == (
        'May the agent continue with "a\\u202eb\\ud800"? The call: {"path": "ä\\u200b\\udb40\\udc41 c"}'
    )


async def test_a_permission_that_lasts_is_given_only_when_the_person_was_told_so(tmp_path: Path) -> None:
    options = [{"optionId": "ever", "name": "Always", "kind": "allow_always"}]
    room = AcpRoom(tmp_path, agent(f"say(may({REMOVE}, {options}))"))
    asked = await room.ends()
    assert "no permission for a single use" in asked.waiting.tickets[0].reason
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
