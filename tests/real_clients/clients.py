"""How each real client is run without a person, an account or the network."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from real_clients.asked import CallTool
from real_clients.home import Done, Home

KEY = "sk-dummy-for-loopback"


class Client(Protocol):
    """One client in one home. `name` is postroom's name for it, `package` npm's."""

    name: ClassVar[str]
    package: ClassVar[str]
    pass_env: ClassVar[tuple[str, ...]]
    """The variables that a runner must pass on so that the program finds the scripted model."""
    setup: ClassVar[str]
    """Its name for `postroom setup`."""
    waking: ClassVar[tuple[str, ...]]
    """The flags of `postroom setup` with which an idle session begins a turn for mail."""
    runner: ClassVar[tuple[str, ...]]
    """The flags of `agents set-runner` for it; empty if there is no recipe."""
    files: ClassVar[tuple[str, ...]]
    """The files in the home folder from which the client reads its settings."""
    allowing: ClassVar[tuple[str, ...]]
    """Flags with which one turn without a person may call postroom's tools and edit files."""
    trusting: ClassVar[tuple[str, ...]]
    """Flags with which one turn runs postroom's hooks, if a person trusts them by hand."""
    resuming: ClassVar[tuple[str, ...]]
    """The words before a session's id with which a person resumes it, if a turn without a person cannot."""
    drawn: ClassVar[str]
    """The text that it draws at a terminal when it accepts input; empty if it reads earlier input."""

    def prepare(self, home: Home) -> None:
        """Write what points the client at the model, and add to the home's environment."""
        ...

    def talk(self, prompt: str, *flags: str, session: str = "") -> Sequence[str]:
        """Return the command of one turn without a person; flags are those of this turn alone."""
        ...

    def edit(self, path: Path, text: str) -> CallTool:
        """Return the call with which the client's own tool writes a new file."""
        ...

    def person(self, home: Home) -> Sequence[str]:
        """Write what lets a session at a terminal ask nothing at its start, and return its command."""
        ...

    def rewriting(self, home: Home) -> Sequence[str]:
        """Return a command by which the client rewrites its settings, with one addition."""
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

    def session(self, done: Done, home: Home) -> str:
        """Return the id of the session that a turn printed, or left in the home."""
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
        "ENABLE_TOOL_SEARCH",
    )

    setup = "claude"
    waking = ()
    runner = ("--recipe", "claude")
    files = (".claude/settings.json",)
    allowing = ("--allowedTools", "mcp__plugin_postroom_postroom", "--permission-mode", "acceptEdits")
    trusting = ()
    resuming = ()
    drawn = ""

    def prepare(self, home: Home) -> None:
        home.environment |= {
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": home.model.url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "ENABLE_TOOL_SEARCH": "true",  # its default with the vendor's address; ours would switch it off
        }

    def talk(self, prompt: str, *flags: str, session: str = "") -> Sequence[str]:
        resumed = ("--resume", session) if session else ()
        stream = ("--output-format", "stream-json", "--verbose")
        return ("claude", "-p", *stream, *resumed, *flags, "--", prompt)

    def edit(self, path: Path, text: str) -> CallTool:
        return CallTool("Write", {"file_path": str(path), "content": text})

    def person(self, home: Home) -> Sequence[str]:
        project = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
        told = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
            "projects": {str(home.project): project},
        }
        home.write(".claude.json", json.dumps(told))
        return ("claude",)

    def rewriting(self, home: Home) -> Sequence[str]:
        plugin = {"name": "other", "description": "Another.", "version": "1.0.0"}
        home.write("other/plugin/.claude-plugin/plugin.json", json.dumps(plugin))
        listed = {"name": "other", "source": "./plugin", "description": "Another."}
        market = {"name": "others", "owner": {"name": "Somebody"}, "plugins": [listed]}
        home.write("other/.claude-plugin/marketplace.json", json.dumps(market))
        home.must("claude", "plugin", "marketplace", "add", str(home.path / "other"))
        return ("claude", "plugin", "install", "other@others")

    def servers(self) -> Sequence[str]:
        return ("claude", "mcp", "list")

    def accepts(self, told: str) -> bool:
        return re.search(r"postroom: postroom mcp .*✔ Connected", told) is not None

    def answer(self, done: Done) -> str:
        return next(str(line.get("result")) for line in done.lines() if line["type"] == "result")

    def session(self, done: Done, _home: Home) -> str:
        return next(str(line["session_id"]) for line in done.lines() if "session_id" in line)


class Codex:
    """Codex."""

    name = "codex"
    package = "@openai/codex"
    pass_env = ("SCRIPTED_KEY",)

    setup = "codex"
    waking = ()
    runner = ("--recipe", "codex")
    files = (".codex/config.toml", ".codex/hooks.json")
    allowing = (
        "-c",
        'mcp_servers.postroom.default_tools_approval_mode="approve"',
        "--sandbox",
        "workspace-write",
    )
    trusting = ("--dangerously-bypass-hook-trust",)
    resuming = ()
    drawn = "Ask Codex to do anything"

    def prepare(self, home: Home) -> None:
        home.environment["SCRIPTED_KEY"] = KEY
        home.write(
            ".codex/config.toml",
            'model = "gpt-5.5"\n'
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

    def edit(self, path: Path, text: str) -> CallTool:
        return CallTool("apply_patch", {"input": _patch(path, text)})

    def person(self, home: Home) -> Sequence[str]:
        home.environment["TERM"] = "xterm-256color"  # it asks before it starts in a plain one
        settings = (home.path / ".codex" / "config.toml").read_text(encoding="utf-8")
        settings = settings.replace("gpt-5.5", "gpt-6-sol")  # an older one is asked about at a terminal
        trusted = f'\n[projects."{home.project}"]\ntrust_level = "trusted"\n'
        home.write(".codex/config.toml", settings + trusted)
        return ("codex", *self.trusting)

    def rewriting(self, _home: Home) -> Sequence[str]:
        return ("codex", "mcp", "add", "other", "--", "true")

    def servers(self) -> Sequence[str]:
        return ("codex", "mcp", "list")

    def accepts(self, told: str) -> bool:
        return re.search(r"^postroom +postroom +mcp .* enabled ", told, re.MULTILINE) is not None

    def answer(self, done: Done) -> str:
        said = [line["item"] for line in done.lines() if line["type"] == "item.completed"]
        return next(str(item["text"]) for item in reversed(said) if item["type"] == "agent_message")

    def session(self, done: Done, _home: Home) -> str:
        return next(str(line["thread_id"]) for line in done.lines() if line["type"] == "thread.started")


class Gemini:
    """Gemini CLI."""

    name = "gemini"
    package = "@google/gemini-cli"
    pass_env = ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL")

    setup = "gemini"
    waking = ()
    runner = ("--recipe", "gemini")
    files = (".gemini/settings.json",)
    allowing = ("--approval-mode", "yolo")
    trusting = ()
    resuming = ()
    drawn = ""

    def prepare(self, home: Home) -> None:
        home.environment |= {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": home.model.url}
        # Its person has said yes to "Do you trust this folder?".
        home.write(".gemini/trustedFolders.json", json.dumps({str(home.project): "TRUST_FOLDER"}))
        settings = {
            "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
            "model": {"name": "gemini-2.5-pro"},
            "privacy": {"usageStatisticsEnabled": False},
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "telemetry": {"enabled": False},
        }
        home.write(".gemini/settings.json", json.dumps(settings, indent=2) + "\n")

    def talk(self, prompt: str, *flags: str, session: str = "") -> Sequence[str]:
        resumed = ("--resume", session) if session else ()
        return ("gemini", "--output-format", "json", *resumed, *flags, "--prompt", prompt)

    def edit(self, path: Path, text: str) -> CallTool:
        return CallTool("write_file", {"file_path": str(path), "content": text})

    def person(self, _home: Home) -> Sequence[str]:
        return ("gemini",)

    def rewriting(self, _home: Home) -> Sequence[str]:
        return ("gemini", "mcp", "add", "--scope", "user", "other", "true")

    def servers(self) -> Sequence[str]:
        return ("gemini", "mcp", "list")

    def accepts(self, told: str) -> bool:
        return re.search(r"postroom: postroom mcp .*\(stdio\) - Connected", told) is not None

    def answer(self, done: Done) -> str:
        return str(json.loads(done.out)["response"])

    def session(self, done: Done, _home: Home) -> str:
        return str(json.loads(done.out)["session_id"])


class Opencode:
    """opencode."""

    name = "opencode"
    package = "opencode-ai"
    pass_env = (
        "OPENCODE_DISABLE_AUTOUPDATE",
        "OPENCODE_DISABLE_MODELS_FETCH",
        "npm_config_fetch_retries",
        "npm_config_registry",
    )

    setup = "opencode"
    waking = ()
    runner = ("--recipe", "opencode")
    files = (".config/opencode/opencode.json",)
    allowing = ()
    trusting = ()
    resuming = ()
    drawn = "Ask anything"

    def prepare(self, home: Home) -> None:
        home.environment |= {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            # It fetches its plugin library before it loads a plugin, and tries for minutes.
            "npm_config_fetch_retries": "0",
            "npm_config_registry": "http://127.0.0.1:9",
        }
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Scripted",
            "options": {"baseURL": f"{home.model.url}/v1", "apiKey": KEY},
            "models": {"scripted": {"name": "Scripted", "tool_call": True}},
        }
        settings = {
            "$schema": "https://opencode.ai/config.json",
            "model": "scripted/scripted",
            "provider": {"scripted": provider},
            "share": "disabled",
        }
        home.write(".config/opencode/opencode.json", json.dumps(settings, indent=2) + "\n")

    def talk(self, prompt: str, *flags: str, session: str = "") -> Sequence[str]:
        resumed = ("--session", session) if session else ()
        return ("opencode", "run", "--format", "json", *resumed, *flags, "--", prompt)

    def edit(self, path: Path, text: str) -> CallTool:
        return CallTool("write", {"filePath": str(path), "content": text})

    def person(self, _home: Home) -> Sequence[str]:
        return ("opencode",)

    def rewriting(self, _home: Home) -> Sequence[str]:
        return ("opencode", "mcp", "add", "other", "--", "true")

    def servers(self) -> Sequence[str]:
        return ("opencode", "mcp", "list")

    def accepts(self, told: str) -> bool:
        return re.search(r"✓ +postroom\b.*\bconnected", re.sub(r"\x1b\[\d*m", "", told)) is not None

    def answer(self, done: Done) -> str:
        return "\n".join(line["part"]["text"] for line in done.lines() if line["type"] == "text")

    def session(self, done: Done, _home: Home) -> str:
        return next(str(line["sessionID"]) for line in done.lines())


class Copilot:
    """Copilot CLI."""

    name = "copilot"
    package = "@github/copilot"
    pass_env = (
        "COPILOT_AUTO_UPDATE",
        "COPILOT_MODEL",
        "COPILOT_OFFLINE",
        "COPILOT_PROVIDER_API_KEY",
        "COPILOT_PROVIDER_BASE_URL",
    )

    setup = "copilot"
    waking = ("--extension",)
    runner = ("--recipe", "copilot")
    files = (".copilot/mcp-config.json", ".copilot/settings.json")
    allowing = ("--allow-all-tools",)
    trusting = ("--trust-folder",)
    resuming = ()
    drawn = ""

    def prepare(self, home: Home) -> None:
        home.environment |= {
            "COPILOT_AUTO_UPDATE": "false",
            "COPILOT_MODEL": "gpt-5.1",
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_API_KEY": KEY,
            "COPILOT_PROVIDER_BASE_URL": f"{home.model.url}/v1",
        }

    def talk(self, prompt: str, *flags: str, session: str = "") -> Sequence[str]:
        resumed = (f"--resume={session}",) if session else ()
        return ("copilot", "--output-format", "json", *resumed, *flags, "-p", prompt)

    def edit(self, path: Path, text: str) -> CallTool:
        return CallTool("create", {"path": str(path), "file_text": text})

    def person(self, home: Home) -> Sequence[str]:
        # Its person has said yes to "Do you trust the files in this folder?", for good.
        home.write(".copilot/config.json", json.dumps({"trustedFolders": [str(home.project)]}))
        return ("copilot",)

    def rewriting(self, _home: Home) -> Sequence[str]:
        return ("copilot", "mcp", "add", "other", "--", "true")

    def servers(self) -> Sequence[str]:
        return ("copilot", "mcp", "list")

    def accepts(self, told: str) -> bool:
        return re.search(r"^ *postroom \(local\)", told, re.MULTILINE) is not None

    def answer(self, done: Done) -> str:
        said = [line["data"]["content"] for line in done.lines() if line["type"] == "assistant.message"]
        return str(said[-1])

    def session(self, done: Done, _home: Home) -> str:
        return next(str(line["sessionId"]) for line in done.lines() if line["type"] == "result")


class Cline:
    """Cline on the command line."""

    name = "cline"
    package = "cline"
    pass_env = ("CLINE_PLUGIN_IMPORT_TIMEOUT_MS", "CLINE_TELEMETRY_DISABLED")

    setup = "cline"
    waking = ()
    runner = ("--recipe", "cline")
    files = (".cline/data/settings/cline_mcp_settings.json",)
    allowing = ()
    trusting = ()
    resuming = ("cline", "--id")
    drawn = ""

    def prepare(self, home: Home) -> None:
        home.environment["CLINE_TELEMETRY_DISABLED"] = "1"
        # It drops plugins that it has not imported within 4 s, which a busy machine may need.
        home.environment["CLINE_PLUGIN_IMPORT_TIMEOUT_MS"] = "60000"
        name = "openai-compatible"
        settings = {"provider": name, "apiKey": KEY, "model": "gpt-5.1", "baseUrl": f"{home.model.url}/v1"}
        provider = {"settings": settings, "updatedAt": "2026-11-23T00:00:00.000Z", "tokenSource": "manual"}
        # What `cline auth` writes, which takes it ten seconds.
        told = {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: provider}}
        home.write(".cline/data/settings/providers.json", json.dumps(told))

    def talk(self, prompt: str, *flags: str, session: str = "") -> Sequence[str]:
        resumed = ("--id", session) if session else ()
        return ("cline", "--json", *resumed, *flags, prompt)

    def edit(self, path: Path, text: str) -> CallTool:
        return CallTool("apply_patch", {"input": _patch(path, text)})

    def person(self, home: Home) -> Sequence[str]:
        home.environment["TERM"] = "xterm-256color"
        return ("cline",)

    def rewriting(self, _home: Home) -> Sequence[str]:
        return ("cline", "mcp", "add", "--yes", "other", "--", "true")

    def servers(self) -> Sequence[str]:
        return ("cline", "config", "mcp")

    def accepts(self, told: str) -> bool:
        return re.search(r"^ *postroom \[stdio\]", told, re.MULTILINE) is not None

    def answer(self, done: Done) -> str:
        return next(str(line["text"]) for line in done.lines() if line["type"] == "run_result")

    def session(self, _done: Done, home: Home) -> str:
        [newest] = json.loads(home.must("cline", "history", "--json", "--limit", "1").out)
        return str(newest["sessionId"])


def _patch(path: Path, text: str) -> str:
    rows = "".join(f"+{row}\n" for row in text.splitlines())
    return f"*** Begin Patch\n*** Add File: {path}\n{rows}*** End Patch\n"


class ClaudeAcp(Claude):
    """Claude Code over the Agent Client Protocol."""

    name = "claude over ACP"
    package = "@agentclientprotocol/claude-agent-acp"
    runner = ("--kind", "acp", "--recipe", "claude")


class CodexAcp(Codex):
    """Codex over the Agent Client Protocol."""

    name = "codex over ACP"
    package = "@zed-industries/codex-acp"
    runner = ("--kind", "acp", "--recipe", "codex")


class GeminiAcp(Gemini):
    """Gemini CLI that speaks the Agent Client Protocol itself."""

    name = "gemini over ACP"
    runner = ("--kind", "acp", "--recipe", "gemini")


class OpencodeAcp(Opencode):
    """opencode that speaks the Agent Client Protocol itself."""

    name = "opencode over ACP"
    runner = ("--kind", "acp", "--recipe", "opencode")


_PROGRAMS: tuple[Client, ...] = (Claude(), Codex(), Gemini(), Opencode(), Copilot(), Cline())
_ACP: tuple[Client, ...] = (ClaudeAcp(), CodexAcp(), GeminiAcp(), OpencodeAcp())
PROGRAMS: dict[str, Client] = {one.name: one for one in _PROGRAMS}
"""Those in which a person works too."""
CLIENTS: dict[str, Client] = {**PROGRAMS, **{one.name: one for one in _ACP}}
