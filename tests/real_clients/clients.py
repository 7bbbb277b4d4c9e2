"""How each real client is run without a person, an account or the network."""

import re
from collections.abc import Sequence
from typing import ClassVar, Protocol

from real_clients.home import Done, Home

KEY = "sk-dummy-for-loopback"


class Client(Protocol):
    """One client in one home. `name` is ours for it, `package` npm's."""

    name: ClassVar[str]
    package: ClassVar[str]
    pass_env: ClassVar[tuple[str, ...]]
    """What a runner must pass on so that the program finds the scripted model."""

    def prepare(self, home: Home) -> None:
        """Write what points the client at the model, and add to the home's environment."""
        ...

    def talk(self, prompt: str, *flags: str, session: str = "") -> Sequence[str]:
        """Return the command of one turn without a person; flags are those of this turn alone."""
        ...

    def servers(self) -> Sequence[str]:
        """Return the command by which the client tells its MCP servers."""
        ...

    def accepts(self, told: str) -> bool:
        """Whether what that command printed says that the client uses our server."""
        ...

    def answer(self, done: Done) -> str:
        """Return the final answer in what a turn printed."""
        ...

    def session(self, done: Done) -> str:
        """Return the session's id in what a turn printed."""
        ...


class Claude:
    """Claude Code."""

    name = "claude"
    package = "@anthropic-ai/claude-code"
    pass_env = (
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_BASE_URL",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        "DISABLE_AUTOUPDATER",
    )

    def prepare(self, home: Home) -> None:
        home.environment |= {
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": home.model.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def talk(self, prompt: str, *flags: str, session: str = "") -> Sequence[str]:
        resumed = ("--resume", session) if session else ()
        stream = ("--output-format", "stream-json", "--verbose")
        return ("claude", "-p", *stream, *resumed, *flags, "--", prompt)

    def servers(self) -> Sequence[str]:
        return ("claude", "mcp", "list")

    def accepts(self, told: str) -> bool:
        return re.search(r"postroom: postroom mcp .*✔ Connected", told) is not None

    def answer(self, done: Done) -> str:
        return next(str(line.get("result")) for line in done.lines() if line["type"] == "result")

    def session(self, done: Done) -> str:
        return next(str(line["session_id"]) for line in done.lines() if "session_id" in line)


class Codex:
    """Codex."""

    name = "codex"
    package = "@openai/codex"
    pass_env = ("SCRIPTED_KEY",)

    def prepare(self, home: Home) -> None:
        home.environment["SCRIPTED_KEY"] = KEY
        home.write(
            ".codex/config.toml",
            'model = "gpt-5.1-codex"\n'
            'model_provider = "scripted"\n'
            "check_for_update_on_startup = false\n\n"
            "[analytics]\nenabled = false\n\n"
            "[model_providers.scripted]\n"
            'name = "scripted"\n'
            f'base_url = "{home.model.url}/v1"\n'
            'env_key = "SCRIPTED_KEY"\n'
            'wire_api = "responses"\n',
        )

    def talk(self, prompt: str, *flags: str, session: str = "") -> Sequence[str]:
        resumed = ("resume", session) if session else ()
        return ("codex", "exec", "--json", *flags, *resumed, "--", prompt)

    def servers(self) -> Sequence[str]:
        return ("codex", "mcp", "list")

    def accepts(self, told: str) -> bool:
        return re.search(r"^postroom +postroom +mcp .* enabled ", told, re.MULTILINE) is not None

    def answer(self, done: Done) -> str:
        said = [line["item"] for line in done.lines() if line["type"] == "item.completed"]
        return next(str(item["text"]) for item in reversed(said) if item["type"] == "agent_message")

    def session(self, done: Done) -> str:
        return next(str(line["thread_id"]) for line in done.lines() if line["type"] == "thread.started")


CLIENTS: dict[str, Client] = {one.name: one for one in (Claude(), Codex())}
