"""Settings: the sources of values, refusals, and their words."""

import json
import re
import stat
from datetime import timedelta
from pathlib import Path

import pytest

import postroom
from postroom.app import places
from postroom.app.config import SETTINGS, explain, load_settings
from postroom.contracts.errors import ConfigError
from table_rows import each_row


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path)}


def write_config(home: dict[str, str], text: str) -> Path:
    file = Path(home["HOME"]) / "settings.toml"
    file.write_text(text, encoding="utf-8")
    home["POSTROOM_CONFIG"] = str(file)
    return file


def refusal(environment: dict[str, str], **overrides: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_settings(environment=environment, overrides=overrides)
    return caught.value


def test_defaults_need_nothing_but_a_home(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    settings = load_settings(environment=home)
    folder = places.data_dir(home)
    assert settings.data_dir == folder
    assert settings.database == folder / "postroom.db"
    assert settings.storage_root == folder / "archive"
    assert (settings.host, settings.port, settings.mcp_path) == ("127.0.0.1", 8765, "/mcp")
    assert settings.answer_retention == timedelta(days=7)
    assert not settings.verified
    assert {line.origin for line in explain(settings)} == {"default"}


def test_later_sources_win_and_each_value_knows_its_own(home: dict[str, str]) -> None:
    file = write_config(home, 'host = "localhost"\nport = 1\nprofile = "core"\nowner = "team"\n')
    home |= {"HTTP_PORT": "2", "POSTROOM_PROFILE": "full"}
    settings = load_settings(environment=home, overrides={"owner": "flag", "profile": None})
    assert (settings.host, settings.port, settings.profile, settings.owner) == (
        *("localhost", 2, "full", "flag"),
    )
    assert settings.find_origin("host") == f"file {file}"
    assert settings.find_origin("port") == "env HTTP_PORT"
    assert settings.find_origin("profile") == "env POSTROOM_PROFILE"
    assert settings.find_origin("owner") == "flag"
    assert settings.find_origin("log_level") == "default"


def test_the_older_names_work_and_give_way_to_ours(home: dict[str, str], tmp_path: Path) -> None:
    older = {
        **{"DATABASE_URL": f"sqlite+aiosqlite:///{tmp_path / 'old.sqlite3'}", "APP_ENVIRONMENT": "test"},
        **{
            "HTTP_HOST": "localhost",
            "HTTP_PORT": "9000",
            "HTTP_PATH": "/mcp/",
            "INLINE_IMAGE_MAX_BYTES": "128",
        },
        **{"GIT_AUTHOR_NAME": "test-agent", "GIT_AUTHOR_EMAIL": "test@example.com"},
        "STORAGE_ROOT": str(tmp_path / "storage"),
    }
    settings = load_settings(environment=home | older)
    assert (settings.database, settings.storage_root) == (tmp_path / "old.sqlite3", tmp_path / "storage")
    assert (settings.host, settings.port, settings.mcp_path) == ("localhost", 9000, "/mcp")
    assert (settings.environment, settings.inline_image_max_bytes) == ("test", 128)
    assert (settings.git_author_name, settings.git_author_email) == ("test-agent", "test@example.com")
    ours = load_settings(environment=home | older | {"POSTROOM_PORT": "9001", "POSTROOM_DATABASE": "new.db"})
    assert (ours.port, ours.database) == (9001, Path.cwd() / "new.db")
    foreign = home | {"DATABASE_URL": "postgresql://db/mail", "POSTROOM_DATABASE": "/srv/post.db"}
    assert load_settings(environment=foreign).database == Path("/srv/post.db")


INTERVALS = {"0": timedelta(0), "1m": timedelta(minutes=1)}
DURATIONS = {
    **{"500ms": 0.5, "90s": 90, "15 m": 900, "1h": 3_600, "7d": 604_800, "2w": 1_209_600, "P7D": 604_800},
}
DURATIONS |= {"pt1h30m": 5_400, "P1W2DT0.5S": 777_600.5, "2 hours": 7_200, "1h30m": 5_400}


@each_row(
    "name, text, field, expected",
    [
        ("DATABASE_URL", "sqlite:////var/lib/post.db", "database", Path("/var/lib/post.db")),
        ("DATABASE_URL", "sqlite:///post.db", "database", Path.cwd() / "post.db"),
        ("DATABASE_URL", "sqlite+aiosqlite:///./post.db?timeout=5", "database", Path.cwd() / "post.db"),
        *(
            ("POSTROOM_ANSWER_RETENTION", text, "answer_retention", timedelta(seconds=value))
            for text, value in DURATIONS.items()
        ),
        *(("POSTROOM_BACKUP_INTERVAL", text, "backup_interval", value) for text, value in INTERVALS.items()),
        ("POSTROOM_STOP_DELAY", "6s", "stop_delay", timedelta(seconds=6)),
        *(("POSTROOM_TELEMETRY", text, "telemetry", True) for text in ("YES", "on")),
        *(("POSTROOM_TELEMETRY", text, "telemetry", False) for text in ("0", "f", "False")),
        *(("POSTROOM_PORT", text, "port", 12) for text in (" 12 ", "+12", "12.0")),
        ("POSTROOM_PORT", "1_000", "port", 1000),
        ("POSTROOM_HOST", "", "host", "127.0.0.1"),  # an empty variable is one that is not set
    ],
)
def test_a_value_is_read_in_each_usual_form(
    home: dict[str, str], name: str, text: str, field: str, expected: object
) -> None:
    settings = load_settings(environment=home | {name: text})
    assert getattr(settings, field) == expected
    if name == "POSTROOM_BACKUP_INTERVAL":
        assert {one.name: one.value for one in explain(settings)}["backup_interval"] == text


@each_row(
    "url, scheme",
    [
        *((f"{scheme}://user:hunter2@db/mail", scheme) for scheme in ("postgresql", "mysql+pymysql")),
        *((url, "sqlite") for url in ("sqlite://", "sqlite:///:memory:", "sqlite://host/mail.db")),
        *((url, "(no scheme)") for url in ("hunter2", "hun ter2://x")),
    ],
)
def test_another_database_is_refused_without_telling_its_password(
    home: dict[str, str], url: str, scheme: str
) -> None:
    error = refusal(home | {"DATABASE_URL": url})
    assert error.value == scheme
    assert ("DATABASE_URL" in error.message, "sqlite:///path" in error.message) == (True, True)
    assert "POSTROOM_DATABASE" in error.remedy
    assert "hunter2" not in str(error.as_dict())


WRONG = [
    tuple(row.strip().split(" | "))
    for row in r"""
    PORT | 65536 | 65535
    PORT | -1 | write a whole number from 0 to 65535
    PORT | http | write a whole number
    HOST | http://127.0.0.1 | without scheme
    ALLOWED_HOSTS | mail.example.com, * | wildcard
    ALLOWED_HOSTS | mail.example.com:443 | port
    MCP_PATH | / | root
    MCP_PATH | mcp | slash
    MCP_PATH | /a/../b | path
    MCP_PATH | /admin/mcp | the server uses this path itself
    MCP_PATH | /v1/mcp | the server uses this path itself
    MCP_PATH | /callbacks/mcp | the server uses this path itself
    PROFILE | everything | 'core' or 'full'
    TELEMETRY | perhaps | write true or false
    TELEMETRY_ENDPOINT | 127.0.0.1:4318 | http://host:port
    TELEMETRY_ENDPOINT | file:///etc/passwd | http://host:port
    TELEMETRY_ENDPOINT | http://[::1 | http://host:port
    TELEMETRY_ENDPOINT | http://host:99999 | http://host:port
    TELEMETRY_ENDPOINT | http://host/?token=x | http://host:port
    IDENTITY | none | 'asserted' or 'verified'
    ANSWER_RETENTION | 3600 | unit
    ANSWER_RETENTION | 0s | greater than 0
    ANSWER_RETENTION | -P1D | unit
    ANSWER_RETENTION | 999999999999w | 36500d
    ANSWER_RETENTION | P | unit
    MAX_BODY_BYTES | 0 | write a whole number from 1
    ARCHIVE_ENABLED | perhaps | write true or false
    LOG_LEVEL | loud | 'debug'
    GIT_AUTHOR_EMAIL | <a@b> | without spaces
    ENVIRONMENT | a b | letters, digits
    LABELS | ["gpu"] | separated by commas
    LABELS | gpu,a b | separated by commas
    """.strip().splitlines()
]
WRONG += [("PORT", "9" * 5000, "write a whole number"), ("DATABASE", "a\0b", "not a path")]
WRONG += [("GIT_AUTHOR_NAME", "a\nb", "characters in one line")]


@each_row("name, value, reason", WRONG)
def test_a_wrong_value_is_refused_by_name_value_origin_and_reason(
    home: dict[str, str], name: str, value: str, reason: str
) -> None:
    error = refusal(home | {f"POSTROOM_{name}": value})
    assert error.message.startswith(f"{name.lower()} is ")
    assert (f"env POSTROOM_{name}" in error.message, reason in error.message) == (True, True)
    assert error.value == value[:200]
    assert error.remedy


def test_an_endpoint_with_a_password_is_refused_without_telling_it(home: dict[str, str]) -> None:
    error = refusal(home | {"POSTROOM_TELEMETRY_ENDPOINT": "https://me:hunter2@collector.example"})
    assert "without a password" in error.describe()
    assert "hunter2" not in json.dumps(error.as_dict())


def test_an_unknown_name_of_ours_is_refused_with_the_nearest(home: dict[str, str]) -> None:
    assert refusal(home, prot=1).remedy == "did you mean port?"
    error = refusal(home | {"POSTROOM_PROT": "1"})
    assert (error.value, error.remedy) == ("POSTROOM_PROT", "did you mean POSTROOM_PORT?")
    file = write_config(home, "max_bodybytes = 3\n")
    error = refusal(home)
    assert error.remedy == "did you mean max_body_bytes?"
    assert str(file) in error.message


def test_names_that_clients_and_runs_use_are_no_settings_and_no_mistakes(home: dict[str, str]) -> None:
    told = {"POSTROOM_THREAD": "t", "POSTROOM_RUN": "r", "POSTROOM_DISPATCH": "d"}
    told |= {"POSTROOM_AGENT": "Bo", "POSTROOM_PROJECT": "harbour", "POSTROOM_STEERING": "/tmp/s"}
    told |= {"POSTROOM_TOKEN": "prm_x", "POSTROOM_URL": "http://x", "POSTROOM_AGENT_TOKEN": "pra_x"}
    told |= {"POSTROOM_GUARD": "warn", "POSTROOM_STALE": "block", "POSTROOM_OUTBOX": "/tmp/o"}
    texts = (file.read_text(encoding="utf-8") for file in Path(postroom.__file__).parent.rglob("*.py"))
    named = {name for text in texts for name in re.findall(r'"(POSTROOM_[A-Z_]+)"', text)}
    of_the_server = {"POSTROOM_CONFIG", *(f"POSTROOM_{name.upper()}" for name in SETTINGS)}
    assert named - of_the_server <= told.keys(), "each other name that the code uses is tried here"
    settings = load_settings(environment=home | told | {"PATH": "/bin"})
    assert settings.port == 8765
    with pytest.raises(AttributeError):
        settings.port = 1  # type: ignore[misc]  # that this is wrong is the point


@each_row(
    "text, reason",
    [
        *(("port = [1", "not TOML"), ("port = true", "write a number"), ("host = 5", "without scheme")),
        *(("answer_retention = 3600", "unit"), ("backup_interval = 60", "unit")),
        ('backup_interval = "59s"', "or a duration from 1m"),
        ('stop_delay = "11m"', "a duration up to 10m"),
        *(("backup_interval = false", "unit"), ("database = 5", "not a path")),
        *(('data_dir = "/x"', "POSTROOM_DATA_DIR"), ("[port]\nx = 1", "whole number")),
        ("a = " + "[" * 5000, "not TOML"),
    ],
)
def test_a_broken_file_is_refused(home: dict[str, str], text: str, reason: str) -> None:
    write_config(home, text)
    error = refusal(home)
    assert reason in error.message + error.remedy


def test_a_file_that_was_named_must_be_there_and_the_usual_one_need_not(home: dict[str, str]) -> None:
    assert load_settings(environment=home).port == 8765
    assert "the file does not exist" in refusal(home | {"POSTROOM_CONFIG": "/nowhere/settings.toml"}).message
    assert "cannot be read" in refusal(home | {"POSTROOM_CONFIG": home["HOME"]}).message


def test_a_relative_path_in_the_file_begins_at_the_file(home: dict[str, str]) -> None:
    file = write_config(
        home, 'database = "mail/post.db"\nstorage_root = "~/archive"\nallowed_hosts = ["Mail.Example.com"]\n'
    )
    settings = load_settings(environment=home)
    assert settings.database == file.parent / "mail" / "post.db"
    assert settings.storage_root == Path(home["HOME"]) / "archive"
    assert settings.allowed_hosts == ("mail.example.com",)


def test_limits_must_fit_together(home: dict[str, str]) -> None:
    error = refusal(home | {"POSTROOM_DEFAULT_RESERVATION_TTL": "8d"})
    assert "longer than max_reservation_ttl" in error.message
    error = refusal(home | {"POSTROOM_MAX_ATTACHMENTS_BYTES": "10"})
    assert "max_attachments_bytes" in error.message
    settings = load_settings(environment=home)
    as_base64 = -(-settings.max_attachments_bytes * 4 // 3)
    assert settings.max_request_bytes > as_base64 + 6 * settings.max_body_bytes


def test_beyond_loopback_agents_prove_who_they_are(home: dict[str, str]) -> None:
    def verified(host: str, identity: str = "asserted") -> bool:
        given = home | {"POSTROOM_HOST": host, "POSTROOM_IDENTITY": identity}
        return load_settings(environment=given).verified

    assert verified("127.0.0.1", "verified")
    here = ("127.0.0.1", "127.8.8.8", "::1", "[0:0:0:0:0:0:0:1]", "localhost")
    assert [host for host in (*here, "0.0.0.0", "::", "192.168.1.5", "devbox") if not verified(host)] == [
        *here
    ]


def test_explain_lists_every_setting_and_no_token(home: dict[str, str]) -> None:
    token = "prm_" + "x" * 43
    settings = load_settings(environment=home | {"POSTROOM_OWNER": token, "POSTROOM_ANSWER_RETENTION": "36h"})
    lines = {line.name: line for line in explain(settings)}
    assert lines.keys() == set(SETTINGS)
    assert all(line.description for line in lines.values())
    assert lines["owner"].value == "prm_***"
    assert lines["answer_retention"].value == "36h"
    assert lines["archive_enabled"].value == "true"
    assert token not in str(refusal(home | {"POSTROOM_PROFILE": token}).as_dict())


MAC = "Library/Application Support"


@each_row(
    "platform, environment, data, config",
    [
        ("linux", {}, ".local/share/postroom", ".config/postroom/config.toml"),
        ("linux", {"XDG_DATA_HOME": "/d", "XDG_CONFIG_HOME": "/c"}, "/d/postroom", "/c/postroom/config.toml"),
        ("linux", {"XDG_DATA_HOME": "rel"}, ".local/share/postroom", ".config/postroom/config.toml"),
        ("darwin", {}, f"{MAC}/postroom", f"{MAC}/postroom/config.toml"),
        ("linux", {"POSTROOM_DATA_DIR": "~/post", "POSTROOM_CONFIG": "/c.toml"}, "post", "/c.toml"),
    ],
)
def test_every_system_has_its_usual_places(
    platform: str, environment: dict[str, str], data: str, config: str
) -> None:
    given = {"HOME": "/home/a", **environment}
    assert places.data_dir(given, platform=platform) == Path("/home/a") / data
    assert places.config_file(given, platform=platform) == Path("/home/a") / config


def test_the_note_of_a_server_is_private_and_goes_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert places.read_server_note(folder) is None
    note = places.ServerNote(url="http://127.0.0.1:8765", pid=7, version="1", started_at=5)
    places.write_server_note(folder, places.ServerNote(url="", pid=7, version="0", started_at=1))
    places.write_server_note(folder, note)
    assert places.read_server_note(folder) == note
    assert stat.S_IMODE(places.server_note(folder).stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["server.json"]
    places.remove_server_note(folder, pid=8)
    assert places.read_server_note(folder) == note
    places.remove_server_note(folder, pid=7)
    places.remove_server_note(folder, pid=7)
    assert places.read_server_note(folder) is None


@each_row("text", ["", "[]", "{}", '{"url": 1, "pid": "x"}', "[" * 100_000, "\x00"])
def test_a_broken_note_is_refused_and_not_guessed_at(tmp_path: Path, text: str) -> None:
    places.server_note(tmp_path).write_text(text)
    with pytest.raises(ConfigError) as caught:
        places.read_server_note(tmp_path)
    assert "remove the file" in caught.value.remedy
    assert "Error" not in caught.value.message


ELEPHANT = "postgresql://ada:hunter2@db.example:5432/mail?sslmode=require"


@each_row(
    "url",
    [
        *("hunter2", "mysql://ada:hunter2@db/mail", "postgresql+asyncpg://ada:hunter2@db/mail"),
        *("postgresql://ada:hunter2@2@db/mail", "postgresql://ada:p/hunter2@db/mail"),
        *("postgresql://ada:hunter2@db:port/mail", "postgresql://ada:hunter2\n@db/mail"),
        "host=db password='hunter2",
    ],
)
def test_an_address_of_no_database_is_refused_and_nothing_of_it_is_shown(
    home: dict[str, str], url: str
) -> None:
    error = refusal(home | {"POSTROOM_DATABASE_URL": url})
    assert "database_url" in error.message
    assert "hunter2" not in str(error.as_dict())


@each_row(
    "url, shown",
    [
        (ELEPHANT, "postgresql://db.example:5432/mail"),
        ("postgresql:///mail", "postgresql:///mail"),
        ("postgres://ada:hunter2@/mail?host=/tmp&port=5433", "postgresql:///mail?host=/tmp&port=5433"),
        ("postgresql://ada:hunter2@%2Fvar%2Frun%2Fpg:5433/mail", "postgresql://%2Fvar%2Frun%2Fpg:5433/mail"),
        ("host=/var/run/postgresql dbname=mail", "postgresql:///mail?host=/var/run/postgresql"),
        (r"user=ada password='hunter2 \' x' host=db dbname=mail", "postgresql:///mail?host=db"),
        ("postgresql://ada:hunter2#@db1,db2:5433/mail", "postgresql://db1,db2:5433/mail"),
    ],
)
def test_an_address_that_the_postgresql_library_reads_is_accepted_and_shown_without_user_and_password(
    home: dict[str, str], url: str, shown: str
) -> None:
    settings = load_settings(environment=home | {"POSTROOM_DATABASE_URL": url})
    assert settings.database_url == url
    assert settings.shown_database == f"{shown}, schema postroom"
    (line,) = [line for line in explain(settings) if line.name == "database_url"]
    assert line.value == shown


def test_of_a_file_and_an_address_the_one_said_later_counts(home: dict[str, str], tmp_path: Path) -> None:
    given = home | {"POSTROOM_DATABASE_URL": ELEPHANT}
    assert load_settings(environment=given, overrides={"database": tmp_path / "a.db"}).database_url == ""
    older = given | {"DATABASE_URL": "sqlite:////srv/old.db"}
    assert load_settings(environment=older).database_url == ELEPHANT
    error = refusal(given | {"POSTROOM_DATABASE": "/srv/post.db"})
    assert "database and database_url are both set" in error.message
    assert "hunter2" not in str(error.as_dict())


def test_an_address_that_is_empty_is_refused_unless_a_file_is_said_as_well(
    home: dict[str, str], tmp_path: Path
) -> None:
    """An unset variable of a compose file would start a server on SQLite without a word."""
    empty = home | {"POSTROOM_DATABASE_URL": ""}
    from_file = home | {"POSTROOM_CONFIG": str(write_config(dict(home), "database = 'x.db'\n"))}
    for error, origin in (
        (refusal(empty), "env POSTROOM_DATABASE_URL"),
        (refusal(home, database_url=""), "flag"),
        (refusal(from_file | {"POSTROOM_DATABASE_URL": ""}), "env POSTROOM_DATABASE_URL"),
    ):
        assert error.message == f"database_url is empty (from {origin})"
        assert "remove it to use SQLite" in error.remedy
    file = tmp_path / "a.db"
    assert load_settings(environment=empty, overrides={"database": file}).database == file
    assert load_settings(environment=empty, overrides={"database_url": ELEPHANT}).database_url == ELEPHANT
