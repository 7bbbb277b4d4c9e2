"""The hooks of client programs and the meaning of their events.

Imports nothing, because hooks must be quick.
"""

EVENTS = {
    "claude": {
        "SessionStart": "start",
        "UserPromptSubmit": "prompt",
        "PreToolUse": "edit",
        "PostToolUse": "tool",
        "Stop": "stop",
        "SessionEnd": "end",
    },
    "codex": {
        "SessionStart": "start",
        "UserPromptSubmit": "prompt",
        "PreToolUse": "edit",
        "PostToolUse": "tool",
        "Stop": "stop",
        "SessionEnd": "end",
    },
    "gemini": {
        "SessionStart": "start",
        "BeforeAgent": "prompt",
        "BeforeTool": "edit",
        "AfterTool": "tool",
        "AfterAgent": "stop",
        "SessionEnd": "end",
    },
    "cursor": {
        "sessionStart": "start",
        "beforeSubmitPrompt": "prompt",
        "preToolUse": "edit",
        "postToolUse": "tool",
        "stop": "stop",
        "sessionEnd": "end",
    },
    "copilot": {
        "sessionStart": "start",
        "userPromptSubmitted": "prompt",
        "preToolUse": "edit",
        "postToolUse": "tool",
        "agentStop": "stop",
        "sessionEnd": "end",
    },
    "opencode": {
        "session.created": "start",
        "chat.message": "prompt",
        "tool.execute.before": "edit",
        "tool.execute.after": "tool",
        "session.deleted": "end",
    },
    "cline": {
        "run-started": "start",
        "beforeRun": "prompt",
        "beforeTool": "edit",
        "afterTool": "tool",
    },
    "git": {"pre-commit": "commit", "pre-push": "push"},
}
"""Meaning of an event, by client and the client's name of the event. Codex has no SessionEnd: the waiter
reports it."""

CLIENT_HEADER = "Postroom-Client"
"""Header that names the client program in a request, because each model reads tool answers in its own way."""

WAKING = ("claude", "codex", "copilot")
"""The clients in which a waiting process can start a turn of an idle session."""
WAIT = "wait"
"""The question of a waiting hook: whether mail came for an idle session."""
WAKE = "wake"
"""The second question of that hook: the line that starts the turn."""

MODES = ("warn", "block", "off")
"""The reaction to a check that failed: continue with a note, stop, or do not check at all."""


def unchecked(why: str) -> str:
    """Return the note that reservations were not checked.

    A model reads it, so it names no way around the check.
    """
    return f"postroom: reservations were not checked: {why}."
