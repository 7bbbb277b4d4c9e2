"""Commands that a person sits at: a thread read whole, a run followed, questions asked in turn, and completion."""

import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from fake_postroom import FakePostroom, Seen
from postroom.cli import completion, runs, top, watch
from postroom.cli.commands import tree
from postroom.cli.help_text import GROUPS
from postroom.cli.main import main
from postroom.cli.span import since
from postroom.contracts.errors import ServerUnavailable

QUESTION = {
    "number": "4f2a",
    "question": "May I?",
    "thread_id": "agent:p/Ada",
    "waiting_since": "2026-11-26T09:00:00Z",
}
RUN: dict[str, Any] = {
    "run_id": "01a2179b-122e-77e7-8278-538c606a46d9",
    "project": "home-somebody-with-a-long-name-harbour",
    "agent": "Ada",
    "state": "at work",
    "why": "",
    "until": None,
    "created_at": "2026-11-26T09:00:00Z",
    "started_at": "2026-11-26T09:00:00Z",
    "finished_at": None,
    "output_is_cut": False,
}
STATUS = {"version": "1", "url": "http://127.0.0.1:1", "records": {"unread": 3}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakePostroom]:
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path))
    with FakePostroom() as running:
        monkeypatch.setenv("POSTROOM_URL", running.url)
        yield running


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *typed: str) -> None:
    lines = iter(typed)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(lines))


def test_a_thread_is_printed_with_every_message_over_all_pages(
    fake: FakePostroom, capsys: pytest.CaptureFixture[str]
) -> None:
    message = {
        "id": 1,
        "from": "Ada",
        "to": ["Bo"],
        "created_ts": "now",
        "subject": "S",
        "body_md": "first text",
    }
    pages = {
        0: {"messages": [message], "next": 1},
        1: {"messages": [{**message, "body_md": "second"}], "next": None},
    }
    fake.tools["summarize_thread"] = lambda _: {
        "subject": "S",
        "messages": 2,
        "first_ts": "a",
        "last_ts": "b",
        "participants": [],
    }
    fake.tools["fetch_thread"] = lambda seen: pages[seen.body["params"]["arguments"]["after"]]
    assert main(["mail", "thread", "t"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("2 messages") < shown.index("first text") < shown.index("second")
    assert main(["mail", "thread", "t", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["body_md"] for one in document["conversation"]] == ["first text", "second"]


@pytest.mark.parametrize("given", ["9", "#9"])
def test_a_thread_is_found_by_the_number_of_the_message_that_began_it(
    fake: FakePostroom, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    def summary(seen: Seen) -> dict[str, Any]:
        if seen.body["params"]["arguments"]["thread_id"] == "msg-9":
            return {"subject": "S", "messages": 1, "first_ts": "a", "last_ts": "b", "participants": []}
        return {"error": {"code": "unknown_thread", "message": "no such thread", "remedy": "look"}}

    fake.tools["summarize_thread"] = summary
    assert main(["mail", "thread", given, "--summary"]) == 0
    assert "1 message" in capsys.readouterr().out
    assert main(["mail", "thread", "8", "--summary"]) == 2
    assert "no such thread" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("send", "--to", "Bo", "-s", "S"), ("reply", "3")])
def test_a_message_without_a_text_is_refused_unless_something_is_attached(
    fake: FakePostroom, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: Sequence[str]
) -> None:
    (tmp_path / "plan.txt").write_text("the plan")
    fake.tools["send_message"] = fake.tools["reply_message"] = lambda _: {"deliveries": []}
    command = ["mail", *words, "--as", "Ada"]
    assert main([*command, " "]) == 2
    assert "a message without a text says nothing" in capsys.readouterr().err
    assert main([*command, "", "--attach", str(tmp_path / "plan.txt")]) == 0


def test_what_overlaps_is_marked_in_the_list_of_reservations(
    fake: FakePostroom, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {"path": "src/**", "exclusive": True, "expires_ts": "later", "reason": ""}
    fake.tools["list_file_reservations"] = lambda _: {
        "reservations": [{"id": number, "agent": f"A{number}", **held} for number in (1, 2, 3)],
        "conflicts": [[1, 3]],
        "enforced_by": [],
    }
    assert main(["reservations", "list"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows if "exclusive, conflict" in row] == ["1", "3"]


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 1), ("cancelled", 1)])
def test_a_run_is_followed_to_its_end_and_each_piece_is_printed_once(
    fake: FakePostroom,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    state: str,
    code: int,
) -> None:
    monkeypatch.setattr(runs, "_POLL_SECONDS", 0)
    told = [
        ("at work", "one\n"),
        ("at work", "one\n"),
        ("at work", "one\ntwo\x1b[1"),
        (state, "one\ntwo\x1b[1m three"),
    ]
    for words in (["--follow"], ["--follow", "--json"]):
        coming = ({**RUN, "state": now, "output": output} for now, output in told)
        fake.admin[("GET", "/admin/runs/one")] = lambda _, coming=coming: next(coming)
        assert main(["runs", "show", "01a2", *words]) == code
        out = capfd.readouterr().out
        if words == ["--follow"]:
            assert out == f"one\ntwo three\n{state}\n"
        else:
            pieces = [json.loads(text) for text in out.splitlines()]
            assert "".join(one["output"] for one in pieces[:-1]) == told[-1][1]
            assert pieces[-1]["state"] == state


def test_the_end_of_an_output_begins_with_a_line(
    fake: FakePostroom, capsys: pytest.CaptureFixture[str]
) -> None:
    output = "".join(f"{number} lines of a log, and then some\n" for number in range(1_000, 1_300))
    for text, first in ((output, r"\d{4} lines of a log, and then some\n"), ("x" * 9_000, "x{4000}\n")):
        fake.admin[("GET", "/admin/runs/one")] = lambda _, text=text: {**RUN, "output": text}
        assert main(["runs", "show", "01a2"]) == 0
        shown = capsys.readouterr().out.partition("prints all of it):\n")[2]
        assert re.match(first, shown)
        assert len(shown) <= 4_001
        assert shown.endswith(text[-100:] + "\n")


def test_what_many_hold_is_one_line_of_the_overview(
    fake: FakePostroom, capsys: pytest.CaptureFixture[str]
) -> None:
    held = [{"id": number, "holder": f"A{number}", "pattern": "src/**"} for number in range(5)]
    other = [
        {"id": 7, "holder": "B", "pattern": "docs/*.md"},
        {"id": 9, "holder": "C", "pattern": "docs/index.md"},
    ]
    pairs = [*itertools.combinations(held, 2), tuple(other)]
    fake.admin[("GET", "/admin/floor")] = lambda _: {
        **dict.fromkeys(("health", "questions", "given_up", "works", "waits", "waiting", "owed"), ()),
        "conflicts": [{"first": first, "second": second} for first, second in pairs],
    }
    assert main(["runs", "overview", "--project", "p"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "HELD BY MORE THAN ONE",
        "  src/**: A0, A1, A2, A3, A4",
        "  docs/*.md: B; docs/index.md: C",
    ]


def test_output_that_begins_anew_is_printed_anew() -> None:
    assert runs._new("one two", "one two three") == " three"
    assert runs._new("one two", "again") == "again"


def test_open_questions_are_asked_in_turn_at_a_terminal(
    fake: FakePostroom, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [QUESTION, {**QUESTION, "number": "77aa"}, {**QUESTION, "number": "99cc"}]
    fake.admin[("GET", "/admin/questions")] = lambda _: {"questions": others}
    given: list[Any] = []
    fake.admin[("POST", "/admin/questions")] = lambda seen: given.append(seen.body) or seen.body
    at_a_terminal(monkeypatch, "maybe", "YES", "after lunch", "s", "n", "")
    assert main(["questions", "answer"]) == 0
    assert given == [
        {"number": "4f2a", "answer": "yes", "why": "after lunch"},
        {"number": "99cc", "answer": "no", "why": ""},
    ]
    out = capsys.readouterr().out
    assert "May I?" in out
    assert "'maybe' is no answer" in out
    at_a_terminal(monkeypatch)
    assert main(["questions", "answer", "none"]) == 2


def test_without_a_terminal_an_answer_must_be_given(
    fake: FakePostroom, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], ["4f2a"], ["4f2a", "perhaps"], ["4f2a", "--json"]):
        assert main(["questions", "answer", *words]) == 2
    assert fake.seen == []
    assert "yes or no" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_top_is_no_wider_than_the_screen_and_cuts_no_id(
    fake: FakePostroom, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ended = {
        **RUN,
        "run_id": "f" * 36,
        "state": "failed",
        "why": "it said no " * 20,
        "finished_at": RUN["created_at"],
    }
    done = {**ended, "run_id": "d" * 36, "state": "done", "project": "a-project-with-a-long-name"}
    waiting = {
        "message": 7,
        "agent": "Bo",
        "project": "p",
        "since_at": RUN["created_at"],
        "why": "behind a run",
    }
    fake.admin[("GET", "/admin/runs")] = lambda _: {"runs": [RUN, *[ended] * 20, done], "waiting": [waiting]}
    fake.admin[("GET", "/admin/runs/one")] = lambda _: {**RUN, "output": "first\nreading the plan\n\n"}
    fake.admin[("GET", "/admin/status")] = lambda _: STATUS
    fake.admin[("GET", "/admin/questions")] = lambda _: {"questions": [QUESTION]}
    assert main(["top"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= int(columns)
    for text in (
        RUN["run_id"],
        "f" * 36,
        "4f2a",
        "message 7",
        "AT WORK (1)",
        "FAILED (20)",
        "and 12 more",
        "1 at work",
        "reading the plan",
    ):
        assert text in shown
    assert re.search(r"d{36} +\d+\w  done", shown)
    for whose in (f"Ada@{RUN['project']}", "Ada@a-project-with-a-long-name"):
        assert whose in shown, "who it is comes whole: below, where there is no room"
    assert main(["top", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"server", "questions", "runs", "waiting"}


@pytest.mark.parametrize("lines", [24, 30, 60])
def test_top_fits_the_lines_of_the_screen_and_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    from postroom.cli.show import rendered

    monkeypatch.setenv("COLUMNS", "80")
    at_work = {**RUN, "last_line": "reading the plan"}
    failed = {**RUN, "state": "failed", "why": "it said no", "finished_at": RUN["created_at"]}
    done = {**failed, "state": "done", "run_id": "d" * 36, "agent": "Last"}
    waiting = {
        "message": 7,
        "agent": "Bo",
        "project": "p",
        "since_at": RUN["created_at"],
        "why": "behind a run",
    }
    found: dict[str, Any] = {
        "server": STATUS,
        "questions": [QUESTION] * 3,
        "runs": [*[at_work] * 9, *[{**RUN, "state": "queued"}] * 2, *[failed] * 12, *[done] * 4],
        "waiting": [waiting] * 2,
    }
    shown = rendered(top.drawn(found, lines=lines))
    assert len(shown.splitlines()) <= lines
    lists = re.split(r"\n+(?=[A-Z ]+ \(\d+\)\n)", shown)[1:]
    assert [one.split(" (")[0] for one in lists] == [
        "QUESTIONS",
        "AT WORK",
        "QUEUED",
        "MAIL THAT WAITS FOR ITS READER",
        "FAILED",
        "LATELY",
    ]
    for one in lists:
        head, *rows = one.splitlines()
        more = re.fullmatch(r"  and (\d+) more", rows[-1])
        told = sum(not row.startswith(" ") for row in rows)
        assert told >= 1, head
        assert f"({told + (int(more[1]) if more else 0)})" in head
    assert "d" * 36 in lists[-1]


def test_top_says_when_there_is_nothing() -> None:
    from postroom.cli.show import rendered

    empty: dict[str, Any] = {"server": STATUS, "questions": [], "runs": [], "waiting": []}
    assert "Nobody works" in rendered(top.drawn(empty))


def test_a_span_is_told_in_its_largest_unit() -> None:
    for seconds, told in [(0, "0s"), (59, "59s"), (60, "1m"), (3_599, "59m"), (7_200, "2h"), (200_000, "2d")]:
        assert since("1970-01-01T00:00:00Z", seconds * 1000) == told
    assert since(None, 5) == "-"
    assert since("1970-01-01T00:00:09Z", 0) == "0s"  # a clock that was set back


class Context:
    def __init__(self) -> None:
        self.params: dict[str, Any] = {}


def test_a_shell_completes_what_the_server_knows_and_nothing_without_one(
    fake: FakePostroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.admin[("GET", "/admin/projects")] = lambda _: {"projects": [{"slug": "harbour", "human_key": "/h"}]}
    fake.admin[("GET", "/admin/runs")] = lambda _: {"runs": [RUN]}
    fake.admin[("GET", "/admin/questions")] = lambda _: {"questions": [QUESTION]}
    fake.tools["list_agents"] = lambda _: {
        "agents": [{"name": "Ada", "task_description": "x"}, {"name": "Bo", "task_description": ""}]
    }
    fake.tools["show_project"] = lambda _: {"threads": [{"thread_id": "msg-1", "subject": "Lights\nout"}]}
    fake.tools["list_file_reservations"] = lambda _: {
        "reservations": [{"id": 12, "path": "piers/**", "agent": "Ada"}]
    }
    fake.tools["fetch_inbox"] = lambda _: [{"id": 31, "from": "Bo", "subject": "Lights"}]
    asked = {
        "pages": "/p/h",
        "messages": "3",
        "reservations": "1",
        "projects": "har",
        "agents": "A",
        "threads": "msg",
        "runs": "01a2",
        "questions": "4f",
    }
    reader = Context()
    reader.params["acting"] = "Ada"
    assert {kind: completion.KINDS[kind](reader, begun) for kind, begun in asked.items()} == {
        "pages": [("/p/harbour", "/h")],
        "messages": [("31", "Bo: Lights")],
        "reservations": [("12", "piers/**, Ada")],
        "projects": [("harbour", "/h")],
        "agents": [("Ada", "x")],
        "threads": [("msg-1", "Lights out")],
        "runs": [(RUN["run_id"], f"Ada@{RUN['project']}, at work")],
        "questions": [("4f2a", "May I?")],
    }

    def asked_of(tool: str) -> set[str]:
        calls = [
            one.body["params"] for one in fake.seen if one.body and one.body.get("method") == "tools/call"
        ]
        return {one["arguments"]["agent_name"] for one in calls if one["name"] == tool}

    assert asked_of("fetch_inbox") == {"Ada"}
    assert asked_of("list_file_reservations") == {"Ada"}
    assert completion.KINDS["messages"](Context(), "") == [], "whose, was not said yet"
    assert completion.KINDS["agents"](Context(), "Z") == []
    monkeypatch.delenv("POSTROOM_URL")
    assert [look(Context(), "") for look in completion.KINDS.values()] == [[]] * 8


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


TREE = dict(commands(get_command(tree())))


def test_every_command_stands_in_one_group_of_the_help() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(words[0] for words in TREE if len(words) == 1)


def examples(command: Any) -> Sequence[str]:
    _, mark, lines = (command.epilog or "").partition("Examples:\n")
    return [line.strip() for line in lines.splitlines() if line.startswith("  ")] if mark else []


def test_every_example_of_a_help_is_a_command_with_options_that_there_are(subtests: pytest.Subtests) -> None:
    import shlex

    found = [line for command in TREE.values() for line in examples(command)]
    assert len(found) > 30
    for line in found:
        with subtests.test(line=line):
            name, *words = shlex.split(line)
            path: tuple[str, ...] = ()
            while words and (*path, words[0]) in TREE:
                path = (*path, words.pop(0))
            assert name == "postroom"
            assert not hasattr(TREE[path], "commands"), "it names a group"
            TREE[path].make_context(line, list(words), resilient_parsing=False)


def test_every_group_of_commands_has_examples() -> None:
    groups = {
        words: command for words, command in TREE.items() if len(words) == 1 and hasattr(command, "commands")
    }
    assert [words for words, command in groups.items() if not examples(command)] == []


def test_a_run_that_is_tried_again_later_is_tried_now(
    fake: FakePostroom, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.admin["POST", "/admin/runs/hasten"] = lambda seen: {
        **RUN,
        "run_id": seen.body["run"],
        "state": "queued",
    }
    assert main(["runs", "hasten", "01a2179b"]) == 0
    assert capsys.readouterr().out == "run 01a2179b is queued\n"
    assert fake.seen[-1].body == {"run": "01a2179b"}


def test_who_watches_without_a_server_is_told_that_it_is_waited_for_once_and_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "SHORTEST_PAUSE", 0)
    for is_quiet, told in ((False, "no server runs here; waiting for it\nthe server is back\n"), (True, "")):
        patience = watch.Patience(is_quiet=is_quiet)
        for _ in range(2):
            patience.wait_out(ServerUnavailable("no server runs here"))
        patience.reset()
        assert capsys.readouterr().err == told


def test_a_list_that_ends_with_its_page_says_how_to_see_more(
    fake: FakePostroom, capsys: pytest.CaptureFixture[str]
) -> None:
    for page, said in ((211, "there may be more: add --after 211"), (None, "")):
        fake.tools["list_agents"] = lambda _, page=page: {"agents": [], "next": page}
        assert main(["agents", "list", "--project", "p"]) == 0
        assert said in capsys.readouterr().err
