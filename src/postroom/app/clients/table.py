"""The table of clients: the paths of each client's files, and their expected content.

The file formats are those that the clients documented in autumn 2026. If a client changes its format, change
the format here and in the client's cases in `tests/clients/cases`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from postroom.app.clients.config_edits import ConfigEdit
from postroom.contracts import client_programs
from postroom.contracts.client_programs import NAME, ClientProgram
from postroom.contracts.clients import WAIT
from postroom.jsonc import JsonForm

Scope = Literal["user", "project"]
Way = Literal["stdio", "http"]
Tools = Literal["core", "full"]
"""The set of tools that a client offers to its model: `core` is for daily work, `full` is all tools."""
Extra = Literal["skill", "rules", "extension"]
"""The optional parts, which `setup` writes only if a person agrees. The rules are for AGENTS.md."""

ADDRESS: Final = "<the server's address>"
"""The placeholder for the address of the server in the table."""
TOKEN_NAME: Final = "POSTROOM_TOKEN"  # noqa: S105 - the name of a variable
PASSED_ON: Final = (
    "POSTROOM_AGENT",
    "POSTROOM_AGENT_TOKEN",
    "POSTROOM_CONFIG",
    "POSTROOM_DATA_DIR",
    "POSTROOM_MCP_PATH",
    "POSTROOM_TOKEN",
    "POSTROOM_URL",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)
"""The variables with which `postroom mcp` finds its server. Codex passes on only variables in its entry."""
WEEK: Final = 7 * 24 * 3_600
"""The number of seconds that the background command of an idle session waits for mail."""
INPUT: Final = "postroom-token"
MARKET: Final = "claude-marketplace"
"""The folder, in postroom's folder, from which Claude Code loads postroom's plugin."""
EDITS_AND_SHELL: Final = "Edit|Write|MultiEdit|NotebookEdit|Bash"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigPath:
    """The path of a client's file below a base folder."""

    base: Literal["home", "xdg", "settings", "project", "machine"] = "home"
    """The base folder: `machine` is postroom's folder, and `settings` is the system's folder for settings."""
    folder: str = ""
    names: tuple[str, ...]
    """The possible names of the file. The first name that exists is used, or else the first name."""
    variable: str = ""
    """The environment variable that names a folder to use in place of the base folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The client's hooks that call `postroom hook`."""

    user: ConfigPath
    project: ConfigPath
    events: tuple[str, ...]
    matchers: Mapping[str, str]
    timeout: Mapping[str, int]
    """The time limit for each event, in the names and units of the client."""
    typed: bool = True
    """Whether the file states the type of each command."""
    nested: bool = True
    """Whether each command is in a group with a matcher."""
    version: int | None = None
    """The version of the format, if the file states it."""
    asks_trust: bool = False
    """Whether the client runs only hooks that its user has trusted."""
    waiting: tuple[str, ...] = ()
    """The events after which a background command waits for mail, to start a turn when mail arrives."""
    ending: str = ""
    """A text that is added to each command.

    If a failing command would block the client, the text is `; exit 0`. So the client still works after
    postroom has been uninstalled.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFile:
    """A file of a client, or a block in a file, that belongs to postroom.

    `setup remove` restores a file that postroom has replaced.
    """

    user: ConfigPath | None
    project: ConfigPath | None = None
    """The path of the file in a project, or None if projects have no such file."""
    text: str
    is_hook: bool = False
    """Whether the file replaces hooks, so that it is written only if hooks are wanted."""
    extra: Extra | None = None
    """The optional part that the file is, or None if it is written without asking."""
    setting: ConfigEdit | None = None
    """The setting in the client's hooks file without which the client does not load this file."""
    is_block: bool = False
    """Whether the text is a block between two marker lines in a file that other programs also write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A program that can use postroom's tools, with the paths and contents of its configuration files."""

    name: str
    title: str
    user: ConfigPath
    project: ConfigPath | None = None
    path: tuple[str, ...] = ("mcpServers",)
    """The keys under which the servers are listed."""
    stdio: Mapping[str, object]
    http: Mapping[str, object] | None
    """The entry for HTTP, or None if the entry would have to contain a token."""
    granted: Mapping[str, object] = field(default_factory=dict)
    """The settings that allow postroom's tools without a question to the user.

    They are written only to files of a user. The file of a project also affects other people, who must allow
    the tools themselves.
    """
    why: str = "needs neither address nor token, and starts the server"
    """The reason, printed by `setup`, why the file gets the entry for standard input and output."""
    programs: tuple[str, ...] = ()
    """The names of the client's program. If one is on the PATH, the client counts as installed."""
    asks: ClientProgram | None = None
    """The program that answers questions about the client. `programs` contains this program."""
    folders: tuple[ConfigPath, ...] = ()
    """The folders of the client. If one of these folders exists, the client counts as installed."""
    newer_than: str = ""
    """The name of the client whose file this client reads too, with the servers under another `path`.

    This client counts as installed if the file has this `path`. A file with this `path` is never changed for
    the older client.
    """
    json_form: JsonForm = "lenient"
    """The extensions of JSON that the client's files may contain."""
    hooks: Hooks | None = None
    own_files: tuple[OwnFile, ...] = ()
    switched_on_in: ConfigPath | None = None
    """The file that enables postroom's plugin, or None if the client is not set up as a plugin."""

    def edits(self, way: Way, address: str, tools: Tools | None, scope: Scope = "user") -> list[ConfigEdit]:
        """Return the entries to write to the client's list of servers.

        The client must support HTTP if `way` is "http". If `tools` is None, the server chooses the tools.
        """
        form = self.stdio if way == "stdio" else self.http
        assert form is not None  # noqa: S101 - the caller looked
        entry = {**form, **(self.granted if scope == "user" else {})}
        for key, value in form.items():
            if value == ADDRESS:
                entry[key] = address if tools is None else f"{address}/{tools}"
            elif tools is not None and isinstance(value, list) and value[-1:] == ["mcp"]:
                entry[key] = [*value, "--tools", tools]
        wanted = [ConfigEdit(path=self.path, key=NAME, value=entry)]
        if way == "http" and asks_for_token(form):
            arguments = {
                "type": "promptString",
                "id": INPUT,
                "description": "The token of the postroom server",
                "password": True,
            }
            wanted.append(ConfigEdit(path=("inputs",), value=arguments, sign=INPUT))
        return wanted

    def switch_edits(self, folder: Path) -> list[ConfigEdit]:
        """Return the entries that add a plugin's folder to the client and enable the plugin."""
        source = {"source": {"source": "directory", "path": str(folder)}}
        return [
            ConfigEdit(path=("extraKnownMarketplaces",), key=NAME, value=source),
            ConfigEdit(path=("enabledPlugins",), key=f"{NAME}@{NAME}", value=True),
        ]

    def hook_edits(self) -> list[ConfigEdit]:
        """Return the entries to write to the hooks file; return no entries for a client without hooks."""
        if self.hooks is None:
            return []
        hooks, wanted = self.hooks, list[ConfigEdit]()
        if hooks.version is not None:
            wanted.append(
                ConfigEdit(path=(), key="version", value=hooks.version, only_new=True, goes_with=("hooks",))
            )
        for event in hooks.events:
            command = f"{NAME} hook {self.name} {event}"
            kind = {"type": "command"} if hooks.typed else {}
            called: dict[str, object] = {**kind, "command": f"{command}{hooks.ending}", **hooks.timeout}
            group: dict[str, object] = {"hooks": [called]} if hooks.nested else called
            if matcher := hooks.matchers.get(event):
                group = {"matcher": matcher, **group}
            wanted.append(ConfigEdit(path=("hooks", event), value=group, sign=command))
        for event in hooks.waiting:
            command = f"{NAME} hook {self.name} {WAIT} {event}"
            called = {
                "type": "command",
                "command": command,
                "async": True,
                "asyncRewake": True,
                "timeout": WEEK,
            }
            wanted.append(ConfigEdit(path=("hooks", event), value={"hooks": [called]}, sign=command))
        return wanted


def asks_for_token(entry: Mapping[str, object]) -> bool:
    """Return whether the client asks the person for the token of an entry for HTTP."""
    return INPUT in str(entry)


def _bearer(token: str) -> dict[str, object]:
    return {"Authorization": f"Bearer {token}"}


_COMMAND: Final[dict[str, object]] = {"command": NAME, "args": ["mcp"]}
_TYPED: Final[dict[str, object]] = {"type": "stdio", **_COMMAND}
_SHELL: Final = "${POSTROOM_TOKEN}"
_ENV: Final = "${env:POSTROOM_TOKEN}"
_OPENCODE: Final = "{env:POSTROOM_TOKEN}"
_OPENCODE_FILES: Final = ("opencode.json", "opencode.jsonc")
_OPENCODE_PLUGIN: Final = OwnFile(
    user=ConfigPath(base="xdg", folder="opencode/plugin", names=("postroom.js",)),
    project=ConfigPath(base="project", folder=".opencode/plugin", names=("postroom.js",)),
    text=Path(__file__).with_name("opencode_plugin.js").read_text(encoding="utf-8"),
    is_hook=True,
)
_CLINE_PLUGIN: Final = OwnFile(
    user=ConfigPath(folder=".cline", names=("plugins/postroom.js",), variable="CLINE_DIR"),
    text=Path(__file__).with_name("cline_plugin.js").read_text(encoding="utf-8"),
    is_hook=True,
)
_SKILL_FILE: Final = "postroom/SKILL.md"
_SKILL_TEXT: Final = Path(__file__).with_name("skill.md").read_text(encoding="utf-8")
_RULES_TEXT: Final = Path(__file__).with_name("rules.md").read_text(encoding="utf-8")
_COPILOT_EXTENSION: Final = OwnFile(
    user=ConfigPath(folder=".copilot", names=("extensions/postroom/extension.mjs",), variable="COPILOT_HOME"),
    text=Path(__file__).with_name("copilot_extension.mjs").read_text(encoding="utf-8"),
    extra="extension",
    setting=ConfigEdit(path=(), key="experimental", value=True, only_new=True),
)


def skill(user: ConfigPath, project: str = "") -> OwnFile:
    """Return the file with postroom's skill for a client.

    `project` is the folder for skills in a project, or "" if projects have no such folder.
    """
    in_project = ConfigPath(base="project", folder=project, names=(_SKILL_FILE,)) if project else None
    return OwnFile(user=user, project=in_project, text=_SKILL_TEXT, extra="skill")


def _rules(user: ConfigPath | None = None) -> OwnFile:
    in_project = ConfigPath(base="project", names=("AGENTS.md",))
    return OwnFile(user=user, project=in_project, text=_RULES_TEXT, extra="rules", is_block=True)


_LOCAL: Final[dict[str, object]] = {"type": "local", "command": [NAME, "mcp"]}
_REMOTE: Final[dict[str, object]] = {"type": "remote", "url": ADDRESS}

CLIENTS: Final = (
    Client(
        name="claude",
        title=client_programs.CLAUDE.title,
        user=ConfigPath(names=(".claude.json",), variable="CLAUDE_CONFIG_DIR"),
        project=ConfigPath(base="project", names=(".mcp.json",)),
        stdio={**_TYPED, **client_programs.CLAUDE_LOADED},
        http={"type": "http", "url": ADDRESS, "headers": _bearer(_SHELL), **client_programs.CLAUDE_LOADED},
        programs=(client_programs.CLAUDE.program,),
        asks=client_programs.CLAUDE,
        json_form="plain",
        folders=(ConfigPath(folder=".claude", names=("",), variable="CLAUDE_CONFIG_DIR"),),
        hooks=Hooks(
            user=ConfigPath(folder=".claude", names=("settings.json",), variable="CLAUDE_CONFIG_DIR"),
            project=ConfigPath(base="project", folder=".claude", names=("settings.json",)),
            events=(
                "SessionStart",
                "UserPromptSubmit",
                "PreToolUse",
                "PostToolUse",
                "Stop",
                "SessionEnd",
            ),
            matchers={"PreToolUse": EDITS_AND_SHELL},
            timeout={"timeout": 10},
            waiting=("SessionStart", "Stop"),
        ),
        own_files=(
            skill(
                ConfigPath(folder=".claude", names=(f"skills/{_SKILL_FILE}",), variable="CLAUDE_CONFIG_DIR"),
                ".claude/skills",
            ),
            _rules(),
        ),
    ),
    Client(
        name="codex",
        title=client_programs.CODEX.title,
        user=ConfigPath(folder=".codex", names=("config.toml",), variable="CODEX_HOME"),
        project=ConfigPath(base="project", folder=".codex", names=("config.toml",)),
        path=("mcp_servers",),
        stdio={**_COMMAND, "env_vars": list(PASSED_ON), **client_programs.CODEX_DIRECT},
        http={"url": ADDRESS, "bearer_token_env_var": TOKEN_NAME, **client_programs.CODEX_DIRECT},
        granted=client_programs.CODEX_GRANTED,
        programs=(client_programs.CODEX.program,),
        asks=client_programs.CODEX,
        folders=(ConfigPath(folder=".codex", names=("",), variable="CODEX_HOME"),),
        hooks=Hooks(
            asks_trust=True,
            user=ConfigPath(folder=".codex", names=("hooks.json",), variable="CODEX_HOME"),
            project=ConfigPath(base="project", folder=".codex", names=("hooks.json",)),
            events=("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"),
            matchers={},
            timeout={"timeout": 10},
        ),
        own_files=(
            skill(
                ConfigPath(folder=".codex", names=(f"skills/{_SKILL_FILE}",), variable="CODEX_HOME"),
                ".codex/skills",
            ),
            _rules(ConfigPath(folder=".codex", names=("AGENTS.md",), variable="CODEX_HOME")),
        ),
    ),
    Client(
        name="gemini",
        title=client_programs.GEMINI.title,
        user=ConfigPath(folder=".gemini", names=("settings.json",)),
        project=ConfigPath(base="project", folder=".gemini", names=("settings.json",)),
        stdio=_COMMAND,
        http={"httpUrl": ADDRESS, "headers": _bearer(_SHELL)},
        granted=client_programs.GEMINI_GRANTED,
        programs=(client_programs.GEMINI.program,),
        asks=client_programs.GEMINI,
        json_form="comments",
        folders=(ConfigPath(folder=".gemini", names=("settings.json",)),),
        hooks=Hooks(
            user=ConfigPath(folder=".gemini", names=("settings.json",)),
            project=ConfigPath(base="project", folder=".gemini", names=("settings.json",)),
            events=("SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd"),
            matchers={},
            timeout={"timeout": 10_000},
            ending="; exit 0",
        ),
        own_files=(skill(ConfigPath(folder=".gemini", names=(f"skills/{_SKILL_FILE}",)), ".gemini/skills"),),
    ),
    Client(
        name="antigravity",
        title="Antigravity",
        user=ConfigPath(folder=".gemini/config", names=("mcp_config.json",)),
        stdio=_COMMAND,
        http=None,
        why="the only way: its headers cannot contain a variable, so the file would contain the token",
        programs=("antigravity",),
        folders=(ConfigPath(folder=".gemini/config", names=("",)),),
    ),
    Client(
        name="cursor",
        title="Cursor",
        user=ConfigPath(folder=".cursor", names=("mcp.json",)),
        project=ConfigPath(base="project", folder=".cursor", names=("mcp.json",)),
        stdio=_COMMAND,
        http={"url": ADDRESS, "headers": _bearer(_ENV)},
        programs=("cursor", "cursor-agent"),
        folders=(ConfigPath(folder=".cursor", names=("",)),),
        hooks=Hooks(
            user=ConfigPath(folder=".cursor", names=("hooks.json",)),
            project=ConfigPath(base="project", folder=".cursor", names=("hooks.json",)),
            events=("sessionStart", "beforeSubmitPrompt", "preToolUse", "postToolUse", "stop"),
            matchers={},
            timeout={},
            typed=False,
            nested=False,
            version=1,
        ),
    ),
    Client(
        name="windsurf",
        title="Windsurf",
        user=ConfigPath(folder=".codeium/windsurf", names=("mcp_config.json",)),
        stdio=_COMMAND,
        http={"serverUrl": ADDRESS, "headers": _bearer(_ENV)},
        programs=("windsurf",),
        folders=(ConfigPath(folder=".codeium/windsurf", names=("",)),),
    ),
    Client(
        name="vscode",
        title="VS Code",
        user=ConfigPath(base="settings", folder="Code/User", names=("mcp.json",)),
        project=ConfigPath(base="project", folder=".vscode", names=("mcp.json",)),
        path=("servers",),
        stdio=_TYPED,
        http={"type": "http", "url": ADDRESS, "headers": _bearer(f"${{input:{INPUT}}}")},
        programs=("code",),
        folders=(ConfigPath(base="settings", folder="Code/User", names=("",)),),
    ),
    Client(
        name="copilot",
        title=client_programs.COPILOT.title,
        user=ConfigPath(folder=".copilot", names=("mcp-config.json",), variable="COPILOT_HOME"),
        project=ConfigPath(base="project", folder=".github", names=("mcp.json",)),
        stdio={"type": "local", **_COMMAND, "tools": ["*"]},
        http={"type": "http", "url": ADDRESS, "headers": _bearer(_SHELL), "tools": ["*"]},
        programs=(client_programs.COPILOT.program,),
        asks=client_programs.COPILOT,
        folders=(ConfigPath(folder=".copilot", names=("",), variable="COPILOT_HOME"),),
        hooks=Hooks(
            user=ConfigPath(folder=".copilot", names=("settings.json",), variable="COPILOT_HOME"),
            project=ConfigPath(base="project", folder=".github/copilot", names=("settings.json",)),
            events=(
                "sessionStart",
                "userPromptSubmitted",
                "preToolUse",
                "postToolUse",
                "agentStop",
                "sessionEnd",
            ),
            matchers={},
            timeout={"timeoutSec": 10},
            ending="; exit 0",
            nested=False,
        ),
        own_files=(
            skill(
                ConfigPath(folder=".copilot", names=(f"skills/{_SKILL_FILE}",), variable="COPILOT_HOME"),
                ".github/skills",
            ),
            _rules(),
            _COPILOT_EXTENSION,
        ),
    ),
    Client(
        name="opencode",
        title="opencode 1",
        user=ConfigPath(base="xdg", folder="opencode", names=_OPENCODE_FILES),
        project=ConfigPath(base="project", names=_OPENCODE_FILES),
        path=("mcp",),
        stdio={**_LOCAL, "enabled": True},
        http={**_REMOTE, "enabled": True, "headers": _bearer(_OPENCODE)},
        programs=(client_programs.OPENCODE.program,),
        asks=client_programs.OPENCODE,
        folders=(ConfigPath(base="xdg", folder="opencode", names=("",)),),
        own_files=(
            _OPENCODE_PLUGIN,
            skill(ConfigPath(base="xdg", folder="opencode/skills", names=(_SKILL_FILE,)), ".opencode/skills"),
            _rules(ConfigPath(base="xdg", folder="opencode", names=("AGENTS.md",))),
        ),
    ),
    Client(
        name="opencode2",
        title="opencode 2",
        user=ConfigPath(base="xdg", folder="opencode", names=_OPENCODE_FILES),
        project=ConfigPath(base="project", names=_OPENCODE_FILES),
        path=("mcp", "servers"),
        stdio=_LOCAL,
        http={**_REMOTE, "oauth": False, "headers": _bearer(_OPENCODE)},
        newer_than="opencode",
    ),
    Client(
        name="cline",
        title=client_programs.CLINE.title,
        user=ConfigPath(
            folder=".cline/data", names=("settings/cline_mcp_settings.json",), variable="CLINE_DATA_DIR"
        ),
        stdio=_COMMAND,
        http=None,
        why="the only way: its headers cannot contain a variable, so the file would contain the token",
        programs=(client_programs.CLINE.program,),
        asks=client_programs.CLINE,
        folders=(ConfigPath(folder=".cline", names=("",)),),
        own_files=(_CLINE_PLUGIN,),
    ),
    Client(
        name="omp",
        title="Oh My Pi",
        user=ConfigPath(folder=".omp/agent", names=("mcp.json",), variable="PI_CODING_AGENT_DIR"),
        project=ConfigPath(base="project", folder=".omp", names=("mcp.json",)),
        stdio=_TYPED,
        http={"type": "http", "url": ADDRESS, "headers": _bearer(_SHELL)},
        programs=("omp",),
        folders=(ConfigPath(folder=".omp", names=("",)),),
    ),
    Client(
        name="claude-desktop",
        title="Claude Desktop",
        user=ConfigPath(base="settings", folder="Claude", names=("claude_desktop_config.json",)),
        stdio=_COMMAND,
        http=None,
        why="the only way: its file supports commands only",
        folders=(ConfigPath(base="settings", folder="Claude", names=("",)),),
    ),
)
