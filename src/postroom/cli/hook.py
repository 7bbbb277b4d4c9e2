"""`postroom hook <client> <event>`: the program that a client runs as its hook.

The server makes the decisions. This program asks the server, and converts between the formats of the client
and the server.

The program runs at every tool call. So it imports almost nothing, uses HTTP over a plain socket, and connects
only to this machine. After any failure, it prints nothing and exits with 0, so that mail never blocks a
client. The input of the hook (prompts, file contents, tool calls) is not forwarded: the server gets only
names of files and agents.
"""

from __future__ import annotations

import os
import sys

from postroom.cli.hook_input import build_event_request, read_input, read_place
from postroom.cli.hook_wire import Unreachable, ask, data_dir, hook_environment, read, read_endpoint, written
from postroom.contracts.clients import EVENTS, MODES, WAIT, WAKE, unchecked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.cli.hook_files import Look

MAX_TEXT_LENGTH = 4_000
WOKEN = 2
"""The exit code by which a background hook (`asyncRewake`) makes the client start a turn."""


def run(client: str, event: str) -> int:
    """Handle an event of a client program, print the answer, and return the exit code.

    The exit code is 2 if the event is `wait` and new mail has arrived, or 0 for all other events.
    """
    try:
        raw = read_input(sys.stdin.fileno())
        if event == WAIT and client in ("claude", "copilot"):
            from postroom.cli.hook_waiting import wait_for_mail

            line = wait_for_mail(client, raw, hook_environment())[:MAX_TEXT_LENGTH]
            return WOKEN if line and os.write(sys.stderr.fileno(), line.encode()) else 0
        if answer := answer_event(client, event, raw, hook_environment()):
            os.write(sys.stdout.fileno(), answer)
        if client == "codex" and EVENTS[client].get(event) in ("start", "stop"):
            from postroom.cli.hook_waiting import leave_waiter

            leave_waiter(raw, hook_environment())
    except Exception:  # noqa: S110 - the edge around one event: a hook that fails must not stop its client
        pass
    return 0


def answer_event(client: str, event: str, raw: bytes, environment: Mapping[str, str]) -> bytes:
    """Return the answer to an event in the client's format, or no bytes if there is no answer.

    Raises:
        Exception: The input of the client or the answer of the server cannot be read.
    """
    kind = EVENTS.get(client, {}).get(event, "")
    mode = environment.get("POSTROOM_GUARD", "").lower()
    mode = mode if mode in MODES else ""
    if not kind or client == "git" or (kind == "edit" and mode == "off"):
        return b""
    endpoint = read_endpoint(environment)
    if endpoint is None and not (kind == "edit" and mode == "block"):
        return b""
    sent = read(raw)
    call, look = build_event_request(client, kind, sent), None
    if kind in ("edit", "tool", "prompt") and isinstance(sent, dict):
        from postroom.cli.hook_files import Look

        look = Look(client, kind, sent, data_dir(environment))
        if look.reports:
            call = {**(call or read_place(sent)), "files": look.reports}
        elif call is None:
            look.save()
        if call is not None and (stale := environment.get("POSTROOM_STALE", "").lower()) in MODES:
            call["stale"] = stale
    if call is None:
        return _add_warning(client, event, kind, "", "", look)
    # The prompt that mail used to wake an idle Codex session. When the hook gets this prompt, the mail counts
    # as announced.
    prompt = sent.get("prompt") if client == "codex" and kind == "prompt" and isinstance(sent, dict) else ""
    queued = prompt.strip() if isinstance(prompt, str) and prompt.startswith("postroom: ") else ""
    call.update(agent=environment.get("POSTROOM_AGENT", "")[:400], guard=mode)
    reply: object = None
    try:
        status, body = ask(endpoint, f"/hooks/{client}/{WAKE if queued else event}", written(call).encode())
        reply = read(body)
        outcome, text = _understood(kind, status, reply, mode)
    except (Unreachable, ValueError):
        outcome, text = _report_failure(
            kind, "the server does not answer", mode if mode == "block" else "off"
        )
    text += look.conclude(reply) if look is not None else ""
    text = "" if text == queued else text[:MAX_TEXT_LENGTH]  # the prompt contains the text already
    return _add_warning(client, event, kind, outcome, text, look)


def _add_warning(client: str, event: str, kind: str, outcome: str, text: str, look: Look | None) -> bytes:
    warning = look.warning() if look is not None and kind == "edit" else ""
    if warning:
        outcome = outcome if outcome == "deny" else "note"
        text = "\n".join(filter(None, (text, warning)))
    shaped = _format_answer(client, event, kind, outcome, text)
    return written(shaped).encode() if shaped else b""


def _understood(kind: str, status: int, found: object, mode: str) -> tuple[str, str]:
    """Return the outcome and the text of a server's response.

    Raises:
        Unreachable: The response is not from a postroom server.
    """
    if not isinstance(found, dict):
        raise Unreachable
    if status != 200:
        code = str(found.get("code", ""))
        if not (code.isascii() and code.isidentifier()):
            raise Unreachable
        return _report_failure(kind, f"the server answered with {code}", mode or "warn")
    outcome, text = found.get("outcome"), found.get("text")
    if not (isinstance(outcome, str) and isinstance(text, str)):
        raise Unreachable
    if outcome == "error":
        return {"block": "deny", "warn": "note"}.get(str(found.get("mode")), ""), text
    return outcome, text


def _report_failure(kind: str, why: str, mode: str) -> tuple[str, str]:
    outcome = {"block": "deny", "warn": "note"}.get(mode, "") if kind == "edit" else ""
    return outcome, unchecked(why)


def _format_answer(client: str, event: str, kind: str, outcome: str, text: str) -> dict[str, object] | None:
    fits = {"start": "tell", "prompt": "tell", "tool": "tell", "stop": "hold"}.get(kind)
    if not text or (outcome != fits if fits else outcome not in ("deny", "note")):
        return None
    if client == "cursor":
        if outcome == "hold":
            return {"followup_message": text}
        if outcome == "deny":
            return {"permission": "deny", "user_message": text, "agent_message": text}
        if outcome == "note":
            return {"agent_message": text}
        if kind == "prompt":
            return {"continue": True, "user_message": text, "additional_context": text}
        return {"additional_context": text}
    if client in ("copilot", "opencode", "cline") and outcome != "hold":
        return _block(text) if outcome == "deny" else {"additionalContext": text}
    if outcome == "note":
        return {"systemMessage": text}
    if outcome == "tell":
        return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}
    if client == "gemini":
        return {"decision": "deny", "reason": text}
    if outcome == "hold":
        return {"decision": "block", "reason": text}
    return {"hookSpecificOutput": {"hookEventName": event, **_block(text)}}


def _block(text: str) -> dict[str, object]:
    return {"permissionDecision": "deny", "permissionDecisionReason": text}
