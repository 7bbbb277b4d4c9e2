"""Settings: one frozen object, read once at start from defaults, a TOML file, the environment and flags.

Later sources win, in that order; in the environment `POSTROOM_*` wins over the older names without prefix.
Every setting knows where its value came from. Nothing is guessed: an unknown name, a value out of range or a
duration without a unit stops the start with a `ConfigError` that names the setting, the value, its source and
the remedy.
"""

import difflib
import ipaddress
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from postroom.app import places
from postroom.app.tokens import redact
from postroom.contracts.addresses import refuse_malformed_address, shown_address
from postroom.contracts.errors import ConfigError
from postroom.contracts.runners import is_place

_MIB: Final = 1024 * 1024
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_DURATION: Final = re.compile(r"([0-9]{1,12})\s*(ms|s|m|h|d|w)")
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,62})?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,62})?)*")
_PASSWORD: Final = re.compile(r"://[^/\s]*@")
_MCP_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_TAKEN_PATH: Final = re.compile(
    r"/(\.well-known|admin|attachments|authorize|callbacks|health|healthz|hooks|log(in|out)|metrics|oauth|p|previews|readyz|register"
    r"|static|token|v1|watch)(/.*)?"
)
"""Where pages and other routes begin."""


def _duration(value: object) -> object:
    """Read `7d`, `1h`, `500ms` or ISO 8601 (`P7D`); a bare number names no unit and is refused."""
    if isinstance(value, str):
        text = value.strip()
        if found := _DURATION.fullmatch(text):
            return _times(int(found[1]), _UNITS[found[2]])
        if text.upper().startswith("P"):
            return text.upper()
    elif isinstance(value, timedelta):
        return value
    raise ValueError("write a duration with its unit, such as 90s, 500ms, 1h, 7d or P7D")


def duration_of(text: str) -> timedelta:
    """Return what a duration with its unit means.

    Raises:
        ValueError: it is none, and says what to write.
    """
    found = _duration(text)
    if not isinstance(found, timedelta):
        raise ValueError("write a duration with its unit, such as 90s, 30m or 1h")  # noqa: TRY004 - a value
    return _in_bounds(found)


def _times(count: int, unit: timedelta) -> timedelta:
    try:
        return count * unit
    except OverflowError:
        return timedelta.max  # refused by _in_bounds


def _in_bounds(value: timedelta) -> timedelta:
    if not timedelta(0) < value <= timedelta(days=36_500):
        raise ValueError("write a duration of more than nothing and of at most 36500d")
    return value


def _interval(value: object) -> object:
    """Read a duration, or 0 for never."""
    return timedelta(0) if value in (0, "0") and not isinstance(value, bool) else _duration(value)


def _as_interval(value: timedelta) -> timedelta:
    if value and not timedelta(minutes=1) <= value <= timedelta(days=36_500):
        raise ValueError("write 0 for never, or a duration of 1m to 36500d")
    return value


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("write a number")  # noqa: TRY004 - pydantic collects ValueError
    return value


def _names(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _labels(value: tuple[str, ...]) -> tuple[str, ...]:
    if not all(map(is_place, value)):
        raise ValueError("write labels of letters, digits and . _ -, separated by commas, such as gpu,mill")
    return value


def _host(value: object) -> str:
    text = value.strip().strip("[]") if isinstance(value, str) else ""
    if _is_address(text):
        return ipaddress.ip_address(text).compressed
    if _HOST_NAME.fullmatch(text):
        return text.lower()
    raise ValueError("write a host name or an IP address, without scheme, port or wildcard")


def _mcp_path(value: object) -> object:
    text = str(value).rstrip("/")
    if not _MCP_PATH.fullmatch(text) or {".", ".."} & set(text.split("/")):
        raise ValueError("write a path such as /mcp: it begins with a slash and is not the root")
    if _TAKEN_PATH.fullmatch(text):
        raise ValueError("that path is used for something else; write a path such as /mcp")
    return text


def _endpoint(value: str) -> str:
    try:
        found = urlsplit(value)
        is_address = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        is_address = False
    if not is_address or "@" in found.netloc or found.query or found.fragment or not value.isprintable():
        raise ValueError("write http://host:port or https://host:port, with a path or none, and no password")
    return value


def _database_url(value: str) -> str:
    refuse_malformed_address(value)
    return value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_no_bool)]
Duration = Annotated[timedelta, BeforeValidator(_duration), AfterValidator(_in_bounds)]
Interval = Annotated[timedelta, BeforeValidator(_interval), AfterValidator(_as_interval)]
HostName = Annotated[str, BeforeValidator(_host)]
HostNames = Annotated[tuple[HostName, ...], BeforeValidator(_names)]


def _word(*, of: str = r"\S(.{0,254}\S)?") -> Any:
    return Field(pattern=rf"^{of}$")


class Settings(BaseSettings):
    """Everything that can be set. Made by `load_settings`; making one directly reads no environment."""

    model_config = SettingsConfigDict(
        env_prefix=places.PREFIX,
        frozen=True,
        extra="forbid",
        validate_default=True,
        hide_input_in_errors=True,
    )

    data_dir: Path = Field(
        default_factory=lambda: places.data_dir(places.environment()),
        description="Folder of everything below, of the token and the note for clients.",
    )
    database: Path = Field(
        default_factory=lambda given: given["data_dir"] / "postroom.db",
        description="The SQLite file; by default postroom.db in data_dir.",
    )
    database_url: Annotated[str, AfterValidator(_database_url)] | Literal[""] = Field(
        default="",
        description="A PostgreSQL database in place of the file: postgresql://user:password@host:port/name; "
        "through a Unix socket postgresql:///name?host=/var/run/postgresql. Needs postroom[postgres].",
    )
    database_direct_url: Annotated[str, AfterValidator(_database_url)] | Literal[""] = Field(
        default="",
        description="The database's own address, where database_url is that of a pooler which gives each "
        "transaction another session: PgBouncer with pool_mode=transaction.",
    )
    database_schema: Annotated[str, _word(of=r"[a-z_][a-z0-9_]{0,62}")] = Field(
        default="postroom", description="The schema there, which servers of one installation share."
    )
    labels: Annotated[tuple[str, ...], BeforeValidator(_names), AfterValidator(_labels)] = Field(
        default=(),
        description="What this server is, for runners that name where they run (runs_on); "
        "its host's name is one by itself. For several servers on one PostgreSQL.",
    )
    storage_root: Path = Field(
        default_factory=lambda given: given["data_dir"] / "archive",
        description="Folder of the Git archive, a repository a project; by default archive in data_dir.",
    )
    gateway_file: Path = Field(
        default_factory=lambda given: given["data_dir"] / "gateway.toml",
        description="What the chat gateway is set to; by default gateway.toml in data_dir.",
    )
    host: HostName = Field(default="127.0.0.1", description="Address to listen on.")
    port: Count = Field(default=8765, ge=0, le=65535, description="Port to listen on; 0: the system chooses.")
    mcp_path: Annotated[str, BeforeValidator(_mcp_path)] = Field(
        default="/mcp", description="Path of the MCP endpoint."
    )
    profile: Literal["full", "core"] = Field(
        default="full", description="Which tools `mcp_path` itself lists."
    )
    identity: Literal["asserted", "verified"] = Field(
        default="asserted",
        description="Whether an agent's name counts as given, or by its token; beyond loopback by token.",
    )
    allowed_hosts: HostNames = Field(
        default=(), description="Names in Host and Origin to accept beside loopback and the bound address."
    )
    owner: Annotated[str, _word()] = Field(
        default="local", description="Owner of new projects; projects of one owner may write to each other."
    )
    projects_by: Literal["repository", "folder"] = Field(
        default="repository",
        description="Whether all folders of one Git repository are one project, or each folder is its own.",
    )
    max_subject_chars: Count = Field(default=512, ge=1, le=10_000, description="Longest subject.")
    max_body_bytes: Count = Field(default=_MIB, ge=1, le=64 * _MIB, description="Longest message, in bytes.")
    max_attachment_bytes: Count = Field(
        default=10 * _MIB, ge=0, le=512 * _MIB, description="Largest attachment, in bytes."
    )
    max_attachments_bytes: Count = Field(
        default=25 * _MIB,
        ge=0,
        le=512 * _MIB,
        description="Largest sum of a message's attachments, in bytes.",
    )
    max_attachments: Count = Field(default=20, ge=0, le=1000, description="Most attachments of a message.")
    inline_image_max_bytes: Count = Field(
        default=65_536, ge=0, le=64 * _MIB, description="Pictures above this many bytes get a preview."
    )
    max_recipients: Count = Field(default=1000, ge=1, le=100_000, description="Most recipients of a message.")
    max_pending_messages: Count = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Messages that may wait for runs of one agent or chat; another one is refused.",
    )
    max_reservation_ttl: Duration = Field(
        default=timedelta(days=7), description="Longest time for which a reservation is given."
    )
    default_reservation_ttl: Duration = Field(
        default=timedelta(hours=1), description="How long a reservation lasts when the call does not say."
    )
    answer_retention: Duration = Field(
        default=timedelta(days=7),
        description="How long a call repeated with its key is answered as before.",
    )
    run_retention: Interval = Field(
        default=timedelta(0),
        description="How long runs are kept after the last one of their thread, with all they said; 0: ever.",
    )
    event_keep: Count = Field(
        default=100_000,
        ge=100,
        le=100_000_000,
        description="How many of its newest events a project keeps in its log.",
    )
    case_sensitive_paths: bool = Field(
        default=sys.platform != "darwin",
        description="Whether paths that differ by case are two; by default as on this system.",
    )
    guard_mode: Annotated[Literal["warn", "block", "off"], BeforeValidator(_lower)] = Field(
        default="warn",
        description="What hooks do when reservations cannot be checked: go on, or hold; off: no check.",
    )
    git_author_name: Annotated[str, _word(of=r"[^<>\r\n]{1,200}")] = Field(
        default="postroom", description="Author of the archive's commits."
    )
    git_author_email: Annotated[str, _word(of=r"[^<>\s]{1,200}")] = Field(
        default="postroom@localhost", description="Mail address of that author."
    )
    archive_enabled: bool = Field(default=True, description="Whether messages also go to the Git archive.")
    archive_batch: Count = Field(default=200, ge=1, le=10_000, description="Most messages in one commit.")
    backup_interval: Interval = Field(
        default=timedelta(days=1),
        description="How often the server backs up the database by itself; 0: never.",
    )
    backup_keep: Count = Field(
        default=7,
        ge=1,
        le=1000,
        description="How many of the backups that the server makes by itself are kept.",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        default="info", description="Least important events that are logged."
    )
    log_format: Literal["console", "json"] = Field(default="console", description="Form of the log.")
    telemetry: bool = Field(
        default=False, description="Whether spans of calls and runs are sent; needs postroom[otel]."
    )
    telemetry_endpoint: Annotated[str, AfterValidator(_endpoint)] = Field(
        default="http://127.0.0.1:4318", description="The collector that takes them, by OTLP over HTTP."
    )
    environment: Annotated[str, _word(of=r"[A-Za-z0-9._-]{1,64}")] = Field(
        default="local", description="Name of this installation, shown in status and logs."
    )

    _origins: Mapping[str, str] = PrivateAttr(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take what `load_settings` found and nothing else: it alone knows where each value came from."""
        return (init_settings,)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.default_reservation_ttl > self.max_reservation_ttl:
            raise ValueError("default_reservation_ttl is longer than max_reservation_ttl")
        if self.max_attachment_bytes > self.max_attachments_bytes:
            raise ValueError("max_attachment_bytes is more than max_attachments_bytes")
        return self

    @property
    def verified(self) -> bool:
        """Whether agents prove who they are; forced where others than this machine can call."""
        return self.identity == "verified" or not self.is_loopback

    @property
    def shown_database(self) -> str:
        """Where the database is, without user and password."""
        if not self.database_url:
            return str(self.database)
        return shown_address(self.database_url, self.database_schema)

    @property
    def growing(self) -> Path:
        """What fills the disk of this machine: the database, or the data folder where that is elsewhere."""
        return self.data_dir if self.database_url else self.database

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can call."""
        return self.host == "localhost" or (
            _is_address(self.host) and ipaddress.ip_address(self.host).is_loopback
        )

    @property
    def max_request_bytes(self) -> int:
        """The largest request that a message within its limits can make.

        JSON can need six bytes for one of a body's, and base64 four for three of an attachment's.
        """
        return 6 * self.max_body_bytes + 4 * self.max_attachments_bytes // 3 + _MIB

    def origin_of(self, name: str) -> str:
        """Return where a setting's value came from: `default`, `file`, `env <NAME>` or `flag`."""
        return self._origins.get(name, "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingLine:
    """One setting as `postroom config show` prints it."""

    name: str
    value: str
    origin: str
    description: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A value that somebody wrote, and where."""

    value: object
    origin: str
    base: Path
    """The folder at which a relative path begins."""


def load_settings(
    *, environment: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
) -> Settings:
    """Return the settings of this start; `overrides` are flags, of which None means not given.

    Relative paths begin at the present folder, those in the file at the file's folder.

    Raises:
        ConfigError: a name is unknown, a value is wrong, or the file or the data folder cannot be read.
    """
    given = places.environment() if environment is None else environment
    found = {**_from_file(given), **_from_environment(given), **_from_flags(overrides or {})}
    _choose_database(found)
    for name in _PATHS & found.keys():
        found[name] = _absolute(name, found[name], given)
    values: dict[str, Any] = {name: one.value for name, one in found.items()}
    values.setdefault("data_dir", places.data_dir(given))
    places.refuse_closed(values["data_dir"])
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _refused(error.errors()[0], found) from error
    return _with_origins(settings, {name: one.origin for name, one in found.items()})


def explain(settings: Settings) -> list[SettingLine]:
    """Return every setting with its value, nothing secret in it, and where the value came from."""
    return [
        SettingLine(
            name=name,
            value=_shown_value(settings, name),
            origin=settings.origin_of(name),
            description=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def _shown_value(settings: Settings, name: str) -> str:
    if name in _WITH_PASSWORDS and (url := str(getattr(settings, name))):
        return shown_address(url, settings.database_schema).rpartition(", schema ")[0]
    return redact(_shown(getattr(settings, name)))


_WITH_PASSWORDS: Final = frozenset({"database_url", "database_direct_url"})
_PATHS: Final = frozenset({"data_dir", "database", "gateway_file", "storage_root"})
_SOURCES: Final = ("file", "env", "flag")
"""Where settings stand; the later wins."""
_TABLES: Final = ("agents", "budgets", "keep")
"""What stands in the file and is no setting: `agents_config`, `budgets_config` and `keep_config` read it."""
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


def tables_of(environment: Mapping[str, str], name: str) -> tuple[Path, list[dict[str, Any]]]:
    """Return the configuration file, and the tables `[[name]]` in it; none without a file.

    Raises:
        ConfigError: they are no such tables.
    """
    file = places.config_file(environment)
    try:
        with file.open("rb") as stream:
            told = tomllib.load(stream).get(name, [])
    except FileNotFoundError:
        return file, []
    if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
        raise ConfigError(f"{file} {name}: it is no list of tables", remedy=f"write [[{name}]] before each")
    return file, told


def _from_file(environment: Mapping[str, str]) -> dict[str, _Found]:
    file = places.config_file(environment)
    try:
        with file.open("rb") as stream:
            table = tomllib.load(stream)
    except FileNotFoundError as error:
        if not environment.get(places.CONFIG_NAME):
            return {}
        raise _unreadable(file, "it is not there") from error
    except OSError as error:
        raise _unreadable(file, error.strerror or type(error).__name__) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(file, f"not TOML: {error}") from error
    for name in _TABLES:
        table.pop(name, None)
    for name in table:
        _check_known(name, [*Settings.model_fields, *_TABLES], f"in {file}")
    if "data_dir" in table:
        raise ConfigError(
            f"data_dir cannot stand in {file}: clients that read no file could not find the server",
            value=table["data_dir"],
            remedy=f"set {places.DATA_DIR_NAME} instead, for the server and for its clients",
        )
    return {name: _Found(value, f"file {file}", file.parent) for name, value in table.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Found]:
    known = {places.PREFIX + name.upper(): name for name in Settings.model_fields}
    here = Path.cwd()
    found = {
        known[name]: _Found(value, f"env {name}", here)
        for name, value in environment.items()
        if name in known and (value or known[name] == "database_url")
    }
    for name in environment:
        if name.startswith(places.PREFIX):
            _check_known(name, [*known, *places.CLIENT_NAMES, *places.RUN_NAMES], "in the environment")
    for older, name in _OLDER_NAMES.items():
        value = environment.get(older)
        if value and name not in found and not (name == "database" and "database_url" in found):
            text = _sqlite_file(older, value) if name == "database" else value
            found[name] = _Found(text, f"env {older}", here)
    return found


def _from_flags(overrides: Mapping[str, object]) -> dict[str, _Found]:
    given = {name: value for name, value in overrides.items() if value is not None}
    for name in given:
        _check_known(name, list(Settings.model_fields), "among the flags")
    return {name: _Found(value, "flag", Path.cwd()) for name, value in given.items()}


def _choose_database(found: dict[str, _Found]) -> None:
    """Of a file and an address the one counts that was said in the later place.

    Raises:
        ConfigError: both were said in the same place; or the address is empty, which a variable that is not
            set leaves behind, and no file was said there or later.
    """
    file, url = found.get("database"), found.get("database_url")
    if url is None:
        return
    places_of = [-1 if one is None else _SOURCES.index(one.origin.partition(" ")[0]) for one in (file, url)]
    if url.value == "":
        if places_of[0] < places_of[1]:
            raise ConfigError(
                f"database_url is empty (from {url.origin})",
                remedy="leave it out for SQLite, or give it the address of a PostgreSQL database",
            )
        del found["database_url"]
        return
    if file is None:
        return
    if places_of[0] == places_of[1]:
        raise ConfigError(
            f"database and database_url are both set (from {file.origin} and {url.origin})",
            remedy="set database for SQLite, or database_url for PostgreSQL",
        )
    found.pop("database_url" if places_of[0] > places_of[1] else "database")


def _check_known(name: str, known: list[str], where: str) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    raise ConfigError(
        f"no setting is called {name[:100]!r} ({where})",
        value=name[:100],
        remedy=f"did you mean {near[0]}?" if near else "`postroom config show` lists every setting",
    )


def _sqlite_file(name: str, url: str) -> str:
    """Return the file of a database address; its other parts may hold a password and are never shown."""
    scheme, _, rest = url.partition("://")
    path = rest.removeprefix("/").partition("?")[0]
    if scheme in ("sqlite", "sqlite+aiosqlite") and rest.startswith("/") and path not in ("", ":memory:"):
        return path
    shown = scheme[:40] if "://" in url and re.fullmatch(r"[A-Za-z0-9+.-]+", scheme) else "(no scheme)"
    raise ConfigError(
        f"{name} has scheme {shown}; a SQLite file is supported: sqlite:///path or sqlite+aiosqlite:///path",
        value=shown,
        remedy=f"set POSTROOM_DATABASE to the file's path: it wins over {name}, perhaps another program's",
    )


def _absolute(name: str, found: _Found, environment: Mapping[str, str]) -> _Found:
    text = str(found.value)
    if not isinstance(found.value, str | Path) or not text or "\0" in text:
        raise _wrong(name, found, "it is no path", "write a path")
    return _Found(places.absolute(text, environment, base=found.base), found.origin, found.base)


def _refused(first: ErrorDetails, found: Mapping[str, _Found]) -> ConfigError:
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return ConfigError(f"settings do not fit together: {reason}", remedy=f"change one of them; {_SHOW}")
    name = str(first["loc"][0])
    one = found.get(name, _Found(first.get("input"), "default", Path()))
    return _wrong(name, one, reason[:1].lower() + reason[1:], f"correct or remove it; {_SHOW}")


def _wrong(name: str, found: _Found, reason: str, remedy: str) -> ConfigError:
    shown = _PASSWORD.sub("://***@", redact(str(found.value)))[:200]
    if name in _WITH_PASSWORDS:
        shown = "(hidden)"  # what is no address may still hold a password
    return ConfigError(f"{name} is {shown!r} (from {found.origin}): {reason}", value=shown, remedy=remedy)


def _unreadable(file: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"the configuration file {file} cannot be read: {reason}",
        value=str(file),
        remedy=f"correct the file, or point {places.CONFIG_NAME} to another one",
    )


def _with_origins(settings: Settings, origins: Mapping[str, str]) -> Settings:
    settings._origins = MappingProxyType(dict(origins))  # noqa: SLF001 - our own class, in our own module
    return settings


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return _duration_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    return str(value)


def _duration_text(value: timedelta) -> str:
    milliseconds = value // timedelta(milliseconds=1)
    if not milliseconds:
        return "0"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


_SHOW: Final = "`postroom config show` lists every setting with its origin"
