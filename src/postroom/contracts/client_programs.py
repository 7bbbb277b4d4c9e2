"""The names, commands and settings of client programs, which both setup and runs use.

The module imports nothing from postroom, because commands must start quickly. Facts that only runs need are
in `postroom.executors.clients`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

NAME: Final = "postroom"
"""The name of postroom's MCP server in every client, and of postroom's command."""
COMMANDS: Final = "postroom-cli"
"""The `User-Agent` of requests from postroom's own commands."""
CLAUDE_LOADED: Final[Mapping[str, object]] = {"alwaysLoad": True}
"""The setting with which Claude Code shows the tools of an MCP server without a tool search."""
CODEX_DIRECT: Final[Mapping[str, object]] = {"omit_tools_from": ["deferred"]}
"""The setting with which Codex shows the tools of an MCP server without a tool search.

Older releases of Codex ignore the setting.
"""
CODEX_GRANTED: Final[Mapping[str, object]] = {"default_tools_approval_mode": "approve"}
"""The setting that lets Codex call a server's tools without asking the user."""
GEMINI_GRANTED: Final[Mapping[str, object]] = {"trust": True}
"""The setting that lets Gemini CLI call a server's tools without asking the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProgram:
    """A client program that agents use, with the texts that explain its setup."""

    title: str
    program: str
    package: str
    log_in: str
    trust: str
    oldest: str = ""
    """The first release of the client that supports the hooks that setup needs.

    The field is empty if all tested releases support the hooks.
    """
    why_oldest: str = ""
    """The observed behaviour of older releases."""

    lists_servers: bool = False
    """Whether `mcp list` in a trusted folder lists the servers that are used there."""

    @property
    def install(self) -> str:
        """The command that installs or updates the client program."""
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
