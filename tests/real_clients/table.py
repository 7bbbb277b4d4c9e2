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
    """The scenario is tried and fails, and the failure says `because`: a limit of the client, not of ours."""

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

_NO_PERSON = NotOffered("the server alone starts it")
_OVER_ACP: Mapping[str, Cell] = {
    "configuration_accepted": _NO_PERSON,
    "tools_offered": _NO_PERSON,
    "session_resumed": _NO_PERSON,
    "tool_changes": _NO_PERSON,
    "mail_told_at_the_prompt": _NO_PERSON,
    "mail_told_after_a_tool": _NO_PERSON,
    "turn_goes_on_for_mail": _NO_PERSON,
    "reserved_edit_refused": _NO_PERSON,
    "undone_to_the_byte": _NO_PERSON,
}
"""What an agent has not that a person never runs: those cells are of its program."""

TABLE: Mapping[str, Mapping[str, Cell]] = {
    "claude": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("10 tools, about 1,700 tokens"),
        "session_resumed": Yes(),
        "tool_changes": Yes("--allowedTools mcp__plugin_postroom_postroom --permission-mode acceptEdits"),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": Yes(),
        "reserved_edit_refused": Yes(),
        "undone_to_the_byte": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "run_cancelled": Yes(),
    },
    "codex": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("10 tools, about 1,600 tokens, found by its search"),
        "session_resumed": Yes(),
        "tool_changes": Yes(
            '-c mcp_servers.postroom.default_tools_approval_mode="approve" --sandbox workspace-write'
        ),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": Yes(),
        "reserved_edit_refused": Yes(),
        "undone_to_the_byte": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "run_cancelled": Yes(),
    },
    "gemini": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("10 tools, about 2,200 tokens"),
        "session_resumed": Yes(),
        "tool_changes": Yes("--approval-mode yolo"),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": Yes(),
        "reserved_edit_refused": Yes(),
        "undone_to_the_byte": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "run_cancelled": Yes(),
    },
    "opencode": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("10 tools, about 1,700 tokens"),
        "session_resumed": Yes(),
        "tool_changes": Yes(),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": NotOffered("its plugins cannot hold the end of a turn"),
        "reserved_edit_refused": Yes(),
        "undone_to_the_byte": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "run_cancelled": Yes(),
    },
    "copilot": {
        "configuration_accepted": Yes(),
        "tools_offered": Yes("10 tools, about 1,700 tokens"),
        "session_resumed": Yes(),
        "tool_changes": Yes("--allow-all-tools"),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": Yes(),
        "reserved_edit_refused": Yes(),
        "undone_to_the_byte": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "run_cancelled": Yes(),
    },
    "cline": {
        "configuration_accepted": NotOffered("has no command that lists its servers"),
        "tools_offered": Yes("10 tools, about 1,700 tokens"),
        "session_resumed": No(
            "a turn that prints JSON resumes no session", "JSON output mode requires a prompt argument"
        ),
        "tool_changes": Yes(),
        "mail_told_at_the_prompt": Yes(),
        "mail_told_after_a_tool": Yes(),
        "turn_goes_on_for_mail": NotOffered("its plugins cannot hold the end of a turn"),
        "reserved_edit_refused": Yes(),
        "undone_to_the_byte": Yes(),
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": NotOffered("a turn that prints JSON resumes no session"),
        "run_cancelled": Yes(),
    },
    "claude over ACP": {
        **_OVER_ACP,
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "run_cancelled": Yes(),
    },
    "codex over ACP": {
        **_OVER_ACP,
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "run_cancelled": Yes(),
    },
    "gemini over ACP": {
        **_OVER_ACP,
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "run_cancelled": Yes(),
    },
    "opencode over ACP": {
        **_OVER_ACP,
        "woken_and_answers": Yes(),
        "session_of_a_thread_resumed": Yes(),
        "run_cancelled": Yes(),
    },
}
