"""Waits until mail arrives for the agent of an idle session.

Claude Code runs `postroom hook claude wait` in the background, and starts a turn with its output. For Copilot
CLI, postroom's extension does the same. Codex waits until its hooks have ended. Therefore, a separate process
waits for Codex, and queues a turn.

The process runs as long as the session is idle, so it loads almost nothing. The server knows the agent of the
session, whether the session is active, and whether another process has replaced this one.
"""

from __future__ import annotations

import os
import sys
import time

from postroom.cli.hook_input import build_event_request
from postroom.cli.hook_wire import Unreachable, ask, read, read_endpoint, written
from postroom.contracts.clients import WAIT, WAKE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psutil import Process

PATIENCE = 40.0
"""The time limit in seconds for one request. The server answers within about 25 seconds."""
MIN_PAUSE = 1.0
"""The pause in seconds before a request, so that the client's other hook for the event is first."""
MAX_PAUSE = 10.0


WEEK = 7 * 24 * 3600.0
"""The seconds after which a process ends. Some clients do not report the end of their sessions."""
QUEUING = 60.0
"""The time limit for `codex queue` in seconds."""
_BUILDS = ("codex-x86_64", "codex-aarch64")
"""The prefixes of the names of Codex programs in a release. `codex-acp` is a different program."""


def wait_for_mail(client: str, raw: bytes, environment: Mapping[str, str]) -> str:
    """Wait for mail, and return the line that makes an idle client session start a turn.

    Return "" if the session does not need to wait any longer, for example because the client has exited.

    Raises:
        Exception: The input of the client or the answer of the server cannot be read.
    """
    # Find out whether Claude Code runs without a person: `claude -p` would wait until this process ends.
    attended = environment.get("CLAUDE_CODE_SESSION_ATTENDED", "")
    entry = environment.get("CLAUDE_CODE_ENTRYPOINT", "")
    if attended == "0" or (not attended and entry.startswith("sdk-")):
        return ""
    parent = os.getppid()
    since = time.monotonic_ns()
    return _line(client, raw, environment, lambda seconds: _gone_within(seconds, parent), since, last=WAKE)


def leave_waiter(raw: bytes, environment: Mapping[str, str]) -> None:
    """Start a background process that queues one turn of Codex when mail arrives.

    The background process ends when Codex exits, and after one week at the latest.

    Raises:
        Exception: The input of the client cannot be read, or the process cannot be started.
    """
    sent = read(raw)
    if not isinstance(sent, dict) or "agent_id" in sent or environment.get("POSTROOM_RUN"):
        return
    session = sent.get("session_id")
    if not isinstance(session, str):
        return
    import psutil

    parents = ((parent, parent.name().removesuffix(".exe")) for parent in psutil.Process().parents())
    codex = next((parent for parent, name in parents if name == "codex" or name.startswith(_BUILDS)), None)
    if codex is None or os.fork():
        return
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        os.closerange(3, 256)
        until = time.monotonic() + WEEK
        since = time.monotonic_ns()
        line = _line("codex", raw, environment, lambda seconds: _ended_within(seconds, codex, until), since)
        if line:
            # Queue a turn with the same Codex program. Only the hook of the turn shows that the turn has
            # started.
            import subprocess

            program = codex.exe()
            if "codex" not in os.path.basename(program):  # noqa: PTH119 - a script: its interpreter is the program
                program = "codex"
            words = [program, "queue", f"--thread={session}", f"--message={line}"]
            subprocess.run(words, timeout=QUEUING, check=False)  # noqa: S603 - the words are ours, the id is one word
        elif _ended_within(0, codex, until):
            # Report to the server that a Codex session has ended, because Codex has no hook for this. If a
            # newer process waits for the session, the session was resumed, and the server ignores the report.
            call = build_event_request("codex", "end", read(raw))
            if call is not None:
                call.update(agent=environment.get("POSTROOM_AGENT", "")[:400], waiting_since=since)
                _wait_for_answer(environment, "codex", "SessionEnd", written(call).encode())
    finally:
        os._exit(0)


def _line(
    client: str,
    raw: bytes,
    environment: Mapping[str, str],
    is_gone: Callable[[float], bool],
    since: int,
    *,
    last: str = "",
) -> str:
    sent = read(raw)
    call = build_event_request(client, WAIT, sent)
    if call is None or not isinstance(sent, dict) or environment.get("POSTROOM_RUN"):
        return ""
    call.update(agent=environment.get("POSTROOM_AGENT", "")[:400], waiting_since=since)
    body = written(call).encode()
    pause = MIN_PAUSE
    is_patient = sent.get("hook_event_name") == "SessionStart"
    while True:
        if is_gone(pause):
            return ""
        outcome, text = _wait_for_answer(environment, client, WAIT, body)
        if outcome == "tell" and not is_gone(0):
            outcome, text = _wait_for_answer(environment, client, last, body) if last else (outcome, text)
            if outcome == "tell":
                return text
        if outcome == "unknown" or (outcome == "away" and not is_patient):
            return ""
        is_patient = True
        pause = min(pause * 2, MAX_PAUSE) if outcome == "away" else MIN_PAUSE


def _wait_for_answer(environment: Mapping[str, str], client: str, event: str, body: bytes) -> tuple[str, str]:
    try:
        status, data = ask(read_endpoint(environment), f"/hooks/{client}/{event}", body, budget=PATIENCE)
    except Unreachable:
        return "away", ""
    if status != 200:
        return "unknown" if 400 <= status < 500 and status != 429 else "away", ""
    answer = read(data)
    if not isinstance(answer, dict):
        return "unknown", ""
    return str(answer.get("outcome")), str(answer.get("text"))


def _gone_within(seconds: float, parent: int) -> bool:
    import select

    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(sys.stderr.fileno(), select.POLLERR)
    return bool(poll.poll(seconds * 1000)) or os.getppid() != parent  # a socket reports the exit as a hang-up


def _ended_within(seconds: float, codex: Process, until: float) -> bool:
    import psutil

    time.sleep(seconds)  # noqa: TID251 - a client that is gone tells nobody: it is looked for, now and then
    try:
        is_there = codex.is_running() and codex.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True
    return not is_there or time.monotonic() > until
