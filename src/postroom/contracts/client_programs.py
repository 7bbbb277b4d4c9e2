"""The client programs that postroom sets up, asks or runs.

Their names and the commands that help with them.
"""

from dataclasses import dataclass


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
