"""`postroom hook claude wait`: waits behind an idle session until mail comes for the agent that it acts as.

It lives as long as the session is idle, so it loads next to nothing. The server says who the agent is,
whether the session is at work, and whether another waits in its place.
"""

from __future__ import annotations

import os
import sys
import time

from postroom.cli.hook_input import call_of
from postroom.cli.hook_wire import Unreachable, ask, endpoint_of, read, written
from postroom.contracts.clients import WAIT, WAKE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE = 40.0
"""Seconds for one question; the server answers within 25 or so."""
SHORTEST_PAUSE = 1.0
"""Seconds before a question. The client's other hook of the same moment is quicker: it tells first."""
LONGEST_PAUSE = 10.0


def awaited(client: str, raw: bytes, environment: Mapping[str, str]) -> str:
    """Return the line with which an idle session begins a turn, when mail has come.

    It is empty when nobody is to wait any more: the session is no agent's, or at an end, the client is gone,
    or another waits in this one's place. A server that is away is waited for, except at the end of a turn:
    who has waited since the start waits still.

    Raises:
        Exception: what the client sent cannot be read, or the server's answer cannot.
    """
    sent = read(raw)
    call = call_of(client, WAIT, sent)
    if call is None or not isinstance(sent, dict) or environment.get("POSTROOM_RUN"):
        return ""
    call.update(agent=environment.get("POSTROOM_AGENT", "")[:400], waiting_since=time.monotonic_ns())
    body = written(call).encode()
    parent, pause = os.getppid(), SHORTEST_PAUSE
    is_patient = sent.get("hook_event_name") == "SessionStart"
    while True:
        if _gone_within(pause, parent):
            return ""
        outcome, text = _asked(environment, client, WAIT, body)
        if outcome == "tell" and not _gone_within(0, parent):
            outcome, text = _asked(environment, client, WAKE, body)
            if outcome == "tell":
                return text
        if outcome == "unknown" or (outcome == "away" and not is_patient):
            return ""
        is_patient = True
        pause = min(pause * 2, LONGEST_PAUSE) if outcome == "away" else SHORTEST_PAUSE


def _asked(environment: Mapping[str, str], client: str, event: str, body: bytes) -> tuple[str, str]:
    """Return outcome and text of the server's answer: `away` for none, `unknown` where it refuses."""
    try:
        status, found = ask(endpoint_of(environment), f"/hooks/{client}/{event}", body, budget=PATIENCE)
    except Unreachable:
        return "away", ""
    if status != 200:
        return "unknown" if 400 <= status < 500 and status != 429 else "away", ""
    answer = read(found)
    if not isinstance(answer, dict):
        return "unknown", ""
    return str(answer.get("outcome")), str(answer.get("text"))


def _gone_within(seconds: float, parent: int) -> bool:
    """Return whether the client is gone, at once or within that time: our parent, or who reads what we tell.

    Where that cannot be seen it counts as gone: nobody may wait for ever.
    """
    import select

    if not hasattr(select, "poll"):
        return True
    poll = select.poll()
    poll.register(sys.stderr.fileno(), select.POLLERR)
    return bool(poll.poll(seconds * 1000)) or os.getppid() != parent  # a socket tells of a hang-up
