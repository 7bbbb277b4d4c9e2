"""The hooks of client programs: which of their events means what. Imports nothing: hooks must be quick."""

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
"""By client and by the client's own name of the event; Codex has no SessionEnd: our waiter tells it."""

CLIENT_HEADER = "Postroom-Client"
"""Names the client program in a request to the server: its model reads answers of tools in its own way."""

WAKING = ("claude", "codex", "copilot")
"""The clients in which what waits behind an idle session can begin a turn."""
WAIT = "wait"
"""What such a hook asks while it waits: whether mail came for a session that is idle."""
WAKE = "wake"
"""What it asks then: the line with which the turn begins."""

MODES = ("warn", "block", "off")
"""What a check that could not be made means: go on with a note, stop, or do not check at all."""


def unchecked(why: str) -> str:
    """Say that nobody could look whether files are reserved; not how to do without, for a model reads it."""
    return f"postroom: reservations were not checked: {why}."
