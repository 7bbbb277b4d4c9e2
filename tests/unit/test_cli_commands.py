"""Effects of commands beyond their transcripts: their agent, their input, their failures, their drawing."""

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from typer.main import get_command

from cli_room import Done, Run, arguments
from cli_samples import ACK, AGENT, HELD, INBOX, MESSAGE, SENT, TOKENS
from fake_postroom import FakePostroom, Raw, Seen
from postroom.app import places
from postroom.cli import remedies, show
from postroom.cli.commands import tree
from postroom.contracts import errors, progress
from postroom.mail.operations import OPERATIONS
from postroom.version import __version__
from table_rows import each_row

ROOT = Path(__file__).resolve().parents[2]
BYTES = os.fsdecode(b"\xff\xfe")
SEND = ("mail", "send", "--as", "Ada", "--to", "Bo", "-s", "S")


def test_a_project_is_a_path_made_absolute_or_a_slug(run: Run, fake: FakePostroom, folder: Path) -> None:
    assert (run("reservations", "release", "--as", "Ada").code, fake.seen) == (2, []), "not everything"
    fake.tools["list_agents"] = lambda _: {"agents": [], "next": None}
    here = {"slug-of-it": "slug-of-it", "/abs/path": "/abs/path", ".": f"{folder}", "./sub": f"{folder}/sub"}
    for given, sent in (here | {"sub/deep": f"{folder}/sub/deep", "..": f"{folder.parent}"}).items():
        assert run("agents", "list", "--project", given).code == 0
        assert arguments(fake)["project_key"] == sent
    fake.tools |= {"ensure_project": lambda _: {"slug": "harbour"}, "register_agent": lambda _: AGENT}
    assert run("agents", "register", "Ada").code == 0
    assert arguments(fake, -2) == {"human_key": str(folder)}, "it becomes a project"


def test_two_numbers_of_a_task_to_claim_are_refused(run: Run, fake: FakePostroom) -> None:
    done = run("tasks", "claim", "2", "--id", "3", "--as", "Bo")
    assert (done.code, fake.seen) == (2, [])
    assert "use either 2 or --id 3, not both" in done.err


@each_row(
    "line, tool, field, sent",
    [
        ("tasks claim task-32 --as Bo", "claim_task", "task_id", 32),
        ("tasks claim --id #32 --as Bo", "claim_task", "task_id", 32),
        ("tasks update Task_32 --as Bo --title x", "update_task", "task_id", 32),
        ("tasks done tasks-32 --as Bo --epoch 1", "done_task", "task_id", 32),
        ("tasks list --state Ready", "list_tasks", "state", "ready"),
        ("tasks update 32 --as Bo --priority HIGH", "update_task", "priority", "high"),
        ("notes end note-3 --as Bo", "end_note", "note_id", 3),
        ("subscriptions end Subscription-3 --as Bo", "end_subscription", "subscription_id", 3),
        ("mail ack message-8 --as Bo", "acknowledge_message", "message_id", 8),
        ("mail send --as Bo --to Cy -s S text --importance High", "send_message", "importance", "high"),
        (
            "reservations release --id reservation-4 --id #5 --as Bo",
            "release_file_reservations",
            "ids",
            [4, 5],
        ),
    ],
)
def test_commands_read_numbers_and_choices_as_tools_do(
    run: Run, fake: FakePostroom, line: str, tool: str, field: str, sent: object
) -> None:
    run(*line.split())
    assert (fake.seen[-1].body["params"]["name"], arguments(fake)[field]) == (tool, sent)


@each_row(
    "line",
    [
        "tasks claim note-32 --as Bo",
        "tasks claim 1,234 --as Bo",
        "tasks claim task-0 --as Bo",
        "tasks claim task-32b --as Bo",
        "notes end task-3 --as Bo",
        "reservations release --id -4 --as Bo",
        "mail read task-7 --as Bo",
        "tasks list --state nope",
    ],
)
def test_commands_refuse_a_number_of_another_kind(run: Run, fake: FakePostroom, line: str) -> None:
    done = run(*line.split())
    assert (done.code, fake.seen, "Value error" in done.err) == (2, [], False), done


def test_every_choice_may_be_written_in_upper_case() -> None:
    def exact(command: Any, *path: str) -> list[str]:
        if hasattr(command, "commands"):
            return [found for name, one in command.commands.items() for found in exact(one, *path, name)]
        kinds = [(one.name, one.type_descriptor) for one in command.params if hasattr(one, "type_descriptor")]
        return [
            f"{' '.join(path)} {name}"
            for name, kind in kinds
            if "Literal[" in str(kind.annotation) and kind.parameter_info.case_sensitive
        ]

    assert exact(get_command(tree())) == []


@each_row(
    "command, tool, words",
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
    asked, acted = fake.seen[-2:]
    assert asked.body["params"]["arguments"]["limit"] == 1
    assert (acted.body["params"]["name"], acted.body["params"]["arguments"]["message_id"]) == (tool, 7)
    fake.tools["fetch_inbox"] = lambda _: []
    empty = run("mail", command, "latest", *words, "--as", "Bo")
    assert (empty.code, "the inbox of Bo is empty" in empty.err) == (2, True)
    assert run("mail", command, "newest", *words, "--as", "Bo").code == 2


def test_an_inbox_that_comes_in_several_answers_is_listed_whole(run: Run, fake: FakePostroom) -> None:
    asked: list[Any] = []

    def answered(request: Any) -> object:
        asked.append(request.body["params"]["arguments"])
        seq = asked[-1].get("before", 10) - 1
        return [{**INBOX, "id": seq, "seq": seq, **({"more": True} if len(asked) < 3 else {})}]

    fake.tools["fetch_inbox"] = answered
    listed = run("mail", "inbox", "--as", "Bo", "--limit", "50", "--json").document["messages"]
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


@each_row("words", [("mail", "inbox"), ("reservations", "renew"), ("mail", "read", "7")])
def test_the_agent_of_the_environment_acts_unless_the_command_names_another(
    run: Run, fake: FakePostroom, folder: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str]
) -> None:
    fake.tools |= {"fetch_inbox": lambda _: [INBOX], "get_message": lambda _: {**MESSAGE, "to": ["Cy"]}}
    fake.tools["renew_file_reservations"] = lambda _: {"renewed": [HELD]}

    def acts(*more: str) -> tuple[str, str]:
        assert run(*words, *more).code == 0
        return arguments(fake)["agent_name"], arguments(fake)["project_key"]

    monkeypatch.delenv("POSTROOM_AGENT", raising=False)
    seen = len(fake.seen)
    assert (run(*words).code, len(fake.seen)) == (2, seen), "nobody acts"
    monkeypatch.setenv("POSTROOM_AGENT", "Ada")
    assert (acts(), acts("--as", "Bo")[0]) == (("Ada", str(folder)), "Bo")
    monkeypatch.setenv("POSTROOM_AGENT", "Ada@harbour")
    assert (acts(), acts("--project", "yard")) == (("Ada", "harbour"), ("Ada", "yard"))
    assert acts("--as", "Bo@quay") == ("Bo", "quay")


def test_the_text_comes_from_a_file_or_from_stdin(
    run: Run, fake: FakePostroom, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.tools["send_message"] = lambda _: SENT
    (folder / "message.md").write_bytes("\ufeffgrüße\n".encode())
    assert run(*SEND, "--body-file", "message.md").code == 0
    assert arguments(fake)["body_md"] == "grüße\n"
    for words in (("-",), ("--body-file", "-")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from stdin"), encoding="utf-8"))
        assert run(*SEND, *words).code == 0
        assert arguments(fake)["body_md"] == "from stdin"


@each_row(
    "words, code",
    [
        *(((), "invalid_argument"), (("text", "--body-file", "x"), "invalid_argument")),
        *((("--body-file", "missing"), "invalid_path"), (("--body-file", "binary"), "invalid_argument")),
        *((("text", "--attach", "missing"), "invalid_path"), (("text", "--attach", "."), "invalid_path")),
        (("text", "--attach", "huge"), "too_large"),
    ],
)
def test_a_message_that_cannot_be_made_is_not_sent(
    run: Run, fake: FakePostroom, folder: Path, words: Sequence[str], code: str
) -> None:
    (folder / "binary").write_bytes(b"\xff\xfe\xfa")
    with (folder / "huge").open("wb") as huge:
        huge.truncate(600 * 1024 * 1024)  # a hole: it takes no room on the disk
    done = run(*SEND, *words, "--json")
    assert (done.code, done.document["error"]["code"], fake.seen) == (2, code, [])


@each_row("stdin", ["terminal", "null", "pipe"])
@each_row("command", [SEND, ("mail", "reply", "latest", "--as", "Bo")])
def test_a_message_without_a_text_is_told_how_to_give_one(
    run: Run, fake: FakePostroom, monkeypatch: pytest.MonkeyPatch, stdin: str, command: Sequence[str]
) -> None:
    fake.tools["fetch_inbox"] = lambda _: [INBOX]
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe" if stdin == "pipe" else ""))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: stdin == "terminal")
    done = run(*command)
    assert done.code == 2
    assert done.err.startswith("no message text was given\nremedy: give the text in one way: the text as an ")
    both = run(*command, "text", "--body-file", "x")
    assert both.err.startswith("the message text was given in two ways\nremedy: use only one way: the text ")


def test_attachments_travel_with_their_content_and_are_enough_of_a_message(
    run: Run, fake: FakePostroom, folder: Path
) -> None:
    fake.tools["send_message"] = fake.tools["reply_message"] = lambda _: SENT
    (folder / "a.bin").write_bytes(b"\x00\x01")
    for words in (SEND, ("mail", "reply", "3", "--as", "Ada")):
        assert "the message has no text" in run(*words, " ").err
        assert run(*words, "", "--attach", "a.bin").code == 0
        assert arguments(fake)["attachments"] == [{"name": "a.bin", "content_base64": "AAE="}]
    assert len(fake.seen) == 2


@each_row(
    "words, told",
    [
        *(
            (words, "")
            for words in ("mail send --as Ada", "mail nothing", "mail ack zero --as Ada", "nothing")
        ),
        *((words, "") for words in ("mail inbox --as Ada --limit 0", "restore")),
        ("mail send --as A -s S t --importance huge", ""),
        ("mail read abc --as Ada", "Invalid value for 'ID': 'abc' is not a message number"),
        ("mail read 0 --as Ada", "'0' is not a message number; use a number of at least 1, or latest"),
        ("mail inbox --limit x --as Ada", "Invalid value for '--limit': it must be an integer"),
    ],
)
def test_wrong_usage_ends_with_two_in_either_form(bare: Run, words: str, told: str) -> None:
    for_people, as_json = bare(*words.split()), bare(*words.split(), "--json")
    assert (for_people.code, for_people.out) == (2, "")
    assert ("Error: " in for_people.err, told in for_people.err) == (True, True)
    assert (as_json.code, as_json.document["error"]["code"]) == (2, "invalid_argument")
    assert told in as_json.document["error"]["message"]


@each_row(
    "words, told",
    [
        (f"mail send --as Ada --to Ben -s {BYTES} text", "--subject"),
        (f"mail send --as Ada --to Ben --to {BYTES} -s S text", "--to"),
        (f"mail send --as Ada --to Ben -s S {BYTES}", "TEXT"),
        (f"mail inbox --as {BYTES}", "--as"),
        (f"mail inbox --as Ada -p {BYTES}", "--project"),
        (f"tasks add {BYTES} --as Ada", "TITLE"),
        (f"events -p {BYTES}", "--project"),
        (f"runs list -p {BYTES}", "--project"),
        (f"people add {BYTES}", "NAME"),
    ],
)
def test_bytes_that_are_not_utf_8_are_refused_with_the_option_and_not_sent(
    run: Run, fake: FakePostroom, words: str, told: str
) -> None:
    done = run(*words.split(), "--json")
    assert (done.code, done.document["error"]["code"]) == (2, "invalid_argument")
    assert done.document["error"]["message"] == f"{told} is not valid UTF-8"
    assert fake.seen == []


def test_without_a_server_a_command_ends_with_seventy_five(bare: Run, tmp_path: Path) -> None:
    lists = ("agents list", "reservations list", "agents token Ada")
    for words in ("status", "open", "mail inbox --as Ada", *lists, "mail send --as A -s S -- --json"):
        done = bare(*words.split())
        assert (done.code, done.out) == (75, ""), words
        assert "remedy: start the server with `postroom up`" in done.err
        if "--json" not in words:  # behind two dashes it is text
            assert bare(*words.split(), "--json").document["error"]["retryable"] is True
    with FakePostroom() as gone:
        pass
    places.write_server_note(
        tmp_path / "data", places.ServerNote(url=gone.url, pid=1, version="0", started_at=0)
    )
    done = bare("status", "--json")
    assert (done.code, done.document["error"]["value"]) == (75, gone.url)


def test_status_and_version_answer_with_a_server_and_version_without_one(
    run: Run, fake: FakePostroom
) -> None:
    without = run("version", "--json")
    assert (without.code, without.document["server"]) == (0, None)
    assert set(without.document) == {"version", "server", "python", "system"}
    fake.admin["GET", "/healthz"] = lambda _: {"status": "ok", "version": "9.9"}
    assert run("version", "--json").document["server"] == "9.9"
    assert run("version").out.endswith(", server 9.9\n")
    assert run("--version").out.startswith(f"postroom {__version__}")
    assert "--version" in run("--help").out
    fake.admin["GET", "/admin/status"] = lambda _: {"version": "9", "counts": {"agents": 2}}
    document = run("status", "--json").document
    assert document == {"running": True, "url": fake.url, "version": "9", "counts": {"agents": 2}}
    assert "counts:\n  agents: 2" in run("status").out


def test_config_show_names_the_origin_of_every_setting(bare: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROOM_PORT", "1234")
    whole = bare("config", "show", "--json")
    found = {one["name"]: one for one in whole.document["settings"]}
    assert set(found["port"]) == {"name", "value", "origin", "description"}
    assert (found["port"]["value"], found["port"]["origin"]) == ("1234", "env POSTROOM_PORT")
    assert "port\t1234\tenv POSTROOM_PORT" in bare("config", "show").out
    assert bare("config").out == bare("config", "show").out
    for words in (("config", "--json"), ("config", "--json", "show")):
        assert bare(*words).document == whole.document, "a group that shows one thing needs no second word"
    monkeypatch.setenv("POSTROOM_PORT", "many")
    done = bare("config", "show", "--json")
    assert (done.code, done.document["error"]["code"]) == (78, "config_error")


def test_a_server_of_another_kind_is_a_failure_and_no_traceback(run: Run, fake: FakePostroom) -> None:
    fake.tools["list_agents"] = lambda _: ["surprise"]
    done = run("agents", "list")
    assert (done.code, "Traceback" in done.err) == (1, False)
    fake.rpc["tools/call"] = lambda _: Raw(200, b"<html>", "text/html")
    assert run("agents", "list").code == 1


def test_remedies_name_commands_and_not_the_tools_of_agents(run: Run, fake: FakePostroom) -> None:
    names = "run `postroom agents register`, or run `postroom agents list` to see the registered names"
    asks = "run `postroom agents request-contact`, and wait until the other agent accepts"
    numbers = "use a message id from `postroom mail inbox` or `postroom mail search`"
    for said, shown in (
        (errors.UnknownAgent.default_remedy, names),
        ("`search_messages` finds threads", "`postroom mail search` finds threads"),
        ("ask the holder", "ask the holder"),
        (errors.ContactRequired.default_remedy, asks),
        (
            "take it from list_file_reservations, or fetch_inbox_events",
            "take it from `postroom reservations list`, or `postroom watch`",
        ),
        (errors.UnknownMessage.default_remedy, numbers),
        (
            "write [1, 234] for several ids, or 1234 for one",
            "write '1, 234' for several ids, or 1234 for one",
        ),
    ):
        refused = {"error": errors.InputError("no", remedy=said).as_dict()}
        fake.tools["get_message"] = lambda _, refused=refused: refused
        done = run("mail", "read", "9", "--as", "Ada", "--json")
        assert done.document["error"]["remedy"] == shown
    assert set(remedies.COMMANDS).isdisjoint(remedies.FOR_AGENTS)
    assert set(remedies.COMMANDS) | set(remedies.FOR_AGENTS) == set(OPERATIONS)
    described = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert [said for said in remedies.COMMANDS.values() if f"\n## postroom {said}\n" not in described] == []


# What is drawn.


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a screen of 80 columns."""
    _narrow(monkeypatch)


def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")


HOSTILE = [("a\tb", "\x1b[1m[red]x[/red]"), (None, 2)]
MOMENT = "2026-11-22T16:38:08.123Z"


def test_a_table_is_plain_and_whole_in_a_pipe() -> None:
    assert show.table(("X", "Y"), HOSTILE, none="none") == "X\tY\na b\t\\x1b[1m[red]x[/red]\n\t2"
    assert show.table(("X", "Y"), [], none="none") == ""
    assert MOMENT in show.table(("ID", "AT"), [(1, MOMENT)], none="")


@pytest.mark.usefixtures("screen")
def test_a_row_on_a_screen_is_one_line_and_what_must_be_whole_goes_below() -> None:
    drawn = show.table(("X", "Y"), HOSTILE, none="none")
    assert drawn.splitlines()[1].split() == ["a", "b", "\\x1b[1m[red]x[/red]"]
    assert "\x1b" not in drawn
    assert show.table(("X", "Y"), [], none="none") == "none"
    heads, long = ("NAME", "PROGRAM", "MODEL", "TASK", "LAST ACTIVE"), "looks after\nthe lights " * 3
    drawn = show.table(heads, [("Ada", long, long, long, "now"), ("Bo", "p", "m", "t", "now")], none="")
    assert [row.split()[0] for row in drawn.splitlines()] == ["NAME", "Ada", "Bo"]
    assert drawn.splitlines()[1].count("…") == 3
    folder = "/srv/" + "lighthouse/" * 8
    drawn = show.table(("PROJECT", "FOLDER"), [("srv-lighthouse", folder)], none="")
    assert drawn.splitlines() == ["PROJECT", "srv-lighthouse", f"  {folder}"]
    why, run_id = "it said no " * 9, "run_0123456789abcdef0123456789abcdef"
    row = (run_id, "GreenLake@home-somebody-work", "failed", MOMENT, why)
    drawn = show.table(("ID", "AGENT", "STATE", "SINCE", "WHY"), [row], none="")
    assert drawn.splitlines()[0].split() == ["ID", "AGENT", "STATE"]
    assert drawn.splitlines()[1].split() == list(row[:3])
    assert drawn.splitlines()[2].startswith("  2026-11-22 16:38  it said no it said no")
    reserved = (1, "Ada", "piers/**", "exclusive, conflict", MOMENT, "placing the lights on the pier")
    drawn = show.table(("ID", "AGENT", "PATH", "KIND", "UNTIL", "REASON"), [reserved], none="")
    assert "…" not in drawn
    assert drawn.splitlines()[1].endswith("exclusive, conflict  2026-11-22 16:38")
    assert drawn.splitlines()[2] == "  placing the lights on the pier"
    for rows in ([(1, "lights", MOMENT)], [(1, "lights", MOMENT), (2, "lights " * 20, MOMENT)]):
        drawn = show.table(("ID", "SUBJECT", "AT"), rows, none="")
        assert drawn.splitlines()[1].endswith(" 2026-11-22 16:38")


WHOLE = {
    *("NAME", "PROJECT", "ID", "FROM", "ADDRESS", "CHAT", "USER", "CHANNEL", "SERVER", "SETTING", "DONE BY"),
}
TABLES = """NAME, PROGRAM, MODEL, TASK, LAST ACTIVE
NAME, WHEN, NEXT, TO, SUBJECT, FAILED
NAME, SCOPES, PROJECT, STATE, EXPIRES, LAST USED, ID
ID, FROM, SUBJECT, IMPORTANCE, STATE, AT
ADDRESS, CHAT, CONNECTED, UNREAD
PLATFORM, USER, ROLE, NAME, FROM
CHANNEL, STATE, SINCE, RECEIVED, SENT, WHY
SERVER, ADDRESS, IS, VERSION, SINCE
WORK, DONE BY, SINCE, UNTIL
SETTING, VALUE, FROM"""


@pytest.mark.usefixtures("screen")
def test_names_and_ids_are_whole_on_a_narrow_screen() -> None:
    for heads in (line.split(", ") for line in TABLES.splitlines()):
        long = "agent-with-a-rather-long-name-number"
        rows = [tuple(f"{long}-{head}-{number}".lower() for head in heads) for number in (1, 2)]
        drawn = show.table(heads, rows, none="")
        cells = [cell for row in rows for head, cell in zip(heads, row, strict=True) if head in WHOLE]
        assert [cell for cell in cells if cell not in drawn] == []
        longer = "n" * 100
        assert longer in show.table(("NAME", *heads), [[longer, *heads]], none=""), "wider than the screen"


@pytest.mark.usefixtures("screen")
def test_a_moment_on_a_screen_is_in_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(1, "2026-11-22T02:38:08.123Z"), (2, "2026-11-22T02:38:08+00:00")]
    try:
        with monkeypatch.context() as there:
            there.setenv("TZ", "America/New_York")
            time.tzset()
            drawn = show.table(("ID", "AT"), rows, none="").splitlines()[1:]
    finally:
        time.tzset()  # as the environment was before, with a zone or without
    assert [row.split() for row in drawn] == [[number, "2026-11-21", "21:38"] for number in "12"]


def test_a_narrow_screen_shows_whole_scopes_and_until_when_a_token_is_valid(
    run: Run, fake: FakePostroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    _narrow(monkeypatch)
    scopes = ["mail:read", "mail:send"]
    tokens = [{**one, "scopes": scopes, "expires_at": one["expires_at"] and MOMENT} for one in TOKENS]
    fake.admin["GET", "/admin/tokens"] = lambda _: {"tokens": tokens}
    lines = run("tokens", "list").out.splitlines()
    until = str(show.moment(MOMENT))
    assert max(map(len, lines)) <= 80
    assert [line.split(" all ")[0].split() for line in lines[1::2]] == [["ci", *scopes]] * len(tokens)
    assert [line.split(" all ")[1].strip() for line in lines[1::2]] == [
        *("valid", f"valid until {until}", f"replaced, until {until}", f"expired {until}"),
        "revoked 2026-11-22",
    ]


def test_a_message_on_a_screen_has_its_moment_in_local_time_and_a_line_before_the_next(
    run: Run, fake: FakePostroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    _narrow(monkeypatch)
    fake.tools["fetch_inbox"] = lambda _: [{**MESSAGE, "created_ts": MOMENT}] * 2
    shown = run("mail", "inbox", "--as", "Ada", "--bodies").out
    assert shown.count(f"Date: {show.moment(MOMENT)}\n") == 2
    assert shown.count(f"\n{show.RULE}\n") == 1
    assert MOMENT not in shown


def test_progress_is_drawn_on_a_terminal_and_not_where_a_program_reads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with show.progress(as_json=False):
        progress.tell("copying: rows", 1_000, 2_000)
    drawn = re.sub(r"\x1b\[[0-9;?]*m", "", capsys.readouterr().err)
    assert re.search(r"copying: rows .* 1,000 of 2,000 \(50 %\) 0:00:0", drawn)
    assert drawn.endswith("\x1b[1A\x1b[2K"), "nothing of it stays"
    with show.progress(as_json=True):
        progress.tell("copying: rows", 1, 2)
    assert capsys.readouterr().err == ""


def test_progress_in_a_pipe_is_a_line_when_work_is_long_and_then_now_and_then() -> None:
    now, told = [0.0], list[str]()
    lines = progress.Lines(told.append, lambda: now[0])
    for instant in range(16):
        now[0] = float(instant)
        lines("copying: rows", instant, 15)
    lines("joining")
    assert told == [
        "copying: rows: 2 of 15 (13 %), after 2 s",
        "copying: rows: 7 of 15 (46 %), after 7 s",
        "copying: rows: 12 of 15 (80 %), after 12 s",
    ]


# How commands start and end.


def python(code: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False, **more
    )


HEAVY = {"mcp", "starlette", "jinja2", "rich", "msgspec", "sqlite3", "uvicorn", "postroom.app.config"}
LIGHTER = {"typer", "rich", "pydantic", "asyncio", "subprocess", "filelock"}


@each_row(
    "words, heavy",
    [
        (["--help"], HEAVY | {"pydantic"}),
        # typer itself loads pydantic as soon as a command has parameters.
        (["mail", "--help"], HEAVY),
        (["up", "--help"], HEAVY),
        (["agents", "list", "--data"], HEAVY),
        (["mcp", "--no-start"], LIGHTER),
        (["mcp", "--tools", "core", "--data-dir", "some where", "--no-start"], LIGHTER),
    ],
)
def test_help_usage_and_the_stdio_entry_load_nothing_heavy(words: list[str], heavy: set[str]) -> None:
    code = f"""
import sys
from postroom.cli.main import main
main({words})
print("heavy:", sorted({heavy} & set(sys.modules)), file=sys.stderr)
"""
    done = python(code, stdin=subprocess.DEVNULL)
    assert done.stderr.endswith("heavy: []\n"), done.stdout + done.stderr


def test_the_stdio_entry_has_help_and_refuses_what_it_does_not_know(bare: Run) -> None:
    assert "--no-start" in bare("mcp", "--help").out
    for words in ("--data-dir", "--nothing", "--tools", "--tools few", "--tools core --tools", "core"):
        assert bare("mcp", *words.split()).code == 2, words


def test_the_help_of_every_command_fits_on_a_screen_of_80_columns(
    bare: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _narrow(monkeypatch)
    waiting: list[tuple[tuple[str, ...], Any]] = [((), get_command(tree()))]
    shown, wide = 0, list[str]()
    while waiting:
        words, command = waiting.pop()
        waiting += [((*words, name), one) for name, one in getattr(command, "commands", {}).items()]
        done = bare(*words, "--help")
        assert done.code == 0, words
        shown += 1
        wide += [line for line in done.out.splitlines() if len(line) > 80]
    assert (shown > 100, wide) == (True, [])


LONG = ("99999999999h", "99999999999999999999h", "40000d", "1w 40000d", "P999999999W", "9" * 100 + "d")
SCHEDULE = ("schedules", "add", "x", "--from", "Kim", "--to", "Ada", "--subject", "s", "--body", "b")
TIMES = (
    ((*SCHEDULE, "--every"), ()),
    ((*SCHEDULE, "--every", "1d", "--jitter"), ()),
    (("tokens", "create", "ci", "--scope", "mail:read", "--expires"), ()),
    (("tokens", "rotate", "ci", "--overlap"), ()),
    (("questions", "snooze", "4f2a"), ()),
    (("reservations", "reserve", "a", "--as", "Ada", "--ttl"), ()),
    (("agents", "set-runner", "Ada", "--timeout"), ("--", "true")),
    (("agents", "set-runner", "Ada", "--idle-timeout"), ("--", "true")),
)


@each_row("before, after", TIMES)
def test_a_duration_that_is_too_long_is_refused_with_the_limit_before_anything_is_sent(
    fake: FakePostroom, run: Run, before: Sequence[str], after: Sequence[str]
) -> None:
    takes_a_number = after or "--ttl" in before
    for span in (*LONG, "9" * 100) if takes_a_number else LONG:
        done = run(*before, span, *after)
        assert (done.code, "Traceback" in done.err, len(done.err) < 400) == (2, False, True), span
        where = f"{before[-1]}: " if before[-1].startswith("--") else ""
        most = "3660d" if before[0] == "schedules" else "36500d"
        assert done.err == (
            f"{where}{span[:40]!r} is too long for a duration\nremedy: use a duration of at most {most}\n"
        )
    done = run(*before, "9" * 5_000, *after)
    assert (done.code, "is not a duration" in done.err, len(done.err) < 400) == (2, True, True)
    assert done.err.startswith(where)
    assert fake.seen == []


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


@each_row("words", [("--help",), ("agents", "list"), ("agents", "list", "--json")])
@each_row("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_caller_closed_a_stream_does_its_work(
    fake: FakePostroom, tmp_path: Path, words: Sequence[str], closed: str
) -> None:
    fake.tools["list_agents"] = lambda _: {"agents": [AGENT], "next": None}
    before = len(fake.seen)
    done = in_shell(fake, tmp_path, words, closed)
    assert (done.returncode, done.stderr, len(fake.seen) - before) == (0, b"", words[0] == "agents")


@each_row("words", [(), ("--json",)])
def test_an_output_that_cannot_be_written_is_told_in_one_line(
    fake: FakePostroom, tmp_path: Path, words: Sequence[str]
) -> None:
    fake.tools["list_agents"] = lambda _: {"agents": [AGENT], "next": None}
    done = in_shell(fake, tmp_path, ("agents", "list", *words), "> /dev/full")
    assert done.returncode == 1
    assert done.stderr == b"system error: [Errno 28] No space left on device\n"


def in_shell(
    fake: FakePostroom, folder: Path, words: Sequence[str], streams: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command with streams that a shell has closed or redirected."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-m", "postroom", *words],
        capture_output=True,
        env={**os.environ, "POSTROOM_URL": fake.url, "POSTROOM_DATA_DIR": str(folder)},
        timeout=30,
        check=False,
    )


def test_ctrl_c_ends_a_command_quietly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr("postroom.cli.client.Server.call_tool", interrupted)
    for words in ((), ("--json",)):
        assert run("mail", "inbox", "--as", "Ada", *words) == Done(130, "", "")


# Searches, messages in parts, files, projects, folders of data.


def test_a_search_for_no_word_is_told_as_such_and_a_message_in_parts_is_shown_whole(
    fake: FakePostroom, run: Run
) -> None:
    for query in ("", '"', "* ()"):
        fake.tools["search_messages"] = lambda _, query=query: {"hits": [], "next": None, "query": query}
        assert run("mail", "search", query).err == "The query contains no word, so nothing was searched.\n"

    def parts(seen: Seen) -> object:
        if seen.body["params"]["arguments"].get("offset", 0):
            return {**MESSAGE, "body_md": "end"}
        return {**MESSAGE, **{"body_md": "begin ", "truncated": True, "characters_left": 3, "next_offset": 6}}

    fake.tools["get_message"] = parts
    assert run("mail", "read", "7", "--as", "Zed").out.endswith("begin end\n")
    told = run("mail", "read", "7", "--as", "Zed", "--json").document["message"]
    assert (told["body_md"], "truncated" in told) == ("begin end", False)


def test_the_files_of_a_message_are_saved_and_replace_none(
    fake: FakePostroom, run: Run, folder: Path
) -> None:
    files = {
        "a" * 64: ("plan.txt", b"the plan"),
        "b" * 64: ("../../plan.txt", b"another"),
        "c" * 64: ("x", b"\0"),
    }
    attached = [{"name": name, "size": len(raw), "sha256": key} for key, (name, raw) in files.items()]
    fake.tools["get_message"] = lambda _: {**MESSAGE, "attachments": attached}

    def content(seen: Seen) -> Raw:
        asked = dict(parse_qsl(seen.path.partition("?")[2]))
        assert asked["agent_name"] == "Zed"
        return Raw(200, files[asked["sha256"]][1], "application/octet-stream")

    def save(to: str, *words: str) -> Done:
        return run("mail", "save", "7", "--as", "Zed", "--to", str(folder / to), *words)

    fake.admin["GET", "/v1/get_attachment"] = content
    for _ in range(2):  # the second time the files are there already
        saved = save("in", "--json").document["saved"]
        assert [Path(one["path"]).name for one in saved] == ["plan.txt", "plan (2).txt", "x"]
        kept = {path.name: path.read_bytes() for path in (folder / "in").iterdir()}
        assert kept == {"plan.txt": b"the plan", "plan (2).txt": b"another", "x": b"\x00"}
    assert save("one", "--name", "x").out == f"Saved {folder / 'one' / 'x'} (1 bytes).\n"
    unknown = save("none", "--name", "y")
    assert (unknown.code, "plan.txt" in unknown.err, (folder / "none").exists()) == (2, True, False)
    (folder / "file").write_text("in the way")
    assert "cannot be written" in save("file").err


def test_the_projects_to_merge_and_to_move_may_be_folders_named_plainly(
    run: Run, fake: FakePostroom, folder: Path
) -> None:
    (folder / "pa").mkdir()
    there = {"slug": "x", "human_key": "/x"}
    fake.admin["POST", "/admin/projects/move"] = lambda _: there
    fake.admin["POST", "/admin/projects/merge"] = lambda _: {"from": there, "into": there, "refusals": ["no"]}
    here = {"pa": f"{folder}/pa", "pb": "pb", "./pb": f"{folder}/pb", "/srv/pa": "/srv/pa"}
    for given, sent in here.items():
        assert run("projects", "move", given, "pa").code == 0
        assert fake.seen[-1].body == {"project": sent, "folder": f"{folder}/pa"}
        run("projects", "merge", given, "pa", "--dry-run")
        asked = next(one.body for one in reversed(fake.seen) if one.path == "/admin/projects/merge")
        assert (asked["source"], asked["target"]) == (sent, f"{folder}/pa")
    assert "If the current folder contains a folder with this name" in " ".join(
        run("projects", "merge", "--help").out.split()
    )


OF_OPERATORS: dict[str, tuple[str, str, Any]] = {
    "schedules list": ("GET", "/admin/schedules", {"schedules": []}),
    "questions list": ("GET", "/admin/questions", {"questions": []}),
    "agents unset-runner Bo": ("DELETE", "/admin/runners", {"removed": True, "open_questions": []}),
    "tokens create ci --scope run": ("POST", "/admin/tokens", {"name": "ci", "id": "x"}),
    "tokens rotate ci": ("POST", "/admin/tokens/rotate", {"name": "ci", "id": "x"}),
    "tokens revoke ci": ("DELETE", "/admin/tokens", {"revoked": 1}),
    "tokens list": ("GET", "/admin/tokens", {"tokens": []}),
    "people add Kim": ("PUT", "/admin/people", {"address": "human:Kim"}),
    "people list": ("GET", "/admin/people", {"people": []}),
    "people remove Kim": ("DELETE", "/admin/people", {"removed": True}),
}


def test_the_server_of_a_folder_of_data_is_asked_and_no_other_afterwards(
    bare: Run, fake: FakePostroom, tmp_path: Path
) -> None:
    there = tmp_path / "elsewhere"
    note = places.ServerNote(url=fake.url, pid=1, version="1", started_at=int(time.time() * 1000))
    places.write_server_note(there, note)
    (there / "token").write_text("of-this-folder\n")
    for words, (method, path, answer) in OF_OPERATORS.items():
        fake.admin[method, path] = lambda _, answer=answer: answer
        assert bare(*words.split(), "--data-dir", str(there)).code == 0, words
        assert fake.seen.pop().headers["Authorization"] == "Bearer of-this-folder", words
        without = bare(*words.split())
        assert (without.code, "no server is running" in without.err, fake.seen) == (75, True, []), words


def test_who_removes_a_runner_reads_which_questions_stay_open(run: Run, fake: FakePostroom) -> None:
    fake.admin["DELETE", "/admin/runners"] = lambda _: {"removed": True, "open_questions": ["1a2b3c"]}
    said = run("agents", "unset-runner", "Bo").out
    assert (
        "Question 1a2b3c stays open. An answer ends its run as failed, unless Bo has a runner again" in said
    )


def test_each_command_of_an_operator_takes_a_folder_of_data() -> None:
    for group in ("agents", "schedules", "questions", "tokens", "people", "runs", "projects"):
        commands = get_command(tree(group)).commands[group].commands  # type: ignore[attr-defined]
        assert commands
        options = {name: {each.name for each in one.params} for name, one in commands.items()}
        assert [name for name, taken in options.items() if "data_dir" not in taken] == [], group
