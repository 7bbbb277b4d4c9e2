"""The table client x scenario: what a run of every scenario with every client comes to.

A cell is what the test expects, and what `docs/clients.md` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Yes:
    """The scenario holds; `detail` is what it returns."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class No:
    """The scenario is tried and fails, and the failure contains `because`: a limit of the client, not of postroom."""

    reason: str
    because: str


@dataclass(frozen=True, slots=True)
class NotYet:
    """The scenario is tried and fails, for what postroom does not do yet; when it holds, the test fails."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotOffered:
    """The client has nothing to try."""

    reason: str


Cell = Yes | No | NotYet | NotOffered

_NOT_WOKEN = NotOffered("no other program can start a turn in an idle session of the client")

_HELD, _TOLD, _REFUSED = "held", "made and told", "refused by the client"
COLLIDES: Mapping[str, Mapping[str, str]] = {
    "claude": {"whole file": _REFUSED, "edit": _TOLD, "patch": _TOLD, "shell": _TOLD},
    "codex": {"whole file": _HELD, "edit": "", "patch": _TOLD, "shell": _TOLD},
    "gemini": {"whole file": _HELD, "edit": _TOLD, "patch": _TOLD, "shell": _TOLD},
    "opencode": {"whole file": _HELD, "edit": _TOLD, "patch": _TOLD, "shell": _TOLD},
    "copilot": {"whole file": _HELD, "edit": _TOLD, "patch": _TOLD, "shell": _TOLD},
    "cline": {"whole file": _HELD, "edit": "", "patch": _TOLD, "shell": _TOLD},
}
"""The result of a client's write over an unread change of another agent, for each tool; empty if it has no such tool."""

_RUNS: Mapping[str, Cell] = dict.fromkeys(
    ("woken_and_answers", "session_of_a_thread_resumed", "question_answered", "steered", "run_cancelled"),
    Yes(),
)
"""The scenarios of a client that the server runs."""
_ALL: Mapping[str, Cell] = {
    **dict.fromkeys(
        (
            "configuration_accepted",
            "tools_offered",
            "tools_in_the_first_request",
            "ends_with_its_answer",
            "session_resumed",
            "tool_changes",
            "welcomed_at_the_start",
            "mail_told_at_the_prompt",
            "mail_told_after_a_tool",
            "turn_goes_on_for_mail",
            "reserved_edit_refused",
            "released_at_the_end",
            "idle_session_woken",
            "undone_to_the_byte",
            "undone_after_a_rewrite",
        ),
        Yes(),
    ),
    **_RUNS,
}
"""Every scenario; a client names those that come to something else, or have a detail."""

TABLE: Mapping[str, Mapping[str, Cell]] = {
    "claude": {
        **_ALL,
        "tools_offered": Yes("`core`: 19 tools, about 3,500 tokens; `full`: 48 tools, about 7,200 tokens"),
        "tool_changes": Yes("--allowedTools mcp__plugin_postroom_postroom --permission-mode acceptEdits"),
    },
    "codex": {
        **_ALL,
        "tools_offered": Yes("`core`: 19 tools, about 3,300 tokens; `full`: 48 tools, about 6,700 tokens"),
        "tool_changes": Yes(
            '-c mcp_servers.postroom.default_tools_approval_mode="approve" --sandbox workspace-write'
        ),
    },
    "gemini": {
        **_ALL,
        "tools_offered": Yes("`core`: 19 tools, about 4,500 tokens; `full`: 48 tools, about 9,600 tokens"),
        "tool_changes": Yes("--approval-mode yolo"),
        "idle_session_woken": _NOT_WOKEN,
    },
    "opencode": {
        **_ALL,
        "tools_offered": Yes("`core`: 19 tools, about 3,400 tokens; `full`: 48 tools, about 6,900 tokens"),
        "turn_goes_on_for_mail": NotOffered("the client's plugins cannot delay the end of a turn"),
    },
    "copilot": {
        **_ALL,
        "tools_offered": Yes("`core`: 19 tools, about 3,400 tokens; `full`: 48 tools, about 6,900 tokens"),
        "tool_changes": Yes("--allow-all-tools"),
        "idle_session_woken": Yes("--extension"),
    },
    "cline": {
        **_ALL,
        "tools_offered": Yes("`core`: 19 tools, about 3,400 tokens; `full`: 48 tools, about 6,900 tokens"),
        "session_resumed": Yes("at a terminal, by `cline --id`"),
        "turn_goes_on_for_mail": NotOffered("the client's plugins cannot delay the end of a turn"),
        "released_at_the_end": NotOffered("the client's plugins get no event at the end of a session"),
        "idle_session_woken": _NOT_WOKEN,
        "session_of_a_thread_resumed": NotOffered(
            "the client cannot resume a session and print JSON in the same turn"
        ),
    },
    **{f"{name} over ACP": _RUNS for name in ("claude", "codex", "gemini", "opencode")},
}
