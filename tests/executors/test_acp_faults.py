"""Agents that break the protocol: a typed failure with the reason, bounded memory, no process left."""

import asyncio
import tracemalloc
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from executors.acp_room import QUICK, AcpRoom, agent
from executors.room import FORKING, lives
from postroom.contracts import errors
from postroom.contracts.records import replace
from postroom.contracts.runners import Runner
from postroom.executors.acp.conversation import Conversation
from postroom.executors.jsonrpc import MAX_NOISE, Answer, Asked, Peer, ProtocolFault, Told
from postroom.executors.processes.output import StdinWriter

PID = "say('pid %d. ' % os.getpid())\n"


@pytest.mark.parametrize(
    ("words", "kind", "why"),
    [
        ("raw('{\"jsonrpc\": \"2.0\", \\n'); hang()", errors.AgentProtocolBroken, "begins like a JSON object and is invalid"),
        ("raw(b'{\"a\": \"\\xff\"}\\n'); hang()", errors.AgentProtocolBroken, "begins like a JSON object and is invalid"),
        ("raw('{\"a\":' + '[' * 100_000 + '\\n'); hang()", errors.AgentProtocolBroken, "begins like a JSON object"),
        ("raw('{}\\n'); hang()", errors.AgentProtocolBroken, "neither a request, a notification nor an answer"),
        ("send(id=99, result={}); hang()", errors.AgentProtocolBroken, "answered a request that it never received"),
        ("send(id='x', error={'code': 1, 'message': 'no'}); hang()", errors.AgentProtocolBroken, "never received"),
        ("send(id=True, result={}); hang()", errors.AgentProtocolBroken, "never received"),
        ("send(id=id, result=[]); hang()", errors.AgentProtocolBroken, "answered 'session/prompt' with a value that is not an object"),
        ("send(id=id, result={}); hang()", errors.AgentProtocolBroken, "ended its turn without a reason"),
        ("send(method=7); hang()", errors.AgentProtocolBroken, "whose method is not text"),
        ("send(id=[1], method='x'); hang()", errors.AgentProtocolBroken, "neither a number nor text"),
        ("raw(bytes(range(256)) * 5_000); hang()", errors.AgentProtocolBroken, "not JSON objects"),
        ("sys.stdout.write('noise\\n' * 1_100); sys.stdout.flush(); hang()", errors.AgentProtocolBroken, "not JSON objects"),
        ("for _ in range(70): raw(b'{' + b'x' * 100_000)\nhang()", errors.AgentProtocolBroken, "a line of more than"),
        ("sys.exit(0)", errors.AgentProtocolBroken, "ended before it answered 'session/prompt'"),
        ("raw('not json\\n'); sys.exit(0)", errors.AgentProtocolBroken, "'session/prompt': not json"),
        ("sys.stderr.write('broken'); sys.exit(3)", errors.CommandFailed, "exit code 3: broken"),
        ("sys.exit(75)", errors.CommandBusy, "exit code 75"),
        ("os.kill(os.getpid(), 9)", errors.CommandKilled, "SIGKILL"),
        ("send(id=id, error={'code': -32603, 'message': 'no quota', 'data': {'left': 0}}); hang()", errors.CommandFailed,
         'answered \'session/prompt\' with error -32603: no quota {"left": 0}'),
        ("send(id=id, error='odd'); hang()", errors.CommandFailed, "error 0: no reason was given"),
        ("stop = 'max_tokens'; say('half of it')", errors.AgentStopped, "token limit (max_tokens); its last text: pid"),
        ("stop = 'max_turn_requests'", errors.AgentStopped, "max_turn_requests"),
        ("stop = 'refusal'", errors.AgentStopped, "the agent refused to continue"),
        ("stop = 'cancelled'", errors.AgentStopped, "postroom had not cancelled it"),
        ("stop = 'tired'", errors.AgentStopped, "unknown reason (tired)"),
        ("stop = 'tired' * 100_000", errors.AgentStopped, "unknown reason (tired"),
        ("stop = '\\ud800'", errors.AgentStopped, "unknown reason ("),
        ("send(id=id, error={'code': 10 ** 4_000, 'message': '\\ud800' * 1_000}); hang()", errors.CommandFailed, "error 0: "),
    ],
)  # fmt: skip
async def test_whoever_asked_learns_why(
    tmp_path: Path, words: str, kind: type[errors.CommandError], why: str
) -> None:
    limits = replace(QUICK, farewell=timedelta(milliseconds=50))
    room = AcpRoom(tmp_path, agent(PID + words), limits=limits)
    with pytest.raises(errors.CommandError) as raised:
        await room.run()
    assert type(raised.value) is kind
    assert why in raised.value.message
    assert len(raised.value.describe().encode()) < 10_000
    assert not lives(int(room.sink.text.partition("pid ")[2].partition(".")[0]))
    assert room.files() == []


@pytest.mark.parametrize(
    ("options", "kind", "why"),
    [
        ({"version": 2}, errors.AgentProtocolBroken, "does not support version 1"),
        ({"version": "1"}, errors.AgentProtocolBroken, "does not support version 1"),
        ({"first": "begin_session = lambda: {}"}, errors.AgentProtocolBroken, "without a session"),
        ({"first": "begin_session = lambda: {'sessionId': 7}"}, errors.AgentProtocolBroken, "without a session"),
        ({"first": "begin_session = lambda: []"}, errors.AgentProtocolBroken, "answered 'session/new'"),
        ({"first": "begin_session = lambda: sys.exit(0)"}, errors.AgentProtocolBroken, "answered 'session/new'"),
        ({"first": "begin_session = lambda: None"}, errors.CommandFailed, "answered 'session/new' with error -32603"),
        ({"first": "hear(); send(id=0, error={'code': -32000, 'message': 'log in'}); hang()"}, errors.CommandFailed,
         "requires a login first (it answered 'initialize' with error -32000): log in"),
        ({"first": "request('session/request_permission', {}); sys.exit(0)"}, errors.AgentProtocolBroken, "'initialize'"),
    ],
)  # fmt: skip
async def test_an_agent_that_does_not_begin_is_ended(
    tmp_path: Path, options: dict[str, Any], kind: type[errors.CommandError], why: str
) -> None:
    limits = replace(QUICK, farewell=timedelta(milliseconds=50))
    room = AcpRoom(tmp_path, agent("say('x')", options), limits=limits)
    with pytest.raises(kind) as raised:
        await room.run()
    assert why in raised.value.message
    assert room.files() == []


async def test_an_agent_that_asks_before_it_is_spoken_to_gets_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_asked, opened, take = asyncio.Event(), StdinWriter.on, Conversation.take

    async def taken(talk: Conversation, chunk: bytes) -> None:
        has_asked.set()
        await take(talk, chunk)

    async def opened_late(*given: Any) -> StdinWriter:
        await has_asked.wait()
        return await opened(*given)

    monkeypatch.setattr(Conversation, "take", taken)
    monkeypatch.setattr(StdinWriter, "on", opened_late)
    room = AcpRoom(tmp_path, agent("say('x')", {"first": "request('x', {}); os._exit(0)"}))
    with pytest.raises(errors.AgentProtocolBroken, match="'initialize'"):
        await room.run()


@pytest.mark.parametrize("first", ["hear(); hang()", "os.close(0); hang()", "os.close(1); hang()"])
async def test_an_agent_that_never_answers_who_it_is_is_ended(tmp_path: Path, first: str) -> None:
    limits = replace(QUICK, farewell=timedelta(milliseconds=50), handshake=timedelta(milliseconds=500))
    room = AcpRoom(tmp_path, agent("say('x')", {"first": first}), limits=limits)
    with pytest.raises(errors.AgentProtocolBroken, match=r"did not answer 'initialize' within 0\.5 s"):
        await room.run()
    assert room.files() == []


async def test_an_agent_that_closes_its_output_is_ended_by_its_idle_time_out(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent("os.close(1); hang()", idle_timeout=timedelta(seconds=1)))
    with pytest.raises(errors.CommandTimedOut, match="wrote nothing"):
        await room.run()
    assert room.files() == []


async def test_a_few_words_beside_the_protocol_are_passed_over(tmp_path: Path) -> None:
    options = {"first": "raw('Loaded cached credentials.\\n\\n[1, 2]\\n')"}
    assert await AcpRoom(tmp_path, agent("raw('tick\\n'); say('ok')", options)).run() == "ok"


async def test_a_turn_without_a_word_is_a_failure(tmp_path: Path) -> None:
    room = AcpRoom(tmp_path, agent("sys.stderr.write('no model'); sys.stderr.flush()"))
    with pytest.raises(errors.CommandSaidNothing, match="without an answer: no model"):
        await room.run()


@pytest.mark.long
async def test_a_line_of_a_gibibyte_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    words = "raw('{'); piece = b'x' * (1 << 20)\nfor _ in range(1 << 10): raw(piece)"
    room = AcpRoom(tmp_path, agent(words))
    tracemalloc.start()
    with pytest.raises(errors.AgentProtocolBroken, match="a line of more than 4194304 bytes"):
        await room.run()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 << 20
    assert room.files() == []


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "os.kill(os.getpid(), 9)", "raw('{}\\n'); hang()"])
async def test_what_an_agent_leaves_behind_is_ended_however_it_ends(tmp_path: Path, end: str) -> None:
    deaf = "lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    room = AcpRoom(tmp_path, agent(f"{FORKING}say('child %d. ' % leave({deaf}))\n{end}"))
    failed: errors.CommandError | None = None
    try:
        await room.run()
    except errors.CommandError as error:
        failed = error
    assert (failed is None) == (end == "")
    assert not lives(int(room.sink.text.partition("child ")[2].partition(".")[0]))
    assert room.files() == []


async def test_an_agent_that_begins_no_session_is_ended_by_its_time_out(tmp_path: Path) -> None:
    options = {"first": "begin_session = hang"}
    room = AcpRoom(tmp_path, agent("say('x')", options, timeout=timedelta(milliseconds=400)))
    with pytest.raises(errors.CommandTimedOut, match=r"time-out of 0\.4 s"):
        await room.run()


async def test_a_flood_ends_the_agent(tmp_path: Path) -> None:
    limits = replace(QUICK, most_output_bytes=300_000, farewell=timedelta(milliseconds=50))
    room = AcpRoom(tmp_path, agent("while True: say('x' * 1000)"), limits=limits)
    with pytest.raises(errors.CommandFlooded):
        await room.run()


async def test_an_agent_that_asks_for_ever_and_reads_nothing_is_ended(tmp_path: Path) -> None:
    words = "while True: send(id='a', method='x' * 5_000, params={})"
    limits = replace(QUICK, farewell=timedelta(milliseconds=50))
    with pytest.raises(errors.AgentProtocolBroken, match="does not read its input"):
        await AcpRoom(tmp_path, agent(words), limits=limits).run()


async def test_a_program_that_is_missing_is_named(tmp_path: Path) -> None:
    runner = Runner(kind="acp", argv=("no-such-agent",), cwd="/")
    room = AcpRoom(tmp_path, runner)
    with pytest.raises(errors.CommandNotStarted, match="no-such-agent"):
        await room.run()
    with pytest.raises(errors.CommandNotStarted, match="no-such-agent"):
        await asyncio.to_thread(room.acp.find_program, runner)


async def test_secrets_are_masked_in_what_the_agent_says_of_its_failure(tmp_path: Path) -> None:
    words = "send(id=id, error={'code': 1, 'message': 'key ' + os.environ['API_KEY']}); hang()"
    room = AcpRoom(tmp_path, agent(words, env={"API_KEY": "hush-hush"}))
    with pytest.raises(errors.CommandFailed, match=r"key \[masked\]"):
        await room.run()


def _peer(**fields: Any) -> tuple[Peer, list[dict[str, Any]]]:
    said: list[dict[str, Any]] = []
    return Peer(said.append, **{"longest_line": 1_000, **fields}), said


def test_a_message_may_come_in_pieces_and_several_at_once() -> None:
    peer, said = _peer()
    peer.ask("first", {"a": 1})
    peer.ask("second", {})
    assert [one["id"] for one in said] == [0, 1]
    whole = (
        b'{"id": 1, "result": {"x": "\xc3\xa4"}}\r\n\n  {"method": "told", "params": [1]}\n'
        b'{"id": "q", "method": "asked"}\n{"id": 0, "error": {"code": 3, "message": "m"}}\n'
    )
    heard = [one for byte in whole for one in peer.process_chunk(bytes([byte]))]
    assert [type(one) for one in heard] == [Answer, Told, Asked, Answer]
    assert (heard[0].method, heard[0].result) == ("second", {"x": "ä"})
    assert (heard[3].method, heard[3].refusal.code) == ("first", 3)
    with pytest.raises(ProtocolFault, match="never received"):
        list(peer.process_chunk(b'{"id": 0, "result": {}}\n'))


def test_a_line_is_as_long_as_it_may_be_and_no_longer() -> None:
    message = b'{"method": "x", "params": {"y": "' + b"z" * 200 + b'"}}'
    peer, _ = _peer(longest_line=len(message))
    assert len(list(peer.process_chunk(message + b"\n" + message + b"\n"))) == 2
    with pytest.raises(ProtocolFault, match=f"more than {len(message)} bytes"):
        list(peer.process_chunk(b" " + message))


@pytest.mark.long
def test_a_line_that_comes_in_small_pieces_costs_its_bytes() -> None:
    peer, _ = _peer(longest_line=1 << 20)
    tracemalloc.start()
    for number in range(100_000, 350_000):
        list(peer.process_chunk(str(number)[:4].encode()))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 2 << 20


def test_noise_is_kept_within_bounds() -> None:
    peer, _ = _peer(longest_line=1 << 20)
    tracemalloc.start()
    for _ in range(MAX_NOISE):
        list(peer.process_chunk(b"n" * 10_000 + b"\n"))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 200_000
    assert len(peer.noise.bytes()) <= 8 << 10
    with pytest.raises(ProtocolFault, match="not JSON objects"):
        list(peer.process_chunk(b"one more\n"))
