"""The conversation with an agent, from the first request to the end of the agent's turn.

    initialize ─▶ session/load, /resume or /new ─▶ session/prompt ─▶ updates … ─▶ stop reason
                                                         └─▶ permission request ─▶ its turn is cancelled,
                                                                                   a person is asked

Postroom supports only one of the optional capabilities, notices. Requests for files and terminals are
refused.

A permission request becomes a question for a person. The agent gets the person's answer when it repeats the
request. The id of a question is computed from everything that the agent reported about the call, even from
details that are too long to show. Therefore a different call is always a different question. Only the fields
that identify the turn are excluded, because they change when a request is repeated. An answer is stored as
used before the agent gets it, so that an approval counts only once.
"""

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final

from postroom.concurrency import Tasks
from postroom.contracts.agent_events import (
    EventSink,
    ToolCallDone,
    ToolCallReady,
    ToolCallResumed,
    ToolCallStart,
)
from postroom.contracts.client_programs import NAME
from postroom.contracts.clients import CLIENT_HEADER
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import (
    AgentProtocolBroken,
    CommandError,
    CommandFailed,
    PostroomError,
    StaleClaim,
)
from postroom.contracts.executor import STDIO, RunAccess
from postroom.contracts.files import ChatFile
from postroom.contracts.messages import storable
from postroom.contracts.records import replace
from postroom.contracts.run_stores import ThreadCommit
from postroom.contracts.runners import Recipe
from postroom.contracts.runs import Usage
from postroom.contracts.tools import ToolCallOutcome, ToolCallResume, ToolResult
from postroom.executors.clients.client import OverAcp, table_in
from postroom.executors.jsonrpc import (
    AUTH_REQUIRED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Answer,
    Asked,
    Peer,
    ProtocolFault,
    Refusal,
    Told,
)
from postroom.executors.processes.active import StopReason
from postroom.executors.processes.asking import version_in
from postroom.executors.processes.executor import is_session
from postroom.executors.processes.output import MIN_LINE_BYTES, StdinWriter, Stream, Tail
from postroom.executors.processes.process_runner import ProcessRunner, Work
from postroom.log import get_logger
from postroom.ports import RunControl
from postroom.version import __version__

_LOG = get_logger(__name__)


MAX_CALLS: Final = 256
"""Maximum number of tool calls whose details are remembered at a time."""
MAX_EVENTS: Final = 3_000
"""Maximum number of events about calls in a turn; further events are dropped."""
MAX_KEPT: Final = 16 << 10
"""Maximum number of characters in a detail of a call; a longer detail is replaced by its hash."""
MAX_TOLD: Final = 2_000
_ENDS: Final = {"completed": ToolCallOutcome.SUCCEEDED, "failed": ToolCallOutcome.FAILED}


class Turn:
    """Collects the text and the tool calls of an agent during one turn."""

    def __init__(self, sink: EventSink, stream: Stream, *, most: int) -> None:
        """`sink` receives the events of the turn, and `most` is the maximum size of the text in bytes."""
        self._sink = sink
        self._stream = stream
        self._calls: dict[str, dict[str, Any]] = {}
        self._ended: set[str] = set()
        self._events = 0
        self._message_id: str | None = None
        self._begins_anew = False
        self.said = Tail(most)
        self.is_broken_off = False
        """Whether the turn was aborted, so that later output is not part of the answer."""

    async def hear(self, update: Mapping[str, Any]) -> None:
        """Process an update from the agent; updates of unknown kinds are ignored."""
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                content, message_id = update.get("content"), update.get("messageId")
                text = content.get("text") if isinstance(content, dict) else None
                if not isinstance(text, str) or not text or self.is_broken_off:
                    return
                if isinstance(message_id, str):
                    self._begins_anew = self._begins_anew or self._message_id not in (None, message_id)
                    self._message_id = message_id
                if self._begins_anew and self.said.total:
                    text = f"\n\n{text}"
                self._begins_anew = False
                text = storable(text)
                self.said.add(text.encode())
                await self._stream.pass_on(text)
            case "tool_call" | "tool_call_update":
                self._begins_anew = True
                await self._call(update)
            case "notice":
                words = (str(update.get(part) or "") for part in ("title", "description"))
                _LOG.warning("acp.notice", notice=storable(" ".join(words))[:MAX_TOLD])

    def details(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return all known details of a tool call, including the details in `call`."""
        id = call.get("toolCallId")
        known_call = self._calls.get(id, {}) if isinstance(id, str) else {}
        details = dict(known_call)
        for name, value in describe_call(call).items():  # of a long detail, only the hash is kept
            text = json.dumps(value, sort_keys=True)
            digest = {"characters": len(text), "sha256": sha256(text.encode()).hexdigest()}
            details[name] = value if len(text) <= MAX_KEPT else digest
        return details

    async def _call(self, update: Mapping[str, Any]) -> None:
        id, status = update.get("toolCallId"), update.get("status")
        if not isinstance(id, str) or not id or len(id) > MAX_TOLD:
            return
        is_new = id not in self._calls
        call = self._calls[id] = self.details(update)
        if len(self._calls) > MAX_CALLS:
            oldest = next(iter(self._calls))
            del self._calls[oldest]
            self._ended.discard(oldest)
        name = storable(str(call.get("title", "tool")))[:MAX_TOLD]
        text = told_id(id)
        if is_new and self._may_tell(2):
            await self._sink.emit(ToolCallStart(id=text, name=name))
            await self._sink.emit(ToolCallReady(id=text, name=name, arguments=_short(call.get("rawInput"))))
        if isinstance(status, str) and status in _ENDS and id not in self._ended:
            self._ended.add(id)
            if self._may_tell(1):
                shown = _short(
                    update.get("rawOutput") if update.get("content") is None else update["content"]
                )
                outcome = _ENDS[status]
                failed = outcome is ToolCallOutcome.FAILED
                result = (
                    ToolResult.error(name, str(shown or "it failed"))
                    if failed
                    else ToolResult.success(name, shown)
                )
                tool_call_end = ToolCallDone(id=text, message_id="", result=result, outcome=outcome)
                await self._sink.emit(tool_call_end)

    def _may_tell(self, events: int) -> bool:
        self._events += events
        return self._events <= MAX_EVENTS


def told_id(id: object) -> str:
    """Return the id of a tool call, shortened to the length that events permit."""
    return storable(str(id))[:MAX_TOLD]


def _short(value: object) -> str | None:
    if value is None:
        return None
    text = storable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= MAX_TOLD else f"{text[:MAX_TOLD]}…"


PREFIX: Final = "permission-"
MAX_CALL_CHARS: Final = 2_000
"""Maximum number of characters of a call that a question shows.

If the call is longer, the question states the number of omitted characters.
"""
MAX_TITLE_LENGTH: Final = 200
CALL_FIELDS: Final = ("title", "kind", "rawInput", "content", "locations")
OF_THE_TURN: Final = frozenset({"call_id", "approval_id", "turn_id", "started_at_ms"})
"""The fields of `rawInput` with which `codex-acp` identifies the turn, the call and its start."""
FORGETS: Final = (
    "The agent cannot restore a session: after an answer it starts again, and asks again for "
    "permissions that it had."
)
_LASTING: Final = "The agent offers no permission for a single use: a yes may apply for longer."


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """A permission request of an agent, as a question to a person."""

    id: str
    text: str
    options: tuple[tuple[str, str], ...]
    """The kind and the id of each option that the agent offers."""

    def option(self, *, approved: bool) -> str | None:
        """Return the id of the option that allows or rejects the tool call, or None.

        Options for a single call are preferred.
        """
        wanted = ("allow_once", "allow_always") if approved else ("reject_once", "reject_always")
        return next((id for want in wanted for kind, id in self.options if kind == want), None)


def describe_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's description of a tool call, without fields that identify the turn.

    Arguments that the model wrote are returned unchanged.
    """
    by_name = {name: call[name] for name in CALL_FIELDS if call.get(name) is not None}
    arguments, own = by_name.get("rawInput"), call.get("toolCallId")
    if (
        isinstance(arguments, dict)
        and isinstance(own, str)
        and own in (arguments.get("call_id"), arguments.get("approval_id"))
    ):
        by_name["rawInput"] = {name: value for name, value in arguments.items() if name not in OF_THE_TURN}
    return by_name


def parse_permission(call: Mapping[str, Any], options: object) -> Permission | None:
    """Parse a permission request; return None if the request violates the protocol."""
    if not isinstance(options, list) or not all(isinstance(option, dict) for option in options):
        return None
    pairs = [(option.get("kind"), option.get("optionId")) for option in options]
    if not all(isinstance(kind, str) and isinstance(id, str) for kind, id in pairs):
        return None
    if not any(kind in ("allow_once", "allow_always") for kind, _ in pairs):
        return None
    lasts = all(kind != "allow_once" for kind, _ in pairs)
    by_name = {name: call[name] for name in CALL_FIELDS if call.get(name) is not None}
    named = json.dumps([by_name, lasts], sort_keys=True)
    kind, title = by_name.get("kind"), str(by_name.get("title", "a tool"))
    title = title if len(title) <= MAX_TITLE_LENGTH else f"{title[:MAX_TITLE_LENGTH]}…"
    shown = [f"May the agent continue with {_visible(title)}"]
    shown.append(f" ({kind})" if isinstance(kind, str) and kind.isidentifier() else "")
    details = by_name["rawInput"] if "rawInput" in by_name else by_name.get("content")
    if details is None:
        shown.append("? The agent does not say exactly what it would do.")
    else:
        text = _visible(details)
        more = len(text) - MAX_CALL_CHARS
        shown.append(f"? The call: {text[:MAX_CALL_CHARS]}")
        shown.append(f"… ({more} more characters are not shown)" if more > 0 else "")
    if lasts:
        shown.append(f" {_LASTING}")
    return Permission(
        id=PREFIX + sha256(named.encode()).hexdigest()[:32],
        text="".join(shown),
        options=tuple(pairs),
    )


def _visible(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(value if value.isprintable() else json.dumps(value)[1:-1] for value in text)


class Decisions:
    """People's decisions about permission requests that have not been used."""

    def __init__(self, decided: Iterable[tuple[str, ToolCallResume]], *, used: Collection[str] = ()) -> None:
        self._open = {
            id: resume
            for id, resume in decided
            if id.startswith(PREFIX) and resume.approved is not None and resume.decision_id not in used
        }

    def take(self, permission: Permission) -> ToolCallResume | None:
        """Remove and return the decision about a permission request, or return None."""
        return self._open.pop(permission.id, None)


def selected(option: str | None) -> dict[str, Any]:
    """Return the protocol message that answers a permission request; the option None cancels the turn."""
    if option is None:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": option}}


KEY: Final = "postroom.executors.acp.conversation"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedPermissions:
    """The decisions about permission requests that a run has used."""

    control: RunControl
    thread_id: str
    run_id: str

    async def all(self) -> list[str]:
        """Return the ids of all decisions that the run has used."""
        stored = (await self.control.threads.load_thread_state(self.thread_id) or {}).get(KEY)
        if not isinstance(stored, dict) or stored.get("run") != self.run_id:
            return []
        used = stored.get("decisions")
        return [item for item in used if isinstance(item, str)] if isinstance(used, list) else []

    async def note(self, decision_id: str) -> bool:
        """Record that the run uses a decision; return False if the record could not be written.

        Raises:
            StaleClaim: The worker no longer owns the run; nothing was written.
        """
        try:
            used = {"run": self.run_id, "decisions": [*await self.all(), decision_id]}
            state = await self.control.threads.load_thread_state(self.thread_id) or {}
            commit = ThreadCommit(thread_id=self.thread_id, thread_state={**state, KEY: used})
            await self.control.coordinator.commit(commit)
        except StaleClaim:
            raise
        except PostroomError as error:
            _LOG.warning("acp.permission_not_noted", run_id=self.run_id, reason=error.describe())
            return False
        return True


PROTOCOL: Final = 1
MAX_MEDIA_BYTES: Final = 5_000_000
"""Maximum size in bytes of an image or a sound in a prompt; a larger file becomes a link."""
_PERMISSION: Final = "session/request_permission"
_RESTORES: Final = ("session/load", "session/resume")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The reason why the conversation with an agent failed; `words` is the agent's error text."""

    kind: type[CommandError]
    what: str
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """The prompts and the session for a conversation with an agent.

    `former` is the id of the session to resume, or None. `anew` is the prompt for a new session.
    """

    acp: OverAcp
    prompt: str
    anew: str
    former: str | None


class Conversation:
    """A conversation with one agent over the Agent Client Protocol."""

    def __init__(
        self,
        process_runner: ProcessRunner,
        work: Work,
        brief: Brief,
        decisions: Decisions,
        used: UsedPermissions,
    ) -> None:
        runner = work.runner
        self._with = process_runner
        self._work = work
        self._brief = brief
        self._acp = brief.acp
        self._former = None if brief.former is None else self._acp.session_to_load(brief.former)
        self._decisions = decisions
        self._used = used
        self._tasks = Tasks("acp")
        self._has_begun = asyncio.Event()
        self._over = asyncio.Event()
        self._stdin: StdinWriter | None = None
        self._stage = "initialize"
        self._is_cancelled = False
        self._forgets = False
        self._servers: list[dict[str, Any]] = []
        self._files: list[dict[str, Any]] = []
        longest = max(runner.max_output_bytes, MIN_LINE_BYTES)
        self._peer = Peer(self._write, longest_line=longest)
        stream = Stream(
            work.sink,
            process_runner.clock,
            per_second=process_runner.limits.stream_per_second,
            in_all=runner.max_output_bytes,
        )
        self.turn = Turn(work.sink, stream, most=runner.max_output_bytes)
        self.noise = self._peer.noise
        self.version = ""
        """The version that the agent reports."""
        self.session: str | None = None
        self.stop_reason: str | None = None
        self.usage = Usage()
        self.fault: Fault | None = None
        self.asked: Permission | None = None
        """The question that a person must answer before the run resumes."""

    @property
    def stage(self) -> str:
        """The method of the last request to the agent."""
        return self._stage

    async def begin(self, stdin: IO[bytes] | None) -> None:
        """Send the first request of the protocol to the agent."""
        assert stdin is not None  # noqa: S101 - a pipe was requested
        full = Fault(kind=AgentProtocolBroken, what="does not read its input")
        self._stdin = await StdinWriter.on(stdin, lambda: self._fail(full))
        capabilities = {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
            "session": {"notices": {}},  # otherwise, some agents put notices into the answer
        }
        us = {"name": "postroom", "title": "postroom", "version": __version__}
        self._ask(
            "initialize",
            {"protocolVersion": PROTOCOL, "clientCapabilities": capabilities, "clientInfo": us},
        )
        self._tasks.start(self._refuse_silence(), name="handshake")
        self._has_begun.set()

    async def _refuse_silence(self) -> None:
        patience = self._with.limits.handshake
        await self._with.timer.sleep(milliseconds(patience))
        if self._stage == "initialize":
            what = f"did not answer 'initialize' within {patience.total_seconds():g} s and was stopped"
            self._fail(Fault(kind=AgentProtocolBroken, what=what))

    async def take(self, chunk: bytes) -> None:
        """Process a piece of the agent's output; ignore output after the end of the conversation."""
        await self._has_begun.wait()  # output cannot be processed before `begin`
        if self._over.is_set():
            return
        try:
            for item in self._peer.process_chunk(chunk):
                await self._handle(item)
                if self._over.is_set():
                    return
        except ProtocolFault as error:
            self._fail(Fault(kind=AgentProtocolBroken, what=str(error)))
        except RecursionError:
            self._fail(Fault(kind=AgentProtocolBroken, what="wrote JSON that is nested too deeply"))

    async def part(self, gone: asyncio.Event) -> None:
        """Ask the agent to end the turn and to exit."""
        if self._stdin is None:
            return
        alarm = self._tasks.start(
            self._with.timer.sleep(milliseconds(self._with.limits.farewell)), name="farewell"
        )
        left = self._tasks.start(gone.wait(), name="exit")
        if not self._over.is_set():
            if self._stage == "session/prompt":
                self._cancel()
                ended = self._tasks.start(self._over.wait(), name="end of turn")
                await asyncio.wait((alarm, left, ended), return_when=asyncio.FIRST_COMPLETED)
            self._over.set()
        self._stdin.finish()
        await asyncio.wait((alarm, left), return_when=asyncio.FIRST_COMPLETED)

    async def end(self) -> None:
        """Close the agent's input, and stop all tasks of the conversation."""
        self._over.set()
        if self._stdin is not None:
            await self._stdin.drop()
        await self._tasks.close()

    def _write(self, message: Mapping[str, Any]) -> None:
        if self._stdin is not None:
            self._stdin.write(json.dumps(message).encode() + b"\n")

    def _ask(self, method: str, params: Mapping[str, Any]) -> None:
        self._stage = method
        self._peer.ask(method, params)

    def _cancel(self) -> None:
        if self.session is not None and not self._is_cancelled:
            self._is_cancelled = True
            self._peer.tell("session/cancel", {"sessionId": self.session})

    def _fail(self, fault: Fault) -> None:
        if self.fault is None and not self._over.is_set():
            self.fault = fault
            self._finish()

    def _finish(self) -> None:
        self._over.set()
        self._work.active.stop.ask(StopReason.DONE)

    async def _handle(self, said: Answer | Asked | Told) -> None:
        match said:
            case Answer(method="session/prompt"):
                if self.asked is not None or said.refusal is None:
                    reason = said.result.get("stopReason")
                    if self.asked is None and not isinstance(reason, str):
                        raise ProtocolFault("ended its turn without a reason")
                    self.stop_reason = reason
                    used = table_in(said.result, "usage")
                    self.usage = Usage(
                        input_tokens=_count(used, "inputTokens"), output_tokens=_count(used, "outputTokens")
                    )
                    self._finish()
                else:
                    self._refuse(said.method, said.refusal)
            case Answer(method="session/set_mode"):
                self._tell(self._brief.prompt)
            case Answer():
                if said.method == "initialize" and self._work.received:
                    can = table_in(table_in(said.result, "agentCapabilities"), "promptCapabilities")
                    self._files = await asyncio.to_thread(file_blocks, self._work.received, can)
                if (
                    said.refusal is not None
                    and said.method in _RESTORES
                    and said.refusal.code != AUTH_REQUIRED
                ):
                    self._ask("session/new", self._place())
                elif said.refusal is not None:
                    self._refuse(said.method, said.refusal)
                elif said.method == "initialize":
                    self._on_initialize(said.result)
                else:
                    is_restored = said.method in _RESTORES
                    id = self._former if is_restored else said.result.get("sessionId")
                    if not is_session(id):
                        raise ProtocolFault("answered 'session/new' without a session")
                    self.session = id
                    mode = table_in(said.result, "modes").get("currentModeId")
                    if is_restored and self._acp.replays_after_answer and isinstance(mode, str):
                        # Such an agent answers first and then replays the past; it has finished when it
                        # answers another request.
                        self._ask("session/set_mode", {"sessionId": id, "modeId": mode})
                    else:
                        self._tell(self._brief.prompt if is_restored else self._brief.anew)
            case Asked(method=method) if method == _PERMISSION:
                await self._permission(said)
            case Asked():
                self._peer.refuse(said.id, METHOD_NOT_FOUND, f"this client has no method {said.method!r}")
            case Told(method="session/update") if self._is_ours(said.params):
                update = said.params.get("update")
                await self.turn.hear(update if isinstance(update, dict) else {})

    def _is_ours(self, params: Mapping[str, Any]) -> bool:
        return self._stage == "session/prompt" and params.get("sessionId") == self.session

    def _tell(self, prompt: str) -> None:
        requested_items = [{"type": "text", "text": prompt}, *self._files]
        self._ask("session/prompt", {"sessionId": self.session, "prompt": requested_items})

    def _on_initialize(self, told: Mapping[str, Any]) -> None:
        self.version = version_in(str(table_in(told, "agentInfo").get("version", "")))
        if told.get("protocolVersion") != PROTOCOL:
            raise ProtocolFault(f"does not support version {PROTOCOL} of the protocol")
        can = table_in(told, "agentCapabilities")
        access = None if self._acp.connects_by_settings else self._work.access
        http = table_in(can, "mcpCapabilities").get("http") is True
        self._servers = our_server(access, self._work.runner.recipe, http=http)
        resumes = isinstance(table_in(can, "sessionCapabilities").get("resume"), dict)
        loads = can.get("loadSession") is True
        self._forgets = not (loads or resumes)
        if self._former is None or self._forgets:
            self._ask("session/new", self._place())
        else:
            method = "session/load" if loads else "session/resume"
            self._ask(method, {"sessionId": self._former, **self._place()})

    def _place(self) -> dict[str, Any]:
        allowed = self._acp.in_session if self._servers else {}
        return {"cwd": self._work.runner.cwd, "mcpServers": self._servers, **allowed}

    def _refuse(self, method: str, refusal: Refusal) -> None:
        what = f"answered {method!r} with error {refusal.code}"
        if refusal.code == AUTH_REQUIRED:
            what = f"requires a login first (it answered {method!r} with error {refusal.code})"
        self._fail(Fault(kind=CommandFailed, what=what, words=refusal.text))

    async def _permission(self, said: Asked) -> None:
        call, wanted = table_in(said.params, "toolCall"), None
        if call and self._is_ours(said.params):
            wanted = parse_permission(self.turn.details(call), said.params.get("options"))
        if wanted is None:
            why = "the request lacks a session of this server, a tool call, or an option that allows the call"
            self._peer.refuse(said.id, INVALID_PARAMS, why)
            return
        stop = self._work.active.stop
        decided = None if self.asked or stop.is_ending else self._decisions.take(wanted)
        if decided is not None and (not decided.approved or await self._used.note(decided.decision_id)):
            approved = decided.approved is True
            self._peer.answer(said.id, selected(wanted.option(approved=approved)))
            target = told_id(call.get("toolCallId", ""))
            await self._work.sink.emit(ToolCallResumed(target_id=target, result={"approved": approved}))
            return
        if self.asked is None and not stop.is_ending:
            self.asked = replace(wanted, text=f"{wanted.text} {FORGETS}") if self._forgets else wanted
            self.turn.is_broken_off = True
            stop.ask(StopReason.DONE)  # the turn is cancelled at the end of the conversation
            self._cancel()
        self._peer.answer(said.id, selected(None))


def our_server(access: RunAccess | None, recipe: Recipe, *, http: bool) -> list[dict[str, Any]]:
    """Return this server as an entry for the agent's list of MCP servers.

    If `http` is False, the entry starts a bridge program.
    """
    if access is None:
        return []
    if http:
        bearer = {"name": "Authorization", "value": f"Bearer {access.token}"}
        client = {"name": CLIENT_HEADER, "value": recipe.value}
        return [{"type": "http", "name": NAME, "url": access.mcp_url, "headers": [bearer, client]}]
    variables = [{"name": name, "value": value} for name, value in access.variables().items()]
    return [{"name": NAME, "command": sys.executable, "args": list(STDIO), "env": variables}]


def file_blocks(received: Sequence[tuple[ChatFile, Path]], can: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert files to content blocks that the agent accepts.

    Images and sounds are included if the agent supports them. All other files become links to local copies.
    """
    blocks: list[dict[str, Any]] = []
    for file, path in received:
        kind = file.media_type.partition("/")[0]
        is_shown = kind in ("image", "audio") and can.get(kind) is True and file.size <= MAX_MEDIA_BYTES
        if is_shown and file.media_type != "image/svg+xml":
            data = b64encode(path.read_bytes()).decode()
            blocks.append({"type": kind, "mimeType": file.media_type, "data": data})
        else:
            link = {"uri": path.as_uri(), "name": file.name, "mimeType": file.media_type, "size": file.size}
            blocks.append({"type": "resource_link", **link})
    return blocks


def _count(table: Mapping[str, Any], name: str) -> int:
    value = table.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0
