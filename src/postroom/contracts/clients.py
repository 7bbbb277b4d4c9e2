"""The hooks of client programs, and the meanings of the events that the hooks report.

The module imports nothing, because hooks must start quickly.
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
"""The meaning of each event, keyed by the client and by the client's name for the event.

Codex itself has no SessionEnd event. The process of postroom that waits for mail sends this event for Codex.
"""

CLIENT_HEADER = "Postroom-Client"
"""The header of a request that names the client program, because tool results are formatted for each client.
"""

WAKING = ("claude", "codex", "copilot")
"""The clients in which a waiting process can start a turn in an idle session."""
WAIT = "wait"
"""The first call of a waiting hook, which asks whether mail has arrived for an idle session."""
WAKE = "wake"
"""The second call of a waiting hook, which asks for the text that starts the turn."""

MODES = ("warn", "block", "off")
"""The actions of a hook after a failed check: `warn` adds a note, and `block` stops the action. `off`
disables the check.
"""


def unchecked(why: str) -> str:
    """Return the note that reservations were not checked.

    Models read the note, so the note must not explain how to bypass the check.
    """
    return f"postroom: reservations were not checked: {why}."
