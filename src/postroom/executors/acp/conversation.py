"""The conversation with an agent, from its start to the end of its turn.

    initialize ─▶ session/load, /resume or /new ─▶ session/prompt ─▶ updates … ─▶ stop reason
                                                         └─▶ permission request ─▶ its turn is cancelled,
                                                                                   a person is asked

Of the optional capabilities we declare only notices: requests for files and terminals are refused.
"""

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from postroom.concurrency import Tasks
from postroom.contracts.agent_events import ToolCallResumed
from postroom.contracts.client_programs import NAME
from postroom.contracts.clients import CLIENT_HEADER
from postroom.contracts.clock import milliseconds
from postroom.contracts.errors import AgentProtocolBroken, CommandError, CommandFailed
from postroom.contracts.files import ChatFile
from postroom.contracts.records import replace
from postroom.contracts.run_access import STDIO, RunAccess
from postroom.contracts.runners import Recipe
from postroom.contracts.runs import Usage
from postroom.executors.acp.permissions import (
    FORGETS,
    Decisions,
    Permission,
    UsedPermissions,
    permission_of,
    selected,
)
from postroom.executors.acp.turn import Turn, told_id
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
from postroom.executors.processes.output import LEAST_LINE_BYTES, Stream
from postroom.executors.processes.pipes import StdinWriter
from postroom.executors.processes.process_runner import ProcessRunner, Work
from postroom.executors.processes.sessions import is_session
from postroom.version import __version__

PROTOCOL: Final = 1
MOST_SHOWN: Final = 5_000_000
"""The size in bytes up to which a prompt contains a picture or sound itself; larger ones are links."""
_PERMISSION: Final = "session/request_permission"
_RESTORES: Final = ("session/load", "session/resume")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The reason why the conversation with the agent is broken; `words` are the agent's."""

    kind: type[CommandError]
    what: str
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """The content for an agent: `former` is a session to resume, `anew` is the prompt for a new one."""

    acp: OverAcp
    prompt: str
    anew: str
    former: str | None


class Conversation:
    """The conversation with one agent. When it is over the program is asked to stop, for `DONE`."""

    def __init__(
        self,
        process_runner: ProcessRunner,
        work: Work,
        brief: Brief,
        decisions: Decisions,
        used: UsedPermissions,
    ) -> None:
        """Keep the content and people's decisions."""
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
        longest = max(runner.max_output_bytes, LEAST_LINE_BYTES)
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
        """The agent's version, as it reports it."""
        self.session: str | None = None
        self.stop_reason: str | None = None
        self.usage = Usage()
        self.fault: Fault | None = None
        self.asked: Permission | None = None
        """The question for a person before the run can resume."""

    @property
    def stage(self) -> str:
        """The last request to the agent."""
        return self._stage

    async def begin(self, stdin: IO[bytes] | None) -> None:
        """Send the first request, which names us."""
        assert stdin is not None  # noqa: S101 - a pipe was asked for
        full = Fault(kind=AgentProtocolBroken, what="does not read its input")
        self._stdin = await StdinWriter.on(stdin, lambda: self._fail(full))
        capabilities = {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
            "session": {"notices": {}},  # without this an agent puts its notices into the text of its answer
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
            what = f"did not answer 'initialize' within {patience.total_seconds():g} s and was ended"
            self._fail(Fault(kind=AgentProtocolBroken, what=what))

    async def take(self, chunk: bytes) -> None:
        """Process a piece of the agent's output; ignored when the conversation is over."""
        await self._has_begun.wait()  # an earlier answer would reach nobody
        if self._over.is_set():
            return
        try:
            for said in self._peer.heard(chunk):
                await self._heard(said)
                if self._over.is_set():
                    return
        except ProtocolFault as error:
            self._fail(Fault(kind=AgentProtocolBroken, what=str(error)))
        except RecursionError:
            self._fail(Fault(kind=AgentProtocolBroken, what="wrote JSON that is nested too deeply"))

    async def part(self, gone: asyncio.Event) -> None:
        """Have the agent end its turn and then exit; send nothing more."""
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
        """Release the program."""
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
        """Have the agent end its turn; sent at most once."""
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

    async def _heard(self, said: Answer | Asked | Told) -> None:
        match said:
            case Answer(method="session/prompt"):
                self._turn_ended(said)
            case Answer(method="session/set_mode"):
                self._tell(self._brief.prompt)
            case Answer():
                if said.method == "initialize" and self._work.received:
                    can = table_in(table_in(said.result, "agentCapabilities"), "promptCapabilities")
                    self._files = await asyncio.to_thread(file_blocks, self._work.received, can)
                self._answered(said)
            case Asked(method=method) if method == _PERMISSION:
                await self._permission(said)
            case Asked():
                self._peer.refuse(said.id, METHOD_NOT_FOUND, f"this client has no method {said.method!r}")
            case Told(method="session/update") if self._is_ours(said.params):
                update = said.params.get("update")
                await self.turn.hear(update if isinstance(update, dict) else {})

    def _is_ours(self, params: Mapping[str, Any]) -> bool:
        """Return whether a message belongs to our turn, and not to the replayed past of a session."""
        return self._stage == "session/prompt" and params.get("sessionId") == self.session

    def _answered(self, said: Answer) -> None:
        if said.refusal is not None and said.method in _RESTORES and said.refusal.code != AUTH_REQUIRED:
            self._ask("session/new", self._place())
        elif said.refusal is not None:
            self._refused(said.method, said.refusal)
        elif said.method == "initialize":
            self._initialized(said.result)
        else:
            is_restored = said.method in _RESTORES
            id = self._former if is_restored else said.result.get("sessionId")
            if not is_session(id):
                raise ProtocolFault("answered 'session/new' without a session")
            self.session = id
            mode = table_in(said.result, "modes").get("currentModeId")
            if is_restored and self._acp.replays_after_answer and isinstance(mode, str):
                # The replay is over when the agent answers another request.
                self._ask("session/set_mode", {"sessionId": id, "modeId": mode})
            else:
                self._tell(self._brief.prompt if is_restored else self._brief.anew)

    def _tell(self, prompt: str) -> None:
        asked = [{"type": "text", "text": prompt}, *self._files]
        self._ask("session/prompt", {"sessionId": self.session, "prompt": asked})

    def _initialized(self, told: Mapping[str, Any]) -> None:
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

    def _refused(self, method: str, refusal: Refusal) -> None:
        what = f"answered {method!r} with error {refusal.code}"
        if refusal.code == AUTH_REQUIRED:
            what = f"requires a login first (it answered {method!r} with error {refusal.code})"
        self._fail(Fault(kind=CommandFailed, what=what, words=refusal.text))

    def _turn_ended(self, said: Answer) -> None:
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
            self._refused(said.method, said.refusal)

    async def _permission(self, said: Asked) -> None:
        call, asked = table_in(said.params, "toolCall"), None
        if call and self._is_ours(said.params):
            asked = permission_of(self.turn.details(call), said.params.get("options"))
        if asked is None:
            why = "it names no session of this server, no tool call, or no option that allows it"
            self._peer.refuse(said.id, INVALID_PARAMS, why)
            return
        stop = self._work.active.stop
        decided = None if self.asked or stop.is_ending else self._decisions.take(asked)
        if decided is not None and (not decided.approved or await self._used.note(decided.decision_id)):
            approved = decided.approved is True
            self._peer.answer(said.id, selected(asked.option(approved=approved)))
            target = told_id(call.get("toolCallId", ""))
            await self._work.sink.emit(ToolCallResumed(target_id=target, result={"approved": approved}))
            return
        if self.asked is None and not stop.is_ending:
            self.asked = replace(asked, text=f"{asked.text} {FORGETS}") if self._forgets else asked
            self.turn.is_broken_off = True
            stop.ask(StopReason.DONE)  # the turn is cancelled while we part
            self._cancel()
        self._peer.answer(said.id, selected(None))


def our_server(access: RunAccess | None, recipe: Recipe, *, http: bool) -> list[dict[str, Any]]:
    """Return our server as an entry of an agent's MCP servers; without HTTP, a program connects it."""
    if access is None:
        return []
    if http:
        bearer = {"name": "Authorization", "value": f"Bearer {access.token}"}
        client = {"name": CLIENT_HEADER, "value": recipe.value}
        return [{"type": "http", "name": NAME, "url": access.mcp_url, "headers": [bearer, client]}]
    variables = [{"name": name, "value": value} for name, value in access.variables().items()]
    return [{"name": NAME, "command": sys.executable, "args": list(STDIO), "env": variables}]


def file_blocks(received: Sequence[tuple[ChatFile, Path]], can: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return files as the agent accepts them.

    Pictures and sound if it supports them, else links to copies.
    """
    blocks: list[dict[str, Any]] = []
    for file, path in received:
        kind = file.media_type.partition("/")[0]
        is_shown = kind in ("image", "audio") and can.get(kind) is True and file.size <= MOST_SHOWN
        if is_shown and file.media_type != "image/svg+xml":
            data = b64encode(path.read_bytes()).decode()
            blocks.append({"type": kind, "mimeType": file.media_type, "data": data})
        else:
            link = {"uri": path.as_uri(), "name": file.name, "mimeType": file.media_type, "size": file.size}
            blocks.append({"type": "resource_link", **link})
    return blocks


def _count(table: Mapping[str, Any], name: str) -> int:
    found = table.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 1 << 53 else 0
