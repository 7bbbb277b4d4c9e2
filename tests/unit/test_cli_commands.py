"""The commands, against a fake server: what they send, what they print, and the code they end with."""

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from fake_postroom import FakePostroom, Raw, Seen
from postroom.app import places
from postroom.cli import remedies, show
from postroom.cli.main import main
from postroom.contracts import errors, progress
from postroom.mail.operations import OPERATIONS
from postroom.version import __version__
from table_rows import each_row

ROOT = Path(__file__).resolve().parents[2]
MESSAGE: dict[str, Any] = {
    "id": 7,
    "thread_id": "t-1",
    "subject": "Hello",
    "from": "Ada",
    "to": ["Bo"],
    "cc": [],
    "importance": "normal",
    "ack_required": True,
    "topic": "",
    "created_ts": "2026-11-21T09:00:00.000Z",
    "reply_to": None,
    "recalled_at": None,
    "attachments": [
        {"name": "a.txt", "media_type": "text/plain", "size": 3, "sha256": "x", "preview_sha256": None}
    ],
    "body_md": "First line\nSecond",
}
INBOX = {**MESSAGE, "seq": 1, "kind": "to", "read_at": None, "acked_at": None}
SENT = {"count": 1, "deliveries": [{"project": "p", "recipients": ["Bo"], "payload": MESSAGE}], "skipped": []}
AGENT = {
    "id": 1,
    "name": "Ada",
    "program": "cli",
    "model": "m",
    "task_description": "t",
    "contact_policy": "open",
    "created_at": "2026-11-21T09:00:00.000Z",
    "last_active_at": "2026-11-21T09:00:00.000Z",
    "retired_at": None,
}
HELD = {
    "id": 3,
    "path": "src/**",
    "agent": "Bo",
    "exclusive": True,
    "reason": "edit",
    "created_ts": "2026-11-21T09:00:00.000Z",
    "expires_ts": "2026-11-21T10:00:00.000Z",
    "released_ts": None,
    "release_reason": "",
}
CONFLICTS = [{"path": "src/a.py", "holders": [HELD]}]
HITS = {
    "hits": [
        {
            "id": 7,
            "thread_id": "t-1",
            "subject": "Hello",
            "from": "Ada",
            "importance": "normal",
            "topic": "",
            "created_ts": "2026-11-21T09:00:00.000Z",
            "snippet": "First",
        }
    ],
    "next": None,
    "query": "first",
}
SUMMARY = {
    "thread_id": "t-1",
    "subject": "Hello",
    "messages": 2,
    "left_out": 0,
    "first_ts": "2026-11-21T09:00:00.000Z",
    "last_ts": "2026-11-21T09:00:00.000Z",
    "participants": [{"name": "Ada", "messages": 2}],
    "open_questions": [{"message_id": 7, "asked_by": "Ada", "text": "Why?"}],
    "unacknowledged": [{"message_id": 7, "subject": "Hello", "waiting_for": ["Bo"]}],
    "reservations": [HELD],
}
ACK = {"message_id": 7, "acknowledged": True, "acknowledged_at": "now", "read": True, "read_at": "now"}
MARK = {"message_id": 7, "read": True, "read_at": "now"}


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def fake() -> Iterator[FakePostroom]:
    with FakePostroom() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty installation, and an empty project to stand in."""
    for name in os.environ:
        if name.startswith("POSTROOM_"):
            monkeypatch.delenv(name)
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return project


@pytest.fixture
def bare(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command where no server is."""
    del folder

    def run(*words: str) -> Done:
        code = main(words)
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


@pytest.fixture
def run(fake: FakePostroom, bare: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command against the fake."""
    monkeypatch.setenv("POSTROOM_URL", fake.url)
    return bare


def arguments(fake: FakePostroom, at: int = -1) -> dict[str, Any]:
    return fake.seen[at].body["params"]["arguments"]


TOOLS: list[tuple[Sequence[str], str, object, dict[str, object], set[str]]] = [
    (
        ("mail", "send", "--as", "Ada", "--to", "Bo", "--to", "Cy", "-s", "Hello", "text"),
        "send_message",
        SENT,
        {
            "sender_name": "Ada",
            "to": ["Bo", "Cy"],
            "subject": "Hello",
            "body_md": "text",
            "importance": "normal",
            "ack_required": False,
        },
        {"count", "deliveries", "skipped"},
    ),
    (
        (
            *(
                "mail",
                "send",
                "--as",
                "Ada",
                "--broadcast",
                "-s",
                "S",
                "--importance",
                "urgent",
                "--ack-required",
            ),
            *("--thread", "t", "--topic", "x", "--cc", "C", "--bcc", "B", "--idempotency-key", "k", "text"),
        ),
        "send_message",
        SENT,
        {
            "sender_name": "Ada",
            "to": [],
            "cc": ["C"],
            "bcc": ["B"],
            "subject": "S",
            "body_md": "text",
            "importance": "urgent",
            "ack_required": True,
            "thread_id": "t",
            "topic": "x",
            "broadcast": True,
            "idempotency_key": "k",
        },
        {"count", "deliveries", "skipped"},
    ),
    (
        ("mail", "reply", "7", "--as", "Bo", "--all", "yes"),
        "reply_message",
        SENT,
        {
            "sender_name": "Bo",
            "message_id": 7,
            "body_md": "yes",
            "reply_all": True,
            "importance": "normal",
            "ack_required": False,
        },
        {"count", "deliveries", "skipped"},
    ),
    (
        ("mail", "inbox", "--as", "Bo", "--unread", "--urgent", "--since", "2026-01-01", "--after", "3"),
        "fetch_inbox",
        [INBOX],
        {
            "agent_name": "Bo",
            "limit": 20,
            "include_bodies": False,
            "unread_only": True,
            "urgent_only": True,
            "since": "2026-01-01",
            "after": 3,
        },
        {"messages"},
    ),
    (
        ("mail", "ack", "7", "--as", "Bo"),
        "acknowledge_message",
        ACK,
        {"agent_name": "Bo", "message_id": 7},
        {"message_id", "acknowledged", "acknowledged_at", "read", "read_at"},
    ),
    (
        ("mail", "search", "first", "--order", "best", "--limit", "5"),
        "search_messages",
        HITS,
        {"query": "first", "limit": 5, "order": "best", "cursor": 0},
        {"hits", "next", "query"},
    ),
    (
        ("mail", "thread", "t-1", "--summary"),
        "summarize_thread",
        SUMMARY,
        {"thread_id": "t-1"},
        set(SUMMARY),
    ),
    (
        ("agents", "list", "--retired"),
        "list_agents",
        {"agents": [AGENT], "next": None},
        {"include_retired": True, "limit": 200, "after": 0},
        {"agents", "next"},
    ),
    (("agents", "show", "Ada"), "whois", {**AGENT, "unread": 1}, {"agent_name": "Ada"}, {*AGENT, "unread"}),
    (
        ("agents", "request-contact", "Ben@harbour", "--as", "Ada", "--reason", "lights"),
        "request_contact",
        {"status": "pending"},
        {"agent_name": "Ada", "to": "Ben@harbour", "reason": "lights"},
        {"status"},
    ),
    (("agents", "retire", "Ada"), "retire_agent", AGENT, {"agent_name": "Ada"}, set(AGENT)),
    (("agents", "unretire", "Ada"), "unretire_agent", AGENT, {"agent_name": "Ada"}, set(AGENT)),
    (
        ("reservations", "list", "--as", "Bo"),
        "list_file_reservations",
        {"reservations": [HELD], "enforced_by": []},
        {"agent_name": "Bo", "limit": 500},
        {"reservations", "enforced_by"},
    ),
    (
        ("reservations", "reserve", "src/a.py", "src/b.py", "--as", "Ada", "--ttl", "60", "--shared"),
        "file_reservation_paths",
        {"granted": [HELD], "conflicts": CONFLICTS, "enforced_by": []},
        {"agent_name": "Ada", "paths": ["src/a.py", "src/b.py"], "ttl_seconds": 60, "exclusive": False},
        {"granted", "conflicts", "enforced_by"},
    ),
    (
        ("reservations", "release", "--as", "Ada", "--id", "3"),
        "release_file_reservations",
        {"released": [HELD]},
        {"agent_name": "Ada", "ids": [3]},
        {"released"},
    ),
    (
        ("reservations", "renew", "src/**", "--as", "Ada"),
        "renew_file_reservations",
        {"renewed": [HELD]},
        {"agent_name": "Ada", "paths": ["src/**"]},
        {"renewed"},
    ),
    (
        ("reservations", "check", "src/a.py", "--as", "Ada"),
        "check_file_reservations",
        {"conflicts": [], "enforced_by": []},
        {"agent_name": "Ada", "paths": ["src/a.py"], "exclusive": True},
        {"conflicts", "enforced_by"},
    ),
]


@pytest.mark.parametrize(("words", "tool", "answer", "sent", "keys"), TOOLS, ids=lambda one: "")
def test_a_command_calls_its_tool_and_prints_one_document(
    run: Run,
    fake: FakePostroom,
    folder: Path,
    words: Sequence[str],
    tool: str,
    answer: object,
    sent: dict[str, object],
    keys: set[str],
) -> None:
    fake.tools[tool] = lambda _: answer
    done = run(*words, "--json")
    assert (done.code, done.err) == (0, "")
    assert set(done.document) == keys
    assert arguments(fake) == {"project_key": str(folder), **sent}


@pytest.mark.parametrize(("words", "tool", "answer", "sent", "keys"), TOOLS, ids=lambda one: "")
def test_a_command_speaks_to_people_too(
    run: Run,
    fake: FakePostroom,
    words: Sequence[str],
    tool: str,
    answer: object,
    sent: dict[str, object],
    keys: set[str],
) -> None:
    del sent, keys
    fake.tools[tool] = lambda _: answer
    done = run(*words)
    assert (done.code, done.err) == (0, "")
    assert done.out.strip()
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(done.out)


@pytest.mark.parametrize(("words", "tool", "answer", "sent", "keys"), TOOLS, ids=lambda one: "")
def test_a_refusal_has_one_form_in_every_command(
    run: Run,
    fake: FakePostroom,
    words: Sequence[str],
    tool: str,
    answer: object,
    sent: dict[str, object],
    keys: set[str],
) -> None:
    del answer, sent, keys
    refusal = errors.UnknownAgent("no agent 'Ada'", value="Ada", details={"nearest": []}).as_dict()
    fake.tools[tool] = lambda _: {"error": refusal}
    as_json = run(*words, "--json")
    shown = refusal | {"remedy": remedies.as_commands(str(refusal["remedy"]))}
    assert (as_json.code, as_json.err, as_json.document) == (2, "", {"error": shown})
    for_people = run(*words)
    assert (for_people.code, for_people.out) == (2, "")
    assert for_people.err.splitlines() == [
        "no agent 'Ada'",
        f"remedy: {remedies.as_commands(refusal['remedy'])}",
    ]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("slug-of-it", "slug-of-it"),
        ("/abs/path", "/abs/path"),
        (".", "{here}"),
        ("./sub", "{here}/sub"),
        ("sub/deep", "{here}/sub/deep"),
        ("..", "{above}"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="POSIX paths")
def test_a_project_is_a_path_made_absolute_or_a_slug(
    run: Run, fake: FakePostroom, folder: Path, given: str, sent: str
) -> None:
    fake.tools["list_agents"] = lambda _: {"agents": [], "next": None}
    assert run("agents", "list", "--project", given).code == 0
    assert arguments(fake)["project_key"] == sent.format(here=folder, above=folder.parent)


def test_a_message_that_came_is_marked_as_read(run: Run, fake: FakePostroom) -> None:
    fake.tools["get_message"] = lambda _: MESSAGE
    fake.tools["mark_message_read"] = lambda _: MARK
    assert run("mail", "read", "7", "--as", "bo", "--json").document == {"message": MESSAGE, "marked": MARK}


@pytest.mark.parametrize("words", [("--as", "Ada"), ("--as", "Bo", "--peek")])
def test_an_own_message_and_a_glance_mark_nothing(run: Run, fake: FakePostroom, words: Sequence[str]) -> None:
    fake.tools["get_message"] = lambda _: MESSAGE
    assert run("mail", "read", "7", *words, "--json").document == {"message": MESSAGE, "marked": None}
    assert len(fake.seen) == 1


@pytest.mark.parametrize(
    ("command", "tool", "words"),
    [
        ("read", "get_message", ("--peek",)),
        ("ack", "acknowledge_message", ()),
        ("reply", "reply_message", ("Yes.",)),
    ],
)
def test_the_newest_message_of_the_inbox_needs_no_number(
    run: Run, fake: FakePostroom, command: str, tool: str, words: Sequence[str]
) -> None:
    fake.tools |= {"fetch_inbox": lambda _: [INBOX], "get_message": lambda _: MESSAGE}
    fake.tools |= {"acknowledge_message": lambda _: ACK, "reply_message": lambda _: SENT}
    assert run("mail", command, "latest", *words, "--as", "Bo").code == 0
    asked, acted = fake.seen
    assert asked.body["params"]["arguments"]["limit"] == 1
    assert acted.body["params"]["name"] == tool
    assert acted.body["params"]["arguments"]["message_id"] == 7
    fake.tools["fetch_inbox"] = lambda _: []
    empty = run("mail", command, "latest", *words, "--as", "Bo")
    assert (empty.code, "the inbox of Bo is empty" in empty.err) == (2, True)
    assert run("mail", command, "newest", *words, "--as", "Bo").code == 2


def test_a_message_is_shown_with_its_head_and_text(run: Run, fake: FakePostroom) -> None:
    fake.tools["get_message"] = lambda _: MESSAGE
    shown = run("mail", "read", "7", "--as", "Ada").out
    head, _, text = shown.partition("\n\n")
    assert head.splitlines()[:3] == ["Message: 7", "From: Ada", "To: Bo"]
    assert text == "First line\nSecond\n"
    fake.tools["fetch_inbox"] = lambda _: [INBOX]
    assert "Second" in run("mail", "inbox", "--as", "Bo", "--bodies").out


def test_an_inbox_that_comes_in_several_answers_is_listed_whole(run: Run, fake: FakePostroom) -> None:
    asked: list[Any] = []

    def answered(request: Any) -> object:
        asked.append(request.body["params"]["arguments"])
        seq = asked[-1].get("before", 10) - 1
        more = {"more": True} if len(asked) < 3 else {}
        return [{**INBOX, "id": seq, "seq": seq, **more}]

    fake.tools["fetch_inbox"] = answered
    listed = json.loads(run("mail", "inbox", "--as", "Bo", "--limit", "50", "--json").out)["messages"]
    assert [one["id"] for one in listed] == [9, 8, 7]
    assert not any("more" in one for one in listed)
    assert [(one.get("before"), one["limit"]) for one in asked] == [(None, 50), (9, 49), (8, 48)]


def test_what_an_agent_wrote_cannot_steer_the_terminal(run: Run, fake: FakePostroom) -> None:
    hostile = {**MESSAGE, "subject": "a\x1b]0;x\x07\nTo: Eve", "body_md": "\x1b[2J\u202etxt.exe\x9b1m\ttab\n"}
    fake.tools["get_message"] = lambda _: hostile
    shown = run("mail", "read", "7", "--as", "Ada").out
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)
    assert "Subject: a\\x1b]0;x\\x07 To: Eve\n" in shown
    assert "\ttab" in shown


def test_an_agent_is_registered_in_a_folder_that_becomes_a_project(
    run: Run, fake: FakePostroom, folder: Path
) -> None:
    fake.tools["ensure_project"] = lambda _: {"id": 1, "slug": "harbour"}
    fake.tools["register_agent"] = lambda _: AGENT
    assert run("agents", "register", "Ada").out == "Ada is registered in harbour\n"
    fake.seen.clear()
    done = run("agents", "register", "Ada", "--program", "p", "--model", "m", "--task", "t", "--json")
    assert done.document == {**AGENT, "project": "harbour"}
    assert arguments(fake, 0) == {"human_key": str(folder)}
    assert arguments(fake) == {
        "project_key": str(folder),
        "name": "Ada",
        "program": "p",
        "model": "m",
        "task_description": "t",
    }


def test_tokens_are_the_administration_s(run: Run, fake: FakePostroom, folder: Path) -> None:
    fake.admin[("POST", "/admin/agent-token")] = lambda _: {"token": "pra_new"}
    fake.admin[("DELETE", "/admin/agent-token")] = lambda _: {"revoked": True}
    assert run("agents", "token", "Ada").out == "pra_new\n"
    assert run("agents", "token", "Ada", "--json").document == {"token": "pra_new"}
    assert run("agents", "revoke-token", "Ada", "--json").document == {"revoked": True}
    assert [one.body for one in fake.seen] == [{"project": str(folder), "agent": "Ada"}] * 3


def test_a_check_that_finds_a_conflict_ends_with_one_and_a_refused_check_with_two(
    run: Run, fake: FakePostroom
) -> None:
    fake.tools["check_file_reservations"] = lambda _: {"error": errors.UnknownAgent("no").as_dict()}
    assert run("reservations", "check", "src/a.py", "--as", "Adda").code == 2
    fake.tools["check_file_reservations"] = lambda _: {"conflicts": CONFLICTS, "enforced_by": []}
    done = run("reservations", "check", "src/a.py", "--as", "Ada")
    assert done.code == 1
    assert "conflict on src/a.py: Bo holds src/** until 2026-11-21T10:00:00.000Z (edit)" in done.out
    assert (
        run("reservations", "check", "src/a.py", "--as", "Ada", "--json").document["conflicts"] == CONFLICTS
    )


def test_nothing_named_is_not_everything_released(run: Run, fake: FakePostroom) -> None:
    assert run("reservations", "release", "--as", "Ada").code == 2
    assert fake.seen == []
    fake.tools["release_file_reservations"] = lambda _: {"released": []}
    assert run("reservations", "release", "--as", "Ada", "--all").code == 0
    assert set(arguments(fake)) == {"project_key", "agent_name"}


@pytest.mark.parametrize(
    ("words", "tool", "key"),
    [
        (("release", "9999"), "release_file_reservations", "released"),
        (("release", "--id", "3"), "release_file_reservations", "released"),
        (("renew", "src/**"), "renew_file_reservations", "renewed"),
        (("renew",), "renew_file_reservations", "renewed"),
    ],
)
def test_a_command_that_changed_no_reservation_ends_with_one(
    run: Run, fake: FakePostroom, words: Sequence[str], tool: str, key: str
) -> None:
    fake.tools[tool] = lambda _: {key: []}
    done = run("reservations", *words, "--as", "Ada", "--json")
    assert (done.code, done.document) == (1, {key: []})


@pytest.mark.parametrize("words", [("mail", "inbox"), ("reservations", "renew"), ("mail", "read", "7")])
def test_the_agent_of_the_environment_acts_unless_the_command_names_another(
    run: Run, fake: FakePostroom, folder: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str]
) -> None:
    fake.tools |= {
        "fetch_inbox": lambda _: [INBOX],
        "renew_file_reservations": lambda _: {"renewed": [HELD]},
        "get_message": lambda _: {**MESSAGE, "to": ["Cy"]},
    }
    assert run(*words).code == 2
    assert fake.seen == [], "nobody acts"
    monkeypatch.setenv("POSTROOM_AGENT", "Ada")
    assert run(*words).code == 0
    assert (arguments(fake)["agent_name"], arguments(fake)["project_key"]) == ("Ada", str(folder))
    assert run(*words, "--as", "Bo").code == 0
    assert arguments(fake)["agent_name"] == "Bo"


def test_an_agent_with_its_project_acts_there_unless_a_project_is_given(
    run: Run, fake: FakePostroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.tools["fetch_inbox"] = lambda _: [INBOX]
    monkeypatch.setenv("POSTROOM_AGENT", "Ada@harbour")
    assert run("mail", "inbox").code == 0
    assert (arguments(fake)["agent_name"], arguments(fake)["project_key"]) == ("Ada", "harbour")
    assert run("mail", "inbox", "--project", "yard").code == 0
    assert (arguments(fake)["agent_name"], arguments(fake)["project_key"]) == ("Ada", "yard")
    assert run("mail", "inbox", "--as", "Bo@quay").code == 0
    assert (arguments(fake)["agent_name"], arguments(fake)["project_key"]) == ("Bo", "quay")


def test_remedies_in_a_document_name_commands_too(run: Run, fake: FakePostroom) -> None:
    unknown = errors.UnknownMessage("Ada has no message 999", value=999).as_dict()
    fake.tools["get_message"] = lambda _: {"error": unknown}
    done = run("mail", "read", "999", "--as", "Ada", "--json")
    assert done.document["error"]["remedy"] == (
        "take the id from `postroom mail inbox` or `postroom mail search`"
    )


def test_the_text_comes_from_a_file_or_from_stdin(
    run: Run, fake: FakePostroom, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.tools["send_message"] = lambda _: SENT
    (folder / "message.md").write_bytes("\ufeffgrüße\n".encode())
    send = ("mail", "send", "--as", "Ada", "--to", "Bo", "-s", "S")
    assert run(*send, "--body-file", "message.md").code == 0
    assert arguments(fake)["body_md"] == "grüße\n"
    for words in (("-",), ("--body-file", "-")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from stdin"), encoding="utf-8"))
        assert run(*send, *words).code == 0
        assert arguments(fake)["body_md"] == "from stdin"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "invalid_argument"),
        (("text", "--body-file", "x"), "invalid_argument"),
        (("--body-file", "missing"), "invalid_path"),
        (("--body-file", "binary"), "invalid_argument"),
        (("text", "--attach", "missing"), "invalid_path"),
        (("text", "--attach", "."), "invalid_path"),
        (("text", "--attach", "huge"), "too_large"),
    ],
)
def test_a_message_that_cannot_be_made_is_not_sent(
    run: Run, fake: FakePostroom, folder: Path, words: Sequence[str], code: str
) -> None:
    (folder / "binary").write_bytes(b"\xff\xfe\xfa")
    with (folder / "huge").open("wb") as huge:
        huge.truncate(600 * 1024 * 1024)  # a hole: it takes no room on the disk
    done = run("mail", "send", "--as", "Ada", "--to", "Bo", "-s", "S", *words, "--json")
    assert (done.code, done.document["error"]["code"]) == (2, code)
    assert fake.seen == []


def test_attachments_travel_with_their_content(run: Run, fake: FakePostroom, folder: Path) -> None:
    fake.tools["send_message"] = lambda _: SENT
    (folder / "a.bin").write_bytes(b"\x00\x01")
    assert run("mail", "send", "--as", "Ada", "--to", "Bo", "-s", "S", "t", "--attach", "a.bin").code == 0
    assert arguments(fake)["attachments"] == [{"name": "a.bin", "content_base64": "AAE="}]


@pytest.mark.parametrize(
    "words",
    [
        ("mail", "send", "--as", "Ada"),
        ("mail", "nothing"),
        ("mail", "ack", "zero", "--as", "Ada"),
        ("mail", "inbox", "--as", "Ada", "--limit", "0"),
        ("mail", "send", "--as", "A", "-s", "S", "t", "--importance", "huge"),
        ("nothing",),
        ("restore",),
    ],
)
def test_wrong_usage_ends_with_two_in_either_form(bare: Run, words: Sequence[str]) -> None:
    for_people = bare(*words)
    assert (for_people.code, for_people.out) == (2, "")
    assert "Error: " in for_people.err
    as_json = bare(*words, "--json")
    assert (as_json.code, as_json.document["error"]["code"]) == (2, "invalid_argument")


def test_json_after_two_dashes_is_text(bare: Run) -> None:
    done = bare("mail", "send", "--as", "A", "-s", "S", "--", "--json")
    assert (done.code, done.out) == (75, "")


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("open",),
        ("mail", "inbox", "--as", "Ada"),
        ("agents", "list"),
        ("reservations", "list"),
        ("agents", "token", "Ada"),
    ],
)
def test_without_a_server_a_command_ends_with_seventy_five(bare: Run, words: Sequence[str]) -> None:
    done = bare(*words)
    assert (done.code, done.out) == (75, "")
    assert "remedy: start it with `postroom up`" in done.err
    assert bare(*words, "--json").document["error"]["retryable"] is True


def test_a_note_of_a_server_that_is_gone_says_where_it_was(bare: Run, tmp_path: Path) -> None:
    with FakePostroom() as gone:
        pass
    places.write_server_note(
        tmp_path / "data", places.ServerNote(url=gone.url, pid=1, version="0", started_at=0)
    )
    done = bare("status", "--json")
    assert (done.code, done.document["error"]["value"]) == (75, gone.url)


def test_status_says_that_a_server_runs(run: Run, fake: FakePostroom) -> None:
    fake.admin[("GET", "/admin/status")] = lambda _: {"version": "9", "counts": {"agents": 2}}
    document = run("status", "--json").document
    assert document == {"running": True, "url": fake.url, "version": "9", "counts": {"agents": 2}}
    assert "counts:\n  agents: 2" in run("status").out


def test_open_prints_the_link_and_nothing_else(run: Run, fake: FakePostroom) -> None:
    fake.admin[("POST", "/admin/login-code")] = lambda _: {"url": f"{fake.url}/login?code=prl_x"}
    assert run("open").out == f"{fake.url}/login?code=prl_x\n"
    assert set(run("open", "--json").document) == {"url"}


def test_doctor_asks_the_server_and_its_finding_is_the_exit_code(run: Run, fake: FakePostroom) -> None:
    fake.admin[("GET", "/admin/doctor")] = lambda _: {"ok": True, "checks": []}
    assert run("doctor", "--json").code == 0
    fake.admin[("GET", "/admin/doctor")] = lambda _: {"ok": False, "checks": []}
    assert run("doctor", "--json").code == 1


def test_version_answers_with_a_server_and_without_one(run: Run, fake: FakePostroom) -> None:
    keys = {"version", "server", "python", "system"}
    without = run("version", "--json")
    assert (without.code, set(without.document), without.document["server"]) == (0, keys, None)
    fake.admin[("GET", "/healthz")] = lambda _: {"status": "ok", "version": "9.9"}
    assert run("version", "--json").document["server"] == "9.9"
    assert run("version").out.endswith(", server 9.9\n")


def test_config_show_names_the_origin_of_every_setting(bare: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_PORT", "1234")
    found = {one["name"]: one for one in bare("config", "show", "--json").document["settings"]}
    assert set(found["port"]) == {"name", "value", "origin", "description"}
    assert (found["port"]["value"], found["port"]["origin"]) == ("1234", "env POSTROOM_PORT")
    assert "port\t1234\tenv POSTROOM_PORT" in bare("config", "show").out


def test_a_group_that_shows_one_thing_shows_it_without_a_second_word(run: Run, fake: FakePostroom) -> None:
    fake.admin[("GET", "/admin/cluster")] = lambda _: {"servers": [], "work": []}
    for group, command in (("config", "show"), ("cluster", "status")):
        whole = run(group, command, "--json")
        assert whole.code == 0
        for words in ((group, "--json"), (group, "--json", command)):
            assert run(*words).document == whole.document
        assert run(group).out == run(group, command).out


def test_a_wrong_setting_ends_with_seventy_eight(bare: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_PORT", "many")
    done = bare("config", "show", "--json")
    assert (done.code, done.document["error"]["code"]) == (78, "config_error")


def test_a_server_of_another_kind_is_a_failure_and_no_traceback(run: Run, fake: FakePostroom) -> None:
    fake.tools["list_agents"] = lambda _: ["surprise"]
    done = run("agents", "list")
    assert done.code == 1
    assert "Traceback" not in done.err
    fake.rpc["tools/call"] = lambda _: Raw(200, b"<html>", "text/html")
    assert run("agents", "list").code == 1


def test_remedies_name_commands_and_not_the_tools_of_agents() -> None:
    assert remedies.as_commands(errors.UnknownAgent.default_remedy) == (
        "run `postroom agents register` first, or `postroom agents list` to see who is there"
    )
    assert remedies.as_commands("`search_messages` finds threads") == "`postroom mail search` finds threads"
    assert remedies.as_commands("ask the holder") == "ask the holder"
    assert remedies.as_commands(errors.ContactRequired.default_remedy) == (
        "run `postroom agents request-contact` and wait for the answer"
    )
    assert remedies.as_commands("take it from list_file_reservations, or fetch_inbox_events") == (
        "take it from `postroom reservations list`, or `postroom watch`"
    )


def test_every_tool_has_a_command_that_exists_or_a_reason_why_it_has_none() -> None:
    assert set(remedies.COMMANDS).isdisjoint(remedies.FOR_AGENTS)
    assert set(remedies.COMMANDS) | set(remedies.FOR_AGENTS) == set(OPERATIONS)
    described = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert [said for said in remedies.COMMANDS.values() if f"\n## postroom {said}\n" not in described] == []


def test_a_table_is_drawn_for_a_screen_and_plain_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a\tb", "\x1b[1m[red]x[/red]"), (None, 2)]
    assert show.table(("X", "Y"), rows, none="none") == "X\tY\na b\t\\x1b[1m[red]x[/red]\n\t2"
    assert show.table(("X", "Y"), [], none="none") == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    drawn = show.table(("X", "Y"), rows, none="none")
    assert drawn.splitlines()[1].split() == ["a", "b", "\\x1b[1m[red]x[/red]"]
    assert "\x1b" not in drawn
    assert show.table(("X", "Y"), [], none="none") == "none"


def test_a_narrow_screen_breaks_no_id_and_puts_the_reason_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    run_id = "run_0123456789abcdef0123456789abcdef"
    rows = [(run_id, "GreenLake@home-somebody-work", "failed", "2026-11-22T16:38:08.123Z", "it said no " * 9)]
    drawn = show.table(("ID", "AGENT", "STATE", "SINCE", "WHY"), rows, none="none")
    assert [row.split() for row in drawn.splitlines()[:2]] == [
        ["ID", "AGENT", "STATE"],
        [run_id, "GreenLake@home-somebody-work", "failed"],
    ]
    assert drawn.splitlines()[2].startswith("  2026-11-22 16:38  it said no it said no")


@pytest.mark.parametrize(
    "heads",
    [
        ("NAME", "PROGRAM", "MODEL", "TASK", "LAST ACTIVE"),
        ("NAME", "WHEN", "NEXT", "TO", "SUBJECT", "FAILED"),
        ("NAME", "SCOPES", "PROJECT", "STATE", "EXPIRES", "LAST USED", "ID"),
        ("ID", "FROM", "SUBJECT", "IMPORTANCE", "STATE", "AT"),
        ("ADDRESS", "CHAT", "CONNECTED", "UNREAD"),
        ("PLATFORM", "USER", "ROLE", "NAME", "FROM"),
        ("CHANNEL", "STATE", "SINCE", "RECEIVED", "SENT", "WHY"),
        ("SERVER", "ADDRESS", "IS", "VERSION", "SINCE"),
        ("WORK", "DONE BY", "SINCE", "UNTIL"),
        ("SETTING", "VALUE", "FROM"),
    ],
)
def test_names_and_ids_are_whole_on_a_narrow_screen(
    monkeypatch: pytest.MonkeyPatch, heads: Sequence[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    names = {
        "NAME",
        "PROJECT",
        "ID",
        "FROM",
        "ADDRESS",
        "CHAT",
        "USER",
        "CHANNEL",
        "SERVER",
        "DONE BY",
        "SETTING",
    }
    long = "Agent-with-a-rather-long-name-number"
    rows = [tuple(f"{long}-{head}-{number}".lower() for head in heads) for number in (1, 2)]
    drawn = show.table(heads, rows, none="")
    for row in rows:
        assert [
            cell for head, cell in zip(heads, row, strict=True) if head in names and cell not in drawn
        ] == []
    longer = "n" * 100
    assert longer in show.table(("NAME", *heads), [[longer, *heads]], none=""), "wider than the screen, too"


def test_a_moment_has_one_form_on_a_screen_and_is_whole_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, moment = ("ID", "SUBJECT", "AT"), "2026-11-22T16:38:08.123Z"
    short, long = (1, "lights", moment), (2, "lights " * 20, moment)
    assert moment in show.table(heads, [short], none="")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    for rows in ([short], [short, long]):
        assert show.table(heads, rows, none="").splitlines()[1].endswith(" 2026-11-22 16:38")


def test_a_moment_on_a_screen_is_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    heads, rows = ("ID", "AT"), [(1, "2026-11-22T02:38:08.123Z"), (2, "2026-11-22T02:38:08+00:00")]
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert [row.split() for row in show.table(heads, rows, none="").splitlines()[1:]] == [
            ["1", "2026-11-21", "21:38"],
            ["2", "2026-11-21", "21:38"],
        ]
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def test_a_row_is_one_line_and_what_must_be_whole_goes_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    heads, long, at = (
        ("NAME", "PROGRAM", "MODEL", "TASK", "LAST ACTIVE"),
        "looks after\nthe lights " * 3,
        "now",
    )
    drawn = show.table(heads, [("Ada", long, long, long, at), ("Bo", "p", "m", "t", at)], none="")
    assert [row.split()[0] for row in drawn.splitlines()] == ["NAME", "Ada", "Bo"]
    assert drawn.splitlines()[1].count("…") == 3
    folder = "/srv/" + "lighthouse/" * 8
    drawn = show.table(("PROJECT", "FOLDER"), [("srv-lighthouse", folder)], none="")
    assert drawn.splitlines() == ["PROJECT", "srv-lighthouse", f"  {folder}"]


def test_progress_is_drawn_on_a_terminal_and_nothing_of_it_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with show.progress(as_json=False):
        progress.tell("copying: rows", 1_000, 2_000)
    drawn = re.sub(r"\x1b\[[0-9;?]*m", "", capsys.readouterr().err)
    assert re.search(r"copying: rows .* 1,000 of 2,000 \(50 %\) 0:00:0", drawn)
    assert drawn.endswith("\x1b[1A\x1b[2K")


def test_progress_in_a_pipe_is_a_line_when_work_is_long_and_then_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    lines = progress.Lines(lambda text: print(text, file=sys.stderr), lambda: now[0])
    for instant in range(16):
        now[0] = float(instant)
        lines("copying: rows", instant, 15)
    lines("joining")
    assert capsys.readouterr().err.splitlines() == [
        "copying: rows: 2 of 15 (13 %), after 2 s",
        "copying: rows: 7 of 15 (46 %), after 7 s",
        "copying: rows: 12 of 15 (80 %), after 12 s",
    ]


def test_progress_is_not_told_where_a_program_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with show.progress(as_json=True):
        progress.tell("copying: rows", 1, 2)
    assert capsys.readouterr().err == ""


def python(code: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False, **more
    )


HEAVY = {
    "mcp",
    "starlette",
    "jinja2",
    "rich",
    "msgspec",
    "sqlite3",
    "structlog",
    "uvicorn",
    "postroom.app.config",
}


@each_row(
    "words, heavy",
    [
        (["--help"], HEAVY | {"pydantic"}),
        # typer itself loads pydantic as soon as a command has parameters.
        (["mail", "--help"], HEAVY),
        (["up", "--help"], HEAVY),
        (["agents", "list", "--data"], HEAVY),
    ],
)
def test_help_and_usage_load_nothing_heavy(words: list[str], heavy: set[str]) -> None:
    code = f"""
import sys
from postroom.cli.main import main
main({words})
print("heavy:", sorted({heavy} & set(sys.modules)))
"""
    done = python(code)
    assert done.stdout.endswith("heavy: []\n"), done.stdout + done.stderr


@pytest.mark.parametrize(
    "words", [["--no-start"], ["--tools", "core", "--data-dir", "some where", "--no-start"]]
)
def test_the_stdio_entry_loads_less_still(words: list[str]) -> None:
    code = f"""
import sys
from postroom.cli.main import main
assert main(["mcp", *{words}]) == 0
heavy = {{"typer", "rich", "pydantic", "asyncio", "subprocess", "filelock"}}
print("heavy:", sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = python(code, stdin=subprocess.DEVNULL)
    assert done.stderr == "heavy: []\n", done.stderr


def test_the_stdio_entry_has_help_and_refuses_what_it_does_not_know(bare: Run) -> None:
    assert "--no-start" in bare("mcp", "--help").out
    assert bare("mcp", "--data-dir").code == 2
    assert bare("mcp", "--nothing").code == 2
    for words in (["--tools"], ["--tools", "few"], ["--tools", "core", "--tools"], ["core"]):
        assert bare("mcp", *words).code == 2


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_reader_that_goes_away_ends_a_command_quietly(fake: FakePostroom, tmp_path: Path) -> None:
    fake.tools["list_agents"] = lambda _: {"agents": [AGENT] * 1000, "next": None}
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "postroom", "agents", "list"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "POSTROOM_URL": fake.url, "POSTROOM_DATA_DIR": str(tmp_path)},
        timeout=30,
        check=False,
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "words", [("mail", "inbox", "--as", "Ada"), ("mail", "inbox", "--as", "Ada", "--json")]
)
def test_ctrl_c_ends_a_command_quietly(
    run: Run, fake: FakePostroom, monkeypatch: pytest.MonkeyPatch, words: Sequence[str]
) -> None:
    def interrupted(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("postroom.cli.client.Server.call_tool", interrupted)
    done = run(*words)
    assert (done.code, done.out, done.err) == (130, "", "")


def test_the_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"postroom {__version__}")
    assert main(["--help"]) == 0
    assert "--version" in capsys.readouterr().out


def test_a_reservation_says_its_conflict_and_its_reason_whole_on_a_narrow_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    heads = ("ID", "AGENT", "PATH", "KIND", "UNTIL", "REASON")
    row = (
        1,
        "Ada",
        "piers/**",
        "exclusive, conflict",
        "2026-11-22T16:38:08Z",
        "placing the lights on the pier",
    )
    drawn = show.table(heads, [row], none="")
    assert "…" not in drawn
    assert drawn.splitlines()[1].endswith("exclusive, conflict  2026-11-22 16:38")
    assert drawn.splitlines()[2] == "  placing the lights on the pier"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("mail", "read", "abc", "--as", "Ada"), "Invalid value for 'ID': 'abc' is no number of a message"),
        (
            ("mail", "read", "0", "--as", "Ada"),
            "Invalid value for 'ID': '0' is no number of a message; give a number from 1, or latest",
        ),
        (
            ("mail", "inbox", "--limit", "x", "--as", "Ada"),
            "Invalid value for '--limit': it is no whole number",
        ),
    ],
)
def test_a_value_that_is_no_number_is_told_in_words(bare: Run, words: Sequence[str], told: str) -> None:
    done = bare(*words)
    assert (done.code, told in done.err) == (2, True), done.err
    as_json = bare(*words, "--json")
    assert told in as_json.out + as_json.err


@pytest.mark.parametrize("query", ["", '"', "* ()"])
def test_a_search_for_no_word_is_not_told_as_one_that_found_nothing(
    fake: FakePostroom, run: Run, query: str
) -> None:
    fake.tools["search_messages"] = lambda _: {"hits": [], "next": None, "query": query}
    assert run("mail", "search", query).err == "nothing was looked for: the query holds no word\n"
    fake.tools["search_messages"] = lambda _: {"hits": [], "next": None, "query": "pier"}
    assert run("mail", "search", "pier").err == "nothing was found\n"


def test_a_message_that_comes_in_parts_is_shown_whole(fake: FakePostroom, run: Run) -> None:
    def parts(seen: Seen) -> object:
        offset = seen.body["params"]["arguments"].get("offset", 0)
        left = {"truncated": True, "characters_left": 3, "next_offset": 6}
        return {**MESSAGE, "body_md": "begin " if offset == 0 else "end", **(left if offset == 0 else {})}

    fake.tools["get_message"] = parts
    shown = run("mail", "read", "7", "--as", "Zed")
    assert shown.out.endswith("begin end\n")
    told = json.loads(run("mail", "read", "7", "--as", "Zed", "--json").out)
    assert told["message"]["body_md"] == "begin end"
    assert "truncated" not in told["message"]


def test_the_files_of_a_message_are_saved_and_replace_none(
    fake: FakePostroom, run: Run, tmp_path: Path
) -> None:
    files = {
        "a" * 64: ("plan.txt", b"the plan"),
        "b" * 64: ("../../plan.txt", b"another"),
        "c" * 64: ("x", b"\x00"),
    }
    attached = [{"name": name, "size": len(raw), "sha256": key} for key, (name, raw) in files.items()]
    fake.tools["get_message"] = lambda _: {**MESSAGE, "attachments": attached}

    def content(seen: Seen) -> Raw:
        asked = dict(parse_qsl(seen.path.partition("?")[2]))
        assert asked["agent_name"] == "Zed"
        return Raw(200, files[asked["sha256"]][1], "application/octet-stream")

    fake.admin["GET", "/v1/get_attachment"] = content
    for _ in range(2):  # the second time the files are there already
        saved = run("mail", "save", "7", "--as", "Zed", "--to", str(tmp_path / "in"), "--json").document[
            "saved"
        ]
        assert [Path(one["path"]).name for one in saved] == ["plan.txt", "plan (2).txt", "x"]
        kept = {path.name: path.read_bytes() for path in (tmp_path / "in").iterdir()}
        assert kept == {"plan.txt": b"the plan", "plan (2).txt": b"another", "x": b"\x00"}
    one = run("mail", "save", "7", "--as", "Zed", "--to", str(tmp_path / "one"), "--name", "x")
    assert one.out == f"Saved {tmp_path / 'one' / 'x'} (1 bytes).\n"
    unknown = run("mail", "save", "7", "--as", "Zed", "--to", str(tmp_path / "none"), "--name", "y")
    assert unknown.code == 2
    assert "plan.txt" in unknown.err
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("in the way")
    refused = run("mail", "save", "7", "--as", "Zed", "--to", str(tmp_path / "file"))
    assert "cannot be written" in refused.err


@pytest.mark.skipif(os.name == "nt", reason="POSIX paths")
def test_the_projects_to_merge_and_to_move_may_be_folders_named_plainly(
    run: Run, fake: FakePostroom, folder: Path
) -> None:
    (folder / "pa").mkdir()
    there = {"slug": "x", "human_key": "/x"}
    fake.admin["POST", "/admin/projects/move"] = lambda _: there
    fake.admin["POST", "/admin/projects/merge"] = lambda _: {"from": there, "into": there, "refusals": ["no"]}
    for given, sent in [
        ("pa", f"{folder}/pa"),
        ("pb", "pb"),
        ("./pb", f"{folder}/pb"),
        ("/srv/pa", "/srv/pa"),
    ]:
        assert run("projects", "move", given, "pa").code == 0
        assert fake.seen[-1].body == {"project": sent, "folder": f"{folder}/pa"}
        run("projects", "merge", given, "pa", "--dry-run")
        asked = next(one.body for one in reversed(fake.seen) if one.path == "/admin/projects/merge")
        assert (asked["source"], asked["target"]) == (sent, f"{folder}/pa")
    assert "a plain name that is a folder here" in " ".join(run("projects", "merge", "--help").out.split())
