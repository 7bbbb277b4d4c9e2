"""The facts about client programs that set-up and runs share: names, commands, settings of our server.

Imports nothing of ours, because commands must start quickly. `postroom.executors.clients` has what runs need.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NAME: Final = "postroom"
"""The name of our server in every client, after set-up and in a run, and of the command that starts it."""
CLAUDE_LOADED: Final[Mapping[str, object]] = {"alwaysLoad": True}
"""Without this, Claude Code defers the tools of an MCP server to its tool search."""
CODEX_DIRECT: Final[Mapping[str, object]] = {"omit_tools_from": ["deferred"]}
"""Without this, Codex defers the tools of an MCP server to its tool search; older releases ignore it."""
CODEX_GRANTED: Final[Mapping[str, object]] = {"default_tools_approval_mode": "approve"}
"""The setting of a server whose tools Codex calls without a question."""
GEMINI_GRANTED: Final[Mapping[str, object]] = {"trust": True}
"""The setting of a server whose tools Gemini CLI calls without a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProgram:
    """A client program; its user runs `log_in` and `trust`."""

    title: str
    program: str
    package: str
    log_in: str
    trust: str
    oldest: str = ""
    """The first release that supports the hooks that set-up needs; empty if every tested release does."""
    why_oldest: str = ""
    """The observed behaviour of older releases."""

    lists_servers: bool = False
    """Whether `mcp list` in a folder names the servers that it uses there, but not in an untrusted folder."""

    @property
    def install(self) -> str:
        """The command that installs or updates it."""
        return f"npm install -g {self.package}@latest"


CLAUDE = ClientProgram(
    title="Claude Code",
    program="claude",
    package="@anthropic-ai/claude-code",
    log_in="claude auth login",
    trust="claude",
    oldest="2.1.88",
    why_oldest="an older version may not support background hooks, so postroom's hooks would block it",
    lists_servers=True,
)
CODEX = ClientProgram(
    title="Codex",
    program="codex",
    package="@openai/codex",
    log_in="codex login",
    trust="codex exec --skip-git-repo-check",
    oldest="0.129.0",
    why_oldest="an older version does not report whether it trusts postroom's hooks",
    lists_servers=True,
)
GEMINI = ClientProgram(
    title="Gemini CLI",
    program="gemini",
    package="@google/gemini-cli",
    log_in="gemini",
    trust="gemini --skip-trust",
    lists_servers=True,
)
OPENCODE = ClientProgram(
    title="opencode",
    program="opencode",
    package="opencode-ai",
    log_in="opencode auth login",
    trust="opencode",
)
COPILOT = ClientProgram(
    title="Copilot CLI",
    program="copilot",
    package="@github/copilot",
    log_in="copilot login",
    trust="copilot --trust-folder",
    lists_servers=True,
)
CLINE = ClientProgram(
    title="Cline",
    program="cline",
    package="cline",
    log_in="cline auth",
    trust="cline",
)
CLAUDE_ACP = ClientProgram(
    title="Claude Code over ACP",
    program="claude-agent-acp",
    package="@agentclientprotocol/claude-agent-acp",
    log_in="claude auth login",
    trust="claude",
)
CODEX_ACP = ClientProgram(
    title="Codex over ACP",
    program="codex-acp",
    package="@zed-industries/codex-acp",
    log_in="codex login",
    trust="codex",
)
