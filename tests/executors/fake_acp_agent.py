"""A fake agent, for tests alone: it speaks the Agent Client Protocol, and does in its turn what its words say.

Its words are Python that is run for each prompt, and options as JSON: `loads`, `resumes` (it restores sessions,
kept in the folder `memory`), `is_gemini` (it restores them as Gemini CLI does), `version`, `journal` (a file to which all
that it hears is written), `first` (Python that is run before anything is heard).
"""

import json
import os
import signal
import sys
from pathlib import Path

WORDS, OPTIONS = sys.argv[1], json.loads(sys.argv[2])
asked = 0
session = ""
cancelled = False


def raw(line):
    os.write(1, line.encode() if isinstance(line, str) else line)


def send(**message):
    raw(json.dumps({"jsonrpc": "2.0", **message}) + "\n")


def hear():
    global cancelled
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    if "journal" in OPTIONS:
        with Path(OPTIONS["journal"]).open("ab") as journal:
            journal.write(line)
    message = json.loads(line)
    if message.get("method") == "session/cancel":
        cancelled = True
    return message


def update(kind, /, **fields):
    send(method="session/update", params={"sessionId": session, "update": {"sessionUpdate": kind, **fields}})


def say(text, **fields):
    update("agent_message_chunk", content={"type": "text", "text": text}, **fields)


def request(method, params):
    """Ask the client and return its answer, and the cancellations received until then."""
    global asked
    asked += 1
    send(id=f"a{asked}", method=method, params=params)
    while (heard := hear()).get("id") != f"a{asked}":
        pass
    return heard


ONCE = [
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "ever", "name": "Always", "kind": "allow_always"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def may(call, options=ONCE):
    """Ask for a permission; return the option that was selected, or `cancelled`."""
    told = {"sessionId": session, "toolCall": call, "options": options}
    outcome = request("session/request_permission", told)["result"]["outcome"]
    return outcome.get("optionId", outcome["outcome"])


def hang():
    while True:
        signal.pause()


def known(id):
    return Path(OPTIONS["memory"], id).exists()


def begin_session():
    global session
    session = f"s{os.getpid()}"
    if "memory" in OPTIONS:
        Path(OPTIONS["memory"], session).touch()
    return {"sessionId": session}


def restore(id, *, tells):
    global session
    if not known(id):
        return None
    session = id
    if tells:
        update("user_message_chunk", content={"type": "text", "text": "old question"})
        say("old answer")
    return {}


def restore_like_gemini(message):
    """Erase a session by its id; answer first, and report its content afterwards."""
    global session
    session, id = message["params"]["sessionId"], message["params"]["sessionId"].strip()
    if session == id or not known(id):
        return send(id=message["id"], error={"code": -32603, "message": "no such session"})
    send(id=message["id"], result={"modes": {"currentModeId": "default"}})
    return say("old answer")


def take_turn(message):
    global cancelled
    cancelled = False
    room = dict(globals(), prompt=message["params"]["prompt"][0]["text"], stop="end_turn", id=message["id"])
    exec(WORDS, room)
    send(id=message["id"], result={"stopReason": "cancelled" if cancelled_now() else room["stop"]})


def cancelled_now():
    return cancelled


def answer(message):
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        can = {"loadSession": OPTIONS.get("loads", False)}
        if OPTIONS.get("resumes"):
            can["sessionCapabilities"] = {"resume": {}}
        result = {"protocolVersion": OPTIONS.get("version", 1), "agentCapabilities": can}
    elif method == "session/new":
        result = begin_session()
    elif method == "session/load" and OPTIONS.get("is_gemini"):
        return restore_like_gemini(message)
    elif method == "session/set_mode":
        result = {}
    elif method in ("session/load", "session/resume"):
        result = restore(params["sessionId"], tells=method == "session/load")
    elif method == "session/prompt":
        return take_turn(message)
    else:
        return None
    if result is None:
        return send(id=message["id"], error={"code": -32603, "message": "no such session"})
    return send(id=message["id"], result=result)


exec(OPTIONS.get("first", ""))
while True:
    answer(hear())
