"""Settings: one frozen object, which is read from defaults, a TOML file, the environment and flags.

Each of these sources overrides those before it. In the environment, `POSTROOM_*` takes precedence over the
older names without a prefix. The origin of each value is recorded. The reader never guesses. An unknown name,
a value out of range or a duration without a unit raises a `ConfigError`, so that the server does not start.
The error names the setting, the value, its source and the remedy.
"""

import difflib
import ipaddress
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, field, inspect

from postroom.app import places
from postroom.app.tokens import redact, shown
from postroom.contracts.addresses import refuse_malformed_address, shown_address
from postroom.contracts.clock import MAX_DURATION, duration_of, duration_text
from postroom.contracts.errors import ConfigError
from postroom.contracts.push import is_push_service
from postroom.contracts.records import Record
from postroom.contracts.runners import is_place
from postroom.toml_files import TableName, extra_of, fields_of, place_of, read_toml, unreadable, words

_MIB: Final = 1024 * 1024
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62})?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62})?)*")
_MCP_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_TAKEN_PATH: Final = re.compile(
    r"/(\.well-known|admin|attachments|authorize|callbacks|health|healthz|hooks|log(in|out)|metrics|oauth|p|previews|readyz|register"
    r"|static|token|v1|watch)(/.*)?"
)
"""Matches the paths that pages and other routes use already."""
_WHOLE: Final = re.compile(r"([+-]?[0-9]+(?:_[0-9]+)*)(?:\.0*)?")
_MAX_DIGITS: Final = 100
_SWITCHES: Final = dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True) | dict.fromkeys(
    ("0", "false", "f", "no", "n", "off"), False
)


def _zero_or(least: timedelta, most: timedelta, write: str) -> Callable[[object], timedelta]:
    def read(value: object) -> timedelta:
        if value in (0, "0") and not isinstance(value, bool):
            return timedelta(0)
        duration = duration_of(value)
        if not least <= duration <= most:
            raise ValueError(write)
        return duration

    return read


_interval: Final = _zero_or(
    timedelta(minutes=1), MAX_DURATION, "write 0 for 'never', or a duration from 1m to 36500d"
)
_delay: Final = _zero_or(timedelta(0), timedelta(minutes=10), "write 0, or a duration up to 10m")


def _count(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a number")  # noqa: TRY004 - told like the other faults
    if isinstance(value, str) and (match := _WHOLE.fullmatch(value.strip())) and len(value) < _MAX_DIGITS:
        return int(match[1])
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _switch(value: object) -> object:
    return _SWITCHES.get(str(value).strip().lower(), value)


def _names(value: object) -> list[Any]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return list(value) if isinstance(value, list | tuple) else [value]


def _labels(value: object) -> tuple[str, ...]:
    names = tuple(_names(value))
    if not all(isinstance(place, str) and is_place(place) for place in names):
        raise ValueError("write labels of letters, digits and . _ -, separated by commas, such as gpu,mill")
    return names


def _host(value: object) -> str:
    text = value.strip().strip("[]") if isinstance(value, str) else ""
    if _is_address(text):
        return ipaddress.ip_address(text).compressed
    if _HOST_NAME.fullmatch(text):
        return text.lower()
    raise ValueError("write a host name or an IP address, without scheme, port or wildcard")


def _push_services(value: object) -> tuple[str, ...]:
    services = tuple(_names(value))
    if not all(isinstance(service, str) and is_push_service(service) for service in services):
        raise ValueError("write hosts such as push.example.org or *.example.org, or http://127.0.0.1:9000")
    return services


def _mcp_path(value: object) -> object:
    text = str(value).rstrip("/")
    if not _MCP_PATH.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise ValueError("write a path such as /mcp: it begins with a slash and is not the root")
    if _TAKEN_PATH.fullmatch(text):
        raise ValueError("the server uses this path itself; write a path such as /mcp")
    return text


def _endpoint(value: object) -> object:
    text = value if isinstance(value, str) else ""
    try:
        address = urlsplit(text)
        is_address = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        is_address = False
    if not is_address or "@" in address.netloc or address.query or address.fragment or not text.isprintable():
        raise ValueError(
            "write http://host:port or https://host:port, optionally with a path, but without a password"
        )
    return text


def _database_url(value: object) -> object:
    if value and isinstance(value, str):
        refuse_malformed_address(value)
    return value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _read_by(read: Callable[[object], object]) -> Meta:
    return Meta(extra={"read": read})


def _about(description: str, *, least: int | None = None, most: int | None = None) -> Meta:
    return Meta(description=description, ge=least, le=most)


def _text(pattern: str, write: str) -> Meta:
    return Meta(pattern=rf"^{pattern}\Z", extra={"write": write})


Count = Annotated[int, _read_by(_count)]
Switch = Annotated[bool, _read_by(_switch)]
Interval = Annotated[timedelta, _read_by(_interval)]
Duration = Annotated[timedelta, _read_by(duration_of)]


PUSH_SERVICES: Final = (
    "fcm.googleapis.com",
    "updates.push.services.mozilla.com",
    "web.push.apple.com",
    "*.notify.windows.com",
)
"""The push services of Chromium browsers, Firefox, Safari and Edge."""
IN_DATA_DIR: Final = {"database": "postroom.db", "storage_root": "archive", "gateway_file": "gateway.toml"}
"""The paths that are in the data folder by default."""


class Settings(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a server.

    Call `load_settings` to read the settings from the environment and the configuration file.
    """

    data_dir: Annotated[
        Path,
        _about(
            "Folder for the server's data, the server's token and the file that "
            "tells clients the server's address."
        ),
    ] = field(default_factory=lambda: places.data_dir(places.environment()))
    database: Annotated[Path, _about("The SQLite file. Default: postroom.db in data_dir.")] = Path()
    database_url: Annotated[
        str,
        _read_by(_database_url),
        _about(
            "A PostgreSQL database instead of the file: postgresql://user:password@host:port/name; "
            "through a Unix socket postgresql:///name?host=/var/run/postgresql. Requires "
            "the extra `postgres`."
        ),
    ] = ""
    database_direct_url: Annotated[
        str,
        _read_by(_database_url),
        _about(
            "Direct address of the database, if database_url points to a pooler that may use another "
            "session for each transaction, such as PgBouncer with pool_mode=transaction."
        ),
    ] = ""
    database_schema: Annotated[
        str,
        _text("[a-z_][a-z0-9_]{0,62}", "1 to 63 lower-case letters, digits and _, without a digit first"),
        _about("Name of the PostgreSQL schema, shared by all servers of one installation."),
    ] = "postroom"
    labels: Annotated[
        tuple[str, ...],
        _read_by(_labels),
        _about(
            "Labels of this server, which runners can name in runs_on. The server's host name is always "
            "one of its labels. Use labels when several servers share one PostgreSQL database."
        ),
    ] = ()
    storage_root: Annotated[
        Path,
        _about(
            "Folder of the Git archive, with one repository for each project. Default: archive in data_dir."
        ),
    ] = Path()
    gateway_file: Annotated[
        Path, _about("The configuration file of the chats. Default: gateway.toml in data_dir.")
    ] = Path()
    host: Annotated[str, _read_by(_host), _about("Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        Count, _about("Port to listen on. With 0 the system chooses a port.", least=0, most=65535)
    ] = 8765
    stop_delay: Annotated[
        timedelta,
        _read_by(_delay),
        _about(
            "How long a server that is stopping continues to serve while `/readyz` answers 503, so that a "
            "load balancer stops sending calls to it."
        ),
    ] = timedelta(0)
    mcp_path: Annotated[str, _read_by(_mcp_path), _about("Path of the MCP endpoint.")] = "/mcp"
    profile: Annotated[Literal["full", "core"], _about("The tools that the URL at `mcp_path` lists.")] = (
        "full"
    )
    identity: Annotated[
        Literal["asserted", "verified"],
        _about(
            "Whether agents identify themselves by name (asserted) or by token (verified). A server that "
            "listens beyond loopback always requires tokens."
        ),
    ] = "asserted"
    allowed_hosts: Annotated[
        tuple[str, ...],
        _read_by(lambda value: tuple(map(_host, _names(value)))),
        _about(
            "Additional host names to accept in the headers Host and Origin. Loopback and the address "
            "to listen on are always accepted."
        ),
    ] = ()
    owner: Annotated[
        str,
        _text(r"\S(.{0,254}\S)?", "1 to 256 characters in one line, without spaces around them"),
        _about("Owner of new projects. Agents of projects with the same owner may write to each other."),
    ] = "local"
    projects_by: Annotated[
        Literal["repository", "folder"],
        _about("Treat all folders of one Git repository as one project, or each folder as its own."),
    ] = "repository"
    max_subject_chars: Annotated[Count, _about("Maximum length of a subject.", least=1, most=10_000)] = 512
    max_body_bytes: Annotated[
        Count, _about("Maximum size of a message, in bytes.", least=1, most=64 * _MIB)
    ] = _MIB
    max_attachment_bytes: Annotated[
        Count, _about("Maximum size of an attachment, in bytes.", least=0, most=512 * _MIB)
    ] = 10 * _MIB
    max_attachments_bytes: Annotated[
        Count,
        _about("Maximum size of all attachments of a message together, in bytes.", least=0, most=512 * _MIB),
    ] = 25 * _MIB
    max_attachments: Annotated[
        Count, _about("Maximum number of attachments of a message.", least=0, most=1000)
    ] = 20
    inline_image_max_bytes: Annotated[
        Count, _about("Images with more bytes than this get a preview.", least=0, most=64 * _MIB)
    ] = 65_536
    max_recipients: Annotated[
        Count, _about("Maximum number of recipients of a message.", least=1, most=100_000)
    ] = 1000
    max_pending_messages: Annotated[
        Count,
        _about(
            "Maximum number of messages that wait for the runs of one agent or chat. Further "
            "messages are rejected.",
            least=1,
            most=1_000_000,
        ),
    ] = 10_000
    max_reservation_ttl: Annotated[Duration, _about("Maximum duration of a reservation.")] = timedelta(days=7)
    default_reservation_ttl: Annotated[
        Duration, _about("Duration of a reservation if the call does not give one.")
    ] = timedelta(hours=1)
    answer_retention: Annotated[
        Duration, _about("Time for which a repeated call with the same key returns the stored answer.")
    ] = timedelta(days=7)
    run_retention: Annotated[
        Interval,
        _about("Time for which runs and their data are kept after the last run of their thread. 0: forever."),
    ] = timedelta(0)
    event_keep: Annotated[
        Count,
        _about(
            "Number of events that the log of a project keeps. Older events are deleted.",
            least=100,
            most=100_000_000,
        ),
    ] = 100_000
    case_sensitive_paths: Annotated[
        Switch,
        _about(
            "Whether two paths that differ only in upper and lower case are different. Default: the rule "
            "of this system."
        ),
    ] = sys.platform != "darwin"
    note_tokens: Annotated[
        Count,
        _about(
            "Maximum number of tokens of the notes that a session or a run is given together.",
            least=50,
            most=20_000,
        ),
    ] = 1000
    note_ttl: Annotated[Duration, _about("Time for which a note is active if its author gives no time.")] = (
        timedelta(days=90)
    )
    guard_mode: Annotated[
        Literal["warn", "block", "off"],
        _read_by(_lower),
        _about("How hooks react if reservations cannot be checked: warn, block, or off (no check)."),
    ] = "warn"
    stale_write_mode: Annotated[
        Literal["warn", "block", "off"],
        _read_by(_lower),
        _about(
            "How hooks react when an agent overwrites a whole file that was changed after the agent "
            "last read it."
        ),
    ] = "block"
    stale_edit_mode: Annotated[
        Literal["warn", "block", "off"],
        _read_by(_lower),
        _about(
            "How hooks react when an agent changes such a file in another way: an edit of a part, a "
            "patch, a shell command."
        ),
    ] = "warn"
    git_author_name: Annotated[
        str,
        _text(r"[^<>\r\n]{1,200}", "1 to 200 characters in one line, without < and >"),
        _about("Author of the archive's commits."),
    ] = "postroom"
    git_author_email: Annotated[
        str,
        _text(r"[^<>\s]{1,200}", "1 to 200 characters without spaces, < and >"),
        _about("E-mail address of the author of the archive's commits."),
    ] = "postroom@localhost"
    archive_enabled: Annotated[Switch, _about("Whether to write messages to the Git archive, too.")] = True
    archive_batch: Annotated[
        Count, _about("Maximum number of messages in one commit of the archive.", least=1, most=10_000)
    ] = 200
    backup_interval: Annotated[Interval, _about("Interval of the server's automatic backups. 0: never.")] = (
        timedelta(days=1)
    )
    backup_keep: Annotated[
        Count,
        _about("Number of automatic backups to keep.", least=1, most=1000),
    ] = 7
    push_services: Annotated[
        tuple[str, ...],
        _read_by(_push_services),
        _about(
            "Push services of browsers to which the server may send encrypted notifications: a host, *. "
            "and a domain, or an origin such as http://127.0.0.1:9000, which may also be private. Empty: "
            "none."
        ),
    ] = PUSH_SERVICES
    push_contact: Annotated[
        str,
        _text(r"(mailto:[^\s@]+@[^\s@]+|https://\S+)", "mailto: and an e-mail address, or an https address"),
        _about("An address at which the operator of a push service can reach the operator of this server."),
    ] = "https://github.com/postroom/postroom"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _read_by(_lower),
        _about("Minimum level of the events that are logged."),
    ] = "info"
    log_format: Annotated[Literal["console", "json"], _about("Format of the log.")] = "console"
    telemetry: Annotated[
        Switch, _about("Whether to send spans of calls and runs. Requires the extra `otel`.")
    ] = False
    telemetry_endpoint: Annotated[
        str,
        _read_by(_endpoint),
        _about("Address of the collector of these spans, which receives OTLP over HTTP."),
    ] = "http://127.0.0.1:4318"
    environment: Annotated[
        str,
        _text("[A-Za-z0-9._-]{1,64}", "1 to 64 letters, digits and . _ -"),
        _about("Name of this installation, shown in the status and in logs."),
    ] = "local"

    origins: Mapping[str, str] = {}
    """The origin of each value other than the default: `file <path>`, `env <NAME>` or `flag`."""

    def __post_init__(self) -> None:
        for name, default in IN_DATA_DIR.items():
            if getattr(self, name) == Path():
                msgspec.structs.force_setattr(self, name, self.data_dir / default)
        if self.default_reservation_ttl > self.max_reservation_ttl:
            raise ValueError("default_reservation_ttl is longer than max_reservation_ttl")
        if self.max_attachment_bytes > self.max_attachments_bytes:
            raise ValueError("max_attachment_bytes is more than max_attachments_bytes")

    @property
    def verified(self) -> bool:
        """Whether agents must prove their identity; always True if other machines can connect."""
        return self.identity == "verified" or not self.is_loopback

    @property
    def shown_database(self) -> str:
        """The location of the database, without the user name and the password."""
        if not self.database_url:
            return str(self.database)
        return shown_address(self.database_url, self.database_schema)

    @property
    def growing(self) -> Path:
        """The path of the database file, or of the data folder if a PostgreSQL database is used."""
        return self.data_dir if self.database_url else self.database

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        return self.host == "localhost" or (
            _is_address(self.host) and ipaddress.ip_address(self.host).is_loopback
        )

    @property
    def max_request_bytes(self) -> int:
        """The maximum size of a request in bytes, calculated from the limits for messages and attachments."""
        return 6 * self.max_body_bytes + 4 * self.max_attachments_bytes // 3 + _MIB

    def find_origin(self, name: str) -> str:
        """Return the origin of a setting's value: `default`, `file`, `env <NAME>` or `flag`."""
        return self.origins.get(name, "default")


SETTINGS: Final = tuple(name for name in Settings.__struct_fields__ if name != "origins")
"""The names of all settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingLine:
    """A setting as `postroom config show` prints it: value, origin and description."""

    name: str
    value: str
    origin: str
    description: str


@dataclass(frozen=True, slots=True)
class _Found:
    value: object
    origin: str
    base: Path
    """The folder against which a relative path is resolved."""


def load_settings(
    *, environment: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Return the settings of the server.

    `overrides` are the values of command-line flags, or None for a flag that was not given. Relative paths in
    the configuration file are resolved against the folder of this file. Relative paths in flags and
    environment variables are resolved against the current working folder.

    Raises:
        ConfigError: A name is unknown, a value is invalid, or the file or the data folder cannot be read.
    """
    variables = places.environment() if environment is None else environment
    sources = {**_from_file(variables), **_from_environment(variables)}
    for name, value in (overrides or {}).items():
        if value is not None:
            _check_known(name, list(SETTINGS), "among the flags")
            sources[name] = _Found(value, "flag", Path.cwd())
    _choose_database(sources)
    for name in _PATHS & sources.keys():
        found = sources[name]
        text = str(found.value)
        if not isinstance(found.value, str | Path) or not text or "\0" in text:
            raise _wrong(name, found, "the value is not a path", "write the path of a file or folder")
        sources[name] = _Found(places.absolute(text, variables, base=found.base), found.origin, found.base)
    values: dict[str, Any] = {}
    for name, found in sources.items():
        read = extra_of(fields_of(Settings)[name], "read")
        try:
            values[name] = found.value if read is None else read(found.value)
        except ValueError as error:
            raise _wrong(name, found, str(error), _CORRECT) from error
    values.setdefault("data_dir", places.data_dir(variables))
    places.refuse_closed(values["data_dir"])
    values["origins"] = {name: value.origin for name, value in sources.items()}
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        refused = place_of(str(error))
        if refused is None:
            message = f"the settings contradict each other: {error}"
            raise ConfigError(message, remedy=f"change one of these settings; {_SHOW}") from error
        reason = f"write {words(fields_of(Settings)[refused])}"
        raise _wrong(refused, sources[refused], reason, _CORRECT) from error


def explain(settings: Settings) -> list[SettingLine]:
    """Return every setting with its value and the origin of the value; secrets are hidden."""
    lines = []
    for name in SETTINGS:
        value = redact(value_text(getattr(settings, name)))
        if name in _WITH_PASSWORDS and (url := str(getattr(settings, name))):
            value = shown_address(url, settings.database_schema).rpartition(", schema ")[0]
        origin = settings.find_origin(name)
        lines.append(SettingLine(name=name, value=value, origin=origin, description=describe_setting(name)))
    return lines


def describe_setting(name: str) -> str:
    """Return the description of a setting."""
    kind = fields_of(Settings)[name]
    schema = kind.extra_json_schema if isinstance(kind, inspect.Metadata) else None
    return str((schema or {}).get("description", ""))


_WITH_PASSWORDS: Final = frozenset({"database_url", "database_direct_url"})
_CALLED: Final = "the configuration file"
_REMEDY: Final = f"correct the file, or point {places.CONFIG_NAME} to another one"
_PATHS: Final = frozenset({"data_dir", "database", "gateway_file", "storage_root"})
_SOURCES: Final = ("file", "env", "flag")
"""The sources of settings. Each source overrides those before it."""
_TABLES: Final = ("agents", "budgets", "keep")
"""The tables in the file that other modules read, because they are not settings."""
_OLDER_NAMES: Final = {
    "DATABASE_URL": "database",
    "STORAGE_ROOT": "storage_root",
    "HTTP_HOST": "host",
    "HTTP_PORT": "port",
    "HTTP_PATH": "mcp_path",
    "APP_ENVIRONMENT": "environment",
    "GIT_AUTHOR_NAME": "git_author_name",
    "GIT_AUTHOR_EMAIL": "git_author_email",
    "INLINE_IMAGE_MAX_BYTES": "inline_image_max_bytes",
}


def read_tables(environment: Mapping[str, str], name: str) -> list[tuple[TableName, dict[str, Any]]]:
    """Return the tables `[[name]]` of the configuration file, or no tables if there is no file.

    Raises:
        ConfigError: The file contains a value of another type under this name.
    """
    file = places.config_file(environment)
    tables = (read_toml(file, _CALLED, _REMEDY) or {}).get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(
            f"{file} {name}: the value is not a list of tables", remedy=f"write [[{name}]] before each table"
        )
    return [(TableName(file, name, number), table) for number, table in enumerate(tables, start=1)]


def _from_file(environment: Mapping[str, str]) -> dict[str, _Found]:
    file = places.config_file(environment)
    table = read_toml(file, _CALLED, _REMEDY)
    if table is None:
        if not environment.get(places.CONFIG_NAME):
            return {}
        raise unreadable(file, _CALLED, "the file does not exist", _REMEDY)
    for name in _TABLES:
        table.pop(name, None)
    for name in table:
        _check_known(name, [*SETTINGS, *_TABLES], f"in {file}")
    if "data_dir" in table:
        raise ConfigError(
            f"data_dir cannot be set in {file}: clients do not read this file, so they would not find the "
            "server",
            value=table["data_dir"],
            remedy=f"instead, set {places.DATA_DIR_NAME} in the environment of the server and its clients",
        )
    return {name: _Found(value, f"file {file}", file.parent) for name, value in table.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Found]:
    by_variable = {places.PREFIX + name.upper(): name for name in SETTINGS}
    here = Path.cwd()
    values = {
        by_variable[name]: _Found(value, f"env {name}", here)
        for name, value in environment.items()
        if name in by_variable and (value or by_variable[name] == "database_url")
    }
    for name in environment:
        if name.startswith(places.PREFIX):
            _check_known(name, [*by_variable, *places.CLIENT_NAMES, *places.RUN_NAMES], "in the environment")
    for older, name in _OLDER_NAMES.items():
        value = environment.get(older)
        if value and name not in values and not (name == "database" and "database_url" in values):
            if name == "database":
                scheme, _, rest = value.partition("://")
                path = rest.removeprefix("/").partition("?")[0]
                if (
                    scheme not in ("sqlite", "sqlite+aiosqlite")
                    or not rest.startswith("/")
                    or path in ("", ":memory:")
                ):
                    is_scheme = "://" in value and re.fullmatch(r"[A-Za-z0-9+.-]+", scheme)
                    shown = scheme[:40] if is_scheme else "(no scheme)"
                    raise ConfigError(
                        f"{older} has the scheme {shown}; only a SQLite file is supported: sqlite:///path or "
                        "sqlite+aiosqlite:///path",
                        value=shown,
                        remedy="set POSTROOM_DATABASE to the path of the file; this setting takes precedence "
                        f"over {older}, which another program may need",
                    )
                value = path
            values[name] = _Found(value, f"env {older}", here)
    return values


def _choose_database(found: dict[str, _Found]) -> None:
    """Choose the database file or the database URL by the precedence of their sources.

    Raises:
        ConfigError: Both come from the same source. Or the URL is empty, and no file comes from the same or a
            later source.
    """
    file, url = found.get("database"), found.get("database_url")
    if url is None:
        return
    places_of = [
        -1 if setting is None else _SOURCES.index(setting.origin.partition(" ")[0]) for setting in (file, url)
    ]
    if url.value == "":
        if places_of[0] < places_of[1]:
            raise ConfigError(
                f"database_url is empty (from {url.origin})",
                remedy="remove it to use SQLite, or set it to the URL of a PostgreSQL database",
            )
        del found["database_url"]
        return
    if file is None:
        return
    if places_of[0] == places_of[1]:
        raise ConfigError(
            f"database and database_url are both set (from {file.origin} and {url.origin})",
            remedy="set only one: database for SQLite, or database_url for PostgreSQL",
        )
    found.pop("database_url" if places_of[0] > places_of[1] else "database")


def _check_known(name: str, known: list[str], where: str) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    raise ConfigError(
        f"no setting is called {name[:100]!r} ({where})",
        value=name[:100],
        remedy=f"did you mean {near[0]}?" if near else _SHOW,
    )


def _wrong(name: str, found: _Found, reason: str, remedy: str) -> ConfigError:
    text = "(hidden)" if name in _WITH_PASSWORDS else shown(found.value)  # an invalid value may contain one
    return ConfigError(f"{name} is {text!r} (from {found.origin}): {reason}", value=text, remedy=remedy)


def value_text(value: object) -> str:
    """Return the value of a setting in the form that `postroom config show` prints."""
    if isinstance(value, timedelta):
        return duration_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    return str(value)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_SHOW: Final = "docs/reference/settings.md lists every setting"
_CORRECT: Final = f"correct or remove it; {_SHOW}"
