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

_NOT_WOKEN = NotOffered("no other program can start a turn in its idle session")

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

TABLE: Mapping[str, Mapping[str, Cell]] = {
    "claude": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("`core`: 19 tools, about 3,500 tokens; `full`: 48 tools, about 7,200 tokens"),
        "tools_in_the_first_request": Yes(),
        "ends_with_its_answer": Yes(),
        "session_resumed": Yes(),
        "tool_changes": Yes("--allowedTools mcp__plugin_postroom_postroom --permission-mode acceptEdits"),
        "welcomed_at_the_start": Yes(),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": Yes(),
        "reserved_edit_refused": Yes(),
        "released_at_the_end": Yes(),
        "idle_session_woken": Yes(),
        "undone_to_the_byte": Yes(),
        "undone_after_a_rewrite": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
    "codex": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("`core`: 19 tools, about 3,300 tokens; `full`: 48 tools, about 6,700 tokens"),
        "tools_in_the_first_request": Yes(),
        "ends_with_its_answer": Yes(),
        "session_resumed": Yes(),
        "tool_changes": Yes(
            '-c mcp_servers.postroom.default_tools_approval_mode="approve" --sandbox workspace-write'
        ),
        "welcomed_at_the_start": Yes(),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": Yes(),
        "reserved_edit_refused": Yes(),
        "released_at_the_end": Yes(),
        "idle_session_woken": Yes(),
        "undone_to_the_byte": Yes(),
        "undone_after_a_rewrite": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
    "gemini": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("`core`: 19 tools, about 4,500 tokens; `full`: 48 tools, about 9,600 tokens"),
        "tools_in_the_first_request": Yes(),
        "ends_with_its_answer": Yes(),
        "session_resumed": Yes(),
        "tool_changes": Yes("--approval-mode yolo"),
        "welcomed_at_the_start": Yes(),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": Yes(),
        "reserved_edit_refused": Yes(),
        "released_at_the_end": Yes(),
        "idle_session_woken": _NOT_WOKEN,
        "undone_to_the_byte": Yes(),
        "undone_after_a_rewrite": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
    "opencode": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("`core`: 19 tools, about 3,400 tokens; `full`: 48 tools, about 6,900 tokens"),
        "tools_in_the_first_request": Yes(),
        "ends_with_its_answer": Yes(),
        "session_resumed": Yes(),
        "tool_changes": Yes(),
        "welcomed_at_the_start": Yes(),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": NotOffered("its plugins cannot delay the end of a turn"),
        "reserved_edit_refused": Yes(),
        "released_at_the_end": Yes(),
        "idle_session_woken": Yes(),
        "undone_to_the_byte": Yes(),
        "undone_after_a_rewrite": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
    "copilot": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("`core`: 19 tools, about 3,400 tokens; `full`: 48 tools, about 6,900 tokens"),
        "tools_in_the_first_request": Yes(),
        "ends_with_its_answer": Yes(),
        "session_resumed": Yes(),
        "tool_changes": Yes("--allow-all-tools"),
        "welcomed_at_the_start": Yes(),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": Yes(),
        "reserved_edit_refused": Yes(),
        "released_at_the_end": Yes(),
        "idle_session_woken": Yes("--extension"),
        "undone_to_the_byte": Yes(),
        "undone_after_a_rewrite": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
    "cline": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("`core`: 19 tools, about 3,400 tokens; `full`: 48 tools, about 6,900 tokens"),
        "tools_in_the_first_request": Yes(),
        "ends_with_its_answer": Yes(),
        "session_resumed": Yes("at a terminal, by `cline --id`"),
        "tool_changes": Yes(),
        "welcomed_at_the_start": Yes(),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": NotOffered("its plugins cannot delay the end of a turn"),
        "reserved_edit_refused": Yes(),
        "released_at_the_end": NotOffered("its plugins get no event at the end of a session"),
        "idle_session_woken": _NOT_WOKEN,
        "undone_to_the_byte": Yes(),
        "undone_after_a_rewrite": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": NotOffered(
            "it cannot resume a session and print JSON in the same turn"
        ),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
    "claude over ACP": {
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
    "codex over ACP": {
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
    "gemini over ACP": {
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
    "opencode over ACP": {
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "question_answered": Yes(),
        "steered": Yes(),
        "run_cancelled": Yes(),
    },
}
