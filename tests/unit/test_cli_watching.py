"""Commands that a person sits at: a thread read whole, a run followed, questions asked in turn, and completion."""

import itertools
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from typer.main import get_command

from cli_room import Run
from cli_samples import HEALTH, RUN, TASK
from fake_postroom import FakePostroom, Seen
from postroom.cli import completion, runs, show, top, watch
from postroom.cli.commands import tree
from postroom.cli.help_text import GROUPS
from postroom.cli.show import rendered
from postroom.cli.span import since
from postroom.contracts.errors import ServerUnavailable
from postroom.extras import install_command
from table_rows import each_row

QUESTION = {
    **{"number": "4f2a", "question": "May I?", "thread_id": "agent:p/Ada"},
    **{"agent": "Ada", "project": "p", "chat": "", "who": ""},
    "waiting_since": "2026-11-26T09:00:00Z",
    **{
        "takes": "yes_no",
        "in_words": False,
        "choices": [],
        "form": None,
        "to": [],
        "not_by": [],
        "action": "",
    },
    "snoozed_until": None,
}
STATUS = {"version": "1", "url": "http://127.0.0.1:1", "records": {"unread": 3}}
SUMMARY = {"subject": "S", "messages": 2, "first_ts": "a", "last_ts": "b", "participants": []}
FAILED = {
    **{**RUN, "run_id": "f" * 36, "state": "failed", "why": "it said no " * 20},
    "finished_at": RUN["created_at"],
}
DEAD_RUN = {
    **{"run_id": "f" * 36, "agent": "Ada", "project": RUN["project"], "since": RUN["created_at"]},
    **{"attempts": 1, "interruptions": 0},
}
FAILED_RUNS = {
    **{"run_ids": ["f" * 36], "agent": "Ada", "project": RUN["project"], "newest_at": RUN["created_at"]},
}
WAITING = {
    **{"message": 7, "agent": "Bo", "project": "p", "since_at": RUN["created_at"]},
    "why": "behind a run",
}


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, *typed: str) -> None:
    lines = iter(typed)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("typer.prompt", lambda *_, **__: next(lines))


def test_a_thread_is_printed_with_every_message_over_all_pages(fake: FakePostroom, run: Run) -> None:
    message = {"id": 1, "from": "Ada", "to": ["Bo"], "created_ts": "now", "subject": "S", "body_md": "first"}
    pages = {
        0: {"messages": [message], "next": 1},
        1: {"messages": [{**message, "body_md": "second"}], "next": None},
    }
    fake.tools["summarize_thread"] = lambda _: SUMMARY
    fake.tools["fetch_thread"] = lambda seen: pages[seen.body["params"]["arguments"]["after"]]
    shown = run("mail", "thread", "t").out
    assert shown.index("2 messages") < shown.index("first") < shown.index("second")
    conversation = run("mail", "thread", "t", "--json").document["conversation"]
    assert [one["body_md"] for one in conversation] == ["first", "second"]


def test_a_thread_is_found_by_the_number_of_the_message_that_began_it(fake: FakePostroom, run: Run) -> None:
    def summary(seen: Seen) -> dict[str, Any]:
        if seen.body["params"]["arguments"]["thread_id"] == "msg-9":
            return {**SUMMARY, "messages": 1}
        return {"error": {"code": "unknown_thread", "message": "no such thread", "remedy": "look"}}

    fake.tools["summarize_thread"] = summary
    for given in ("9", "#9"):
        assert "1 message" in run("mail", "thread", given, "--summary").out
    other = run("mail", "thread", "8", "--summary")
    assert (other.code, "no such thread" in other.err) == (2, True)


def test_a_run_is_followed_to_its_end_and_each_piece_is_printed_once(
    fake: FakePostroom, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_POLL_SECONDS", 0)
    for state, code in (("done", 0), ("failed", 1), ("cancelled", 1)):
        texts = ("one\n", "one\n", "one\ntwo\x1b[1", "one\ntwo\x1b[1m three")
        told = [*(("at work", text) for text in texts[:3]), (state, texts[3])]
        for words in (["--follow"], ["--follow", "--json"]):
            coming = ({**RUN, "state": now, "output": output} for now, output in told)
            fake.admin["GET", "/admin/runs/one"] = lambda _, coming=coming: next(coming)
            done = run("runs", "show", "01a2", *words)
            assert done.code == code
            if words == ["--follow"]:
                assert done.out == f"one\ntwo three\n{show.state_word(state)}\n"
            else:
                pieces = [json.loads(text) for text in done.out.splitlines()]
                assert "".join(one["output"] for one in pieces[:-1]) == texts[3]
                assert pieces[-1]["state"] == state
    anew = iter([{**RUN, "output": "one two "}, {**RUN, "state": "done", "output": "again"}])
    fake.admin["GET", "/admin/runs/one"] = lambda _: next(anew)
    shown = run("runs", "show", "01a2", "--follow").out
    assert shown == f"one two again\n{show.state_word('done')}\n", (
        "if the output starts again, all of it is printed"
    )


def test_the_end_of_an_output_begins_with_a_line(fake: FakePostroom, run: Run) -> None:
    output = "".join(f"{number} lines of a log, and then some\n" for number in range(1_000, 1_300))
    for text, first in ((output, r"\d{4} lines of a log, and then some\n"), ("x" * 9_000, "x{4000}\n")):
        fake.admin["GET", "/admin/runs/one"] = lambda _, text=text: {**RUN, "output": text}
        shown = run("runs", "show", "01a2").out.partition("prints all):\n")[2]
        assert re.match(first, shown)
        assert len(shown) <= 4_001
        assert shown.endswith(text[-100:] + "\n")


def test_what_many_hold_is_one_line_of_the_overview(fake: FakePostroom, run: Run) -> None:
    held = [{"id": number, "holder": f"A{number}", "pattern": "src/**"} for number in range(5)]
    other = [{"id": n, "holder": who, "pattern": at} for n, who, at in ((7, "B", "*.md"), (9, "C", "a.md"))]
    pairs = [*itertools.combinations(held, 2), tuple(other)]
    fake.admin["GET", "/admin/floor"] = lambda _: {
        **dict.fromkeys(("health", "questions", "failed", "works", "waits", "waiting", "owed"), ()),
        "conflicts": [{"first": first, "second": second} for first, second in pairs],
    }
    assert run("runs", "overview", "--project", "p").out.splitlines() == [
        "CONFLICTING RESERVATIONS",
        "  src/**: A0, A1, A2, A3, A4",
        "  *.md: B; a.md: C",
    ]


def test_open_questions_are_asked_in_turn_at_a_terminal(
    fake: FakePostroom, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [QUESTION, {**QUESTION, "number": "77aa"}, {**QUESTION, "number": "99cc"}]
    fake.admin["GET", "/admin/questions"] = lambda _: {"questions": others}
    given: list[Any] = []
    fake.admin["POST", "/admin/questions"] = lambda seen: given.append(seen.body) or seen.body
    at_a_terminal(monkeypatch, "maybe", "YES", "after lunch", "s", "n", "")
    done = run("questions", "answer", "--by", "Kim")
    assert given == [
        {"number": "4f2a", "answer": "yes", "why": "after lunch", "by": "Kim"},
        {"number": "99cc", "answer": "no", "why": "", "by": "Kim"},
    ]
    assert (done.code, "May I?" in done.out, "'maybe' is not an answer" in done.out) == (0, True, True)
    at_a_terminal(monkeypatch)
    assert run("questions", "answer", "none").code == 2


def test_a_snoozed_question_is_marked_in_the_inbox_with_the_time_until_which_it_is_snoozed(
    fake: FakePostroom, run: Run
) -> None:
    snoozed = {**QUESTION, "number": "77aa", "snoozed_until": "2026-11-26T10:30:00Z"}
    fake.admin["GET", "/admin/questions"] = lambda _: {"questions": [QUESTION, snoozed], "next": None}
    fake.admin["GET", "/admin/runs/failed"] = lambda _: {"failed": []}
    _, *rows = run("inbox").out.splitlines()
    assert rows == [
        f"asks\t4f2a\tAda@p\t{QUESTION['waiting_since']}\tMay I?",
        "snoozed\t77aa\tAda@p\tsnoozed until 2026-11-26T10:30:00Z\tMay I?",
    ]


@pytest.mark.parametrize(
    ("end", "line"),
    [
        ({"state": "open"}, "Open: nobody has answered."),
        (
            {"state": "answered", "approved": True, "answer": "go", "answered_by": "ana", "where": "by mail"},
            "Answered by ana by mail on 2026-11-26T10:30:00Z: yes: go",
        ),
        (
            {"state": "answered", "answer": "no\nAnswered by root", "answered_by": "ana", "where": "by mail"},
            "  Answered by root",
        ),
        (
            {"state": "closed", "answer": "the run was cancelled", "answered_by": "nobody"},
            "Closed on 2026-11-26T10:30:00Z: the run was cancelled",
        ),
        (
            {"state": "answered", "answer": "later (no answer came in time)", "answered_by": "nobody"},
            "Nobody answered until 2026-11-26T10:30:00Z: later (no answer came in time)",
        ),
        (
            {"state": "answered", "approved": False, "answer": "no answer", "answered_by": "nobody"},
            "Nobody answered until 2026-11-26T10:30:00Z, which means no: no answer",
        ),
    ],
    ids=["open", "answered", "several lines", "closed", "default", "no"],
)
def test_the_record_of_a_question_ends_with_its_answer_or_the_reason_why_there_is_none(
    fake: FakePostroom, run: Run, end: dict[str, Any], line: str
) -> None:
    at = "2026-11-26T10:30:00Z"
    record = {
        **QUESTION,
        "asked_at": at,
        "answered_at": at,
        "approved": None,
        "where": "",
        "shown": [],
        **end,
    }
    fake.admin["GET", "/admin/questions/one"] = lambda _: record
    assert run("questions", "show", "4f2a").out.splitlines()[-1] == line
    record["action"] = "DROP TABLE a\nAnswered by root"
    assert "\n  DROP TABLE a\n  Answered by root\n" in run("questions", "show", "4f2a").out
    record["project"] = ""
    del record["chat"]
    assert "4f2a, asked by Ada in a chat on " in run("questions", "show", "4f2a").out


@pytest.mark.parametrize("span", [("banana",), ("--", "-5m"), ("5",)], ids=str)
def test_a_question_is_not_put_off_by_a_text_that_is_no_duration(
    fake: FakePostroom, run: Run, span: tuple[str, ...]
) -> None:
    done = run("questions", "snooze", "4f2a", *span)
    assert (done.code, "is not a duration" in done.err, "Traceback" in done.err) == (2, True, False)
    assert not fake.seen


@pytest.mark.parametrize("by", ["", "  ", "x" * 65], ids=["empty", "spaces", "long"])
@pytest.mark.parametrize("words", [("answer", "4f2a", "yes"), ("answer",), ("snooze", "4f2a", "1h")], ids=str)
def test_a_name_that_is_none_is_refused_before_anything_is_sent(
    fake: FakePostroom, run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], by: str
) -> None:
    fake.admin["GET", "/admin/questions"] = lambda _: {"questions": [QUESTION]}
    if words == ("answer",):
        at_a_terminal(monkeypatch, "yes", "")
    done = run("questions", *words, "--by", by)
    assert (done.code, "the name in --by" in done.err, "leave out --by" in done.err) == (2, True, True)
    assert [one for one in fake.seen if one.method == "POST"] == []


def test_a_plain_yes_is_understood_at_a_terminal(
    fake: FakePostroom, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.admin["GET", "/admin/questions"] = lambda _: {"questions": [QUESTION]}
    given: list[Any] = []
    fake.admin["POST", "/admin/questions"] = lambda seen: given.append(seen.body["answer"]) or seen.body
    at_a_terminal(monkeypatch, "Yes?", "Yes, please.", "")
    assert "'yes?' is not an answer" in run("questions", "answer", "--by", "Kim").out
    assert given == ["yes, please."]


def test_lists_show_what_a_yes_permits(fake: FakePostroom, run: Run) -> None:
    fake.admin["GET", "/admin/questions"] = lambda _: {
        "questions": [{**QUESTION, "action": "DROP\nTABLE\u202e a"}]
    }
    fake.admin["GET", "/admin/runs/failed"] = lambda _: {"failed": []}
    for command in (("questions", "list"), ("inbox",)):
        assert r"exactly this: DROP\x0aTABLE\u202e a" in run(*command).out, command


def test_the_inbox_is_listed_in_pages(fake: FakePostroom, run: Run) -> None:
    asked = list[str]()

    def page(seen: Seen) -> dict[str, Any]:
        asked.append(seen.path.partition("?")[2])
        return {"questions": [QUESTION], "next": None if "after=1" in asked[-1] else "1/r/4f2a1c"}

    fake.admin["GET", "/admin/questions"] = page
    fake.admin["GET", "/admin/runs/failed"] = lambda _: {"failed": []}
    first = run("inbox", "--limit", "1")
    assert (first.code, "--after 1/r/4f2a1c" in first.err) == (0, True)
    assert run("inbox", "--after", "1/r/4f2a1c", "--json").document["next"] is None
    assert [one.split("&") for one in asked] == [["limit=1", "after="], ["limit=50", "after=1%2Fr%2F4f2a1c"]]


def test_lists_name_the_agent_with_its_project_or_its_chat(fake: FakePostroom, run: Run) -> None:
    in_chat = {**QUESTION, "number": "77aa", "agent": "default", "project": "", "chat": "telegram/4711"}
    fake.admin["GET", "/admin/questions"] = lambda _: {"questions": [QUESTION, in_chat]}
    dead = {
        **{"run_id": "f" * 36, "since": "2026-11-26T09:00:00Z", "attempts": 3, "interruptions": 0},
        "error": "no",
    }
    both = [
        {**dead, **{name: one[name] for name in ("agent", "project", "chat")}} for one in (QUESTION, in_chat)
    ]
    fake.admin["GET", "/admin/runs/dead"] = lambda _: {"dead": both}
    groups = [
        {**one, "why": one["error"], "newest_at": one["since"], "run_ids": [one["run_id"]]} for one in both
    ]
    fake.admin["GET", "/admin/runs/failed"] = lambda _: {"failed": groups}
    for command in (("questions", "list"), ("runs", "dead"), ("inbox",), ("top",)):
        if command == ("top",):
            fake.admin["GET", "/admin/runs"] = lambda _: {"runs": [], "waiting": []}
            fake.admin["GET", "/admin/status"] = lambda _: STATUS
            fake.admin["GET", "/admin/tasks"] = lambda _: {"tasks": []}
        shown = run(*command).out
        assert "Ada@p" in shown
        assert "default in telegram/4711" in shown
        assert "agent:p/Ada" not in shown


def test_the_inbox_lists_questions_and_groups_of_equal_failures(fake: FakePostroom, run: Run) -> None:
    group = {"agent": "Fay", "project": "p", "chat": "", "newest_at": "2026-11-26T09:00:00Z"}
    fake.admin["GET", "/admin/questions"] = lambda _: {"questions": [QUESTION]}
    fake.admin["GET", "/admin/runs/failed"] = lambda _: {
        "failed": [
            {**group, "why": "disk full", "run_ids": ["new", "old"]},
            {**group, "why": "exit 3", "run_ids": ["other"]},
        ]
    }
    lines = [line.split("\t")[:3] for line in run("inbox").out.splitlines()[1:]]
    assert lines == [
        ["asks", QUESTION["number"], "Ada@p"],
        ["failed 2 times", "new", "Fay@p"],
        ["failed", "other", "Fay@p"],
    ]
    found = json.loads(run("inbox", "--json").out)
    assert [one["runs"] for one in found["failed"]] == [["new", "old"], ["other"]]
    assert found["questions"] == [QUESTION]


def test_catch_up_tells_what_happened_and_where_to_continue(fake: FakePostroom, run: Run) -> None:
    fake.tools["catch_up"] = lambda _: {
        "since": "2026-11-26T09:00:00Z",
        "events": 9,
        "skipped": 3,
        "next": 12,
        "sentences": [
            {"about": "added", "text": 'Ada added task 3 "Li\nghts".', "at": "", "task_id": 3},
            {"about": "asked", "text": "Ash asks a person (question q1).", "at": ""},
            {"about": "said", "text": 'Ada and Ben wrote 2 messages about "Lights".', "at": ""},
        ],
        "threads": [],
        "threads_in_all": 1,
        "questions": [{"question_id": "q1", "run_id": "r", "agent": "Ash", "at": ""}],
        "answered": 0,
        "runs": {"active": 0, "waiting": 1, "succeeded": 2, "failed": 0, "cancelled": 0},
        "failed": [],
        "reserved": [{"agent": "Ben", "path": "piers/**"}],
        "spent": {"tokens": 1200, "cost_micros": 250_000},
        "counts": {"message.sent": 2, "task.done": 3, "note.added": 2},
    }
    assert run("catch-up", "--after", "3").out.splitlines() == [
        "Since 2026-11-26T09:00:00Z: 9 events.",
        "3 older events are not part of this summary.",
        "Added:",
        '  Ada added task 3 "Li ghts".',
        "Asked:",
        "  Ash asks a person (question q1).",
        "Messages:",
        '  Ada and Ben wrote 2 messages about "Lights".',
        "Next time: postroom catch-up --after 12",
    ]
    assert fake.seen[-1].body["params"]["arguments"]["after"] == 3


def test_an_option_that_was_not_given_is_not_sent(fake: FakePostroom, run: Run) -> None:
    given: list[Any] = []
    view = {"task": 12, "state": "done"}
    fake.admin["POST", "/admin/tasks/decide"] = lambda seen: given.append(seen.body) or view
    run("tasks", "decide", "12", "yes", "--by", "kim", "-p", "shop")
    [sent] = given
    assert "why" not in sent


def test_without_a_terminal_an_answer_must_be_given(fake: FakePostroom, run: Run) -> None:
    for words in ([], ["4f2a"], ["4f2a", "--json"]):
        done = run("questions", "answer", *words)
        assert (done.code, fake.seen) == (2, [])
        assert "was given" in done.err + done.out


def test_the_number_and_the_answer_of_a_question_are_two_words(fake: FakePostroom, run: Run) -> None:
    given: list[Any] = []
    view = {"number": "4f2a", "answer": "no"}
    fake.admin["POST", "/admin/questions"] = lambda seen: given.append(seen.body) or view
    done = run("questions", "answer", "4f2a", "no")
    assert (done.code, [(one["number"], one["answer"]) for one in given]) == (0, [("4f2a", "no")]), done.err


WORDS = "ModuleNotFoundError: no module 'lamps' when the configuration of the pier was read"
REASONS = (f"{WORDS}; {WORDS}", f"{WORDS}: {'灯台のランプが見つかりません。' * 8}", f"{WORDS} 🏮 {WORDS}")
"""Reasons that no line of 80 columns has room for."""
CHECK = {"name": "runs", "state": "failed", "remedy": "run `postroom runs dead`"}


@each_row(
    "words, path, answer",
    [
        ("runs list", "runs", lambda why: {"runs": [{**FAILED, "why": why}]}),
        ("runs dead", "runs/dead", lambda why: {"dead": [{**DEAD_RUN, "error": why}]}),
        ("inbox", "runs/failed", lambda why: {"failed": [{**FAILED_RUNS, "why": why}]}),
        ("questions list", "questions", lambda why: {"questions": [{**QUESTION, "question": why}]}),
        ("doctor", "doctor", lambda why: {"ok": True, "checks": [{**CHECK, "detail": why}]}),
    ],
)
def test_a_list_breaks_a_long_reason_between_words_on_a_terminal_and_not_in_a_pipe(
    fake: FakePostroom,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    path: str,
    answer: Callable[[str], object],
) -> None:
    fake.admin["GET", "/admin/questions"] = lambda _: {"questions": []}
    for reason in REASONS:
        fake.admin["GET", f"/admin/{path}"] = lambda _, reason=reason: answer(reason)
        assert reason in run(*words.split()).out
        with monkeypatch.context() as there:
            there.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            there.setenv("NO_COLOR", "1")
            there.setenv("COLUMNS", "80")
            shown = run(*words.split()).out
        assert [line for line in shown.splitlines() if cell_len(line) > 80] == []
        assert "".join(reason.split()) in "".join(shown.split()), "the reason is whole"
        assert "ModuleNotFoundError:" in shown, "a word that fits is not broken"


def test_top_is_no_wider_than_the_screen_and_cuts_no_id(
    fake: FakePostroom, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = {**FAILED, "run_id": "d" * 36, "state": "done", "project": "a-project-with-a-long-name"}
    fake.admin["GET", "/admin/runs"] = lambda _: {"runs": [RUN, *[FAILED] * 20, done], "waiting": [WAITING]}
    fake.admin["GET", "/admin/runs/one"] = lambda _: {**RUN, "output": "first\nreading the plan\n\n"}
    fake.admin["GET", "/admin/status"] = lambda _: STATUS
    fake.admin["GET", "/admin/questions"] = lambda _: {"questions": [QUESTION]}
    fake.admin["GET", "/admin/tasks"] = lambda _: {"tasks": [TASK]}
    for columns in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = run("top").out
        assert max(map(len, shown.splitlines())) <= columns
        ids = (RUN["run_id"], "f" * 36, "4f2a", "message 7", "task 12", "ACTIVE (1)", "FAILED (20)")
        for text in (*ids, "and 12 more", "1 active", "reading the plan"):
            assert text in shown
        assert re.search(r"d{36} +\d+\w  succeeded", shown)
        for whose in (f"Ada@{RUN['project']}", "Ada@a-project-with-a-long-name"):
            assert whose in shown, "who it is comes whole: below, where there is no room"
    assert set(run("top", "--json").document) == {"server", "questions", "runs", "waiting", "tasks"}


def test_top_fits_the_lines_of_the_screen_and_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    at_work, failed = {**RUN, "last_line": "reading the plan"}, {**FAILED, "why": "it said no"}
    done = {**failed, "state": "done", "run_id": "d" * 36, "agent": "Last"}
    found: dict[str, Any] = {"server": STATUS, "questions": [QUESTION] * 3, "waiting": [WAITING] * 2}
    found["tasks"] = [TASK] * 3
    found["runs"] = [*[at_work] * 9, *[{**RUN, "state": "queued"}] * 2, *[failed] * 12, *[done] * 4]
    heads = ["QUESTIONS", "ACTIVE", "QUEUED", "TASKS", "WAITING MESSAGES", "FAILED", "LATELY"]
    for lines in (24, 30, 60):
        shown = rendered(top.drawn(found, lines=lines))
        assert len(shown.splitlines()) <= lines
        lists = re.split(r"\n+(?=[A-Z ]+ \(\d+\)\n)", shown)[1:]
        assert [one.split(" (")[0] for one in lists] == heads
        for one in lists:
            head, *rows = one.splitlines()
            more = re.fullmatch(r"  and (\d+) more", rows[-1])
            told = sum(not row.startswith(" ") for row in rows)
            assert told >= 1, head
            assert f"({told + (int(more[1]) if more else 0)})" in head
        assert "d" * 36 in lists[-1]
    empty: dict[str, Any] = {"server": STATUS, "questions": [], "runs": [], "waiting": [], "tasks": []}
    assert "No runs, no tasks, no waiting messages" in rendered(top.drawn(empty))


def test_a_span_is_told_in_its_largest_unit() -> None:
    for seconds, told in ((0, "0s"), (59, "59s"), (60, "1m"), (3_599, "59m"), (7_200, "2h"), (200_000, "2d")):
        assert since("1970-01-01T00:00:00Z", seconds * 1000) == told
    assert since(None, 5) == "-"
    assert since("1970-01-01T00:00:09Z", 0) == "0s"  # a clock that was set back


class Context:
    def __init__(self, **params: Any) -> None:
        self.params = params


def test_a_shell_completes_what_the_server_knows_and_nothing_without_one(
    fake: FakePostroom, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    del run  # the environment that names the server
    fake.admin["GET", "/admin/projects"] = lambda _: {"projects": [{"slug": "harbour", "human_key": "/h"}]}
    fake.admin["GET", "/admin/runs"] = lambda _: {"runs": [RUN]}
    fake.admin["GET", "/admin/questions"] = lambda _: {"questions": [QUESTION]}
    agents = [{"name": "Ada", "task_description": "x"}, {"name": "Bo", "task_description": ""}]
    held = [{"id": 12, "path": "piers/**", "agent": "Ada"}]
    fake.tools["list_agents"] = lambda _: {"agents": agents}
    fake.tools["show_project"] = lambda _: {"threads": [{"thread_id": "msg-1", "subject": "Lights\nout"}]}
    fake.tools["list_file_reservations"] = lambda _: {"reservations": held}
    fake.tools["fetch_inbox"] = lambda _: [{"id": 31, "from": "Bo", "subject": "Lights"}]
    kinds = {
        **{"pages": ("/p/h", ("/p/harbour", "/h")), "messages": ("3", ("31", "Bo: Lights"))},
        **{"reservations": ("1", ("12", "piers/**, Ada")), "projects": ("har", ("harbour", "/h"))},
        **{"agents": ("A", ("Ada", "x")), "threads": ("msg", ("msg-1", "Lights out"))},
        "runs": ("01a2", (RUN["run_id"], f"Ada@{RUN['project']}, active")),
        "questions": ("4f", ("4f2a", "May I?")),
    }
    reader = Context(acting="Ada")
    assert {name: look(reader, kinds[name][0]) for name, look in completion.KINDS.items()} == {
        name: [found] for name, (_, found) in kinds.items()
    }
    calls = [one.body["params"] for one in fake.seen if one.body and one.body.get("method") == "tools/call"]
    of_reader = [one for one in calls if one["name"] in ("fetch_inbox", "list_file_reservations")]
    assert [one["arguments"]["agent_name"] for one in of_reader] == ["Ada", "Ada"]
    assert completion.KINDS["messages"](Context(), "") == [], "whose, was not said yet"
    assert completion.KINDS["agents"](Context(), "Z") == []
    monkeypatch.delenv("POSTROOM_URL")
    assert [look(Context(), "") for look in completion.KINDS.values()] == [[]] * 8


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


TREE = dict(commands(get_command(tree())))


def examples(command: Any) -> Sequence[str]:
    _, mark, lines = (command.epilog or "").partition("Examples:\n")
    lines = re.sub(r" \\\n +", " ", lines)  # a backslash continues an example on the next line
    return [line.strip() for line in lines.splitlines() if line.startswith("  ")] if mark else []


def test_every_command_stands_in_one_group_of_the_help_and_every_group_has_examples() -> None:
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(words[0] for words in TREE if len(words) == 1)
    groups = {words: one for words, one in TREE.items() if len(words) == 1 and hasattr(one, "commands")}
    assert [words for words, command in groups.items() if not examples(command)] == []


def test_every_example_of_a_help_is_a_command_with_options_that_there_are() -> None:
    found = [line for command in TREE.values() for line in examples(command)]
    assert len(found) > 30
    for line in found:
        name, *words = shlex.split(line)
        path: tuple[str, ...] = ()
        while words and (*path, words[0]) in TREE:
            path = (*path, words.pop(0))
        assert name == "postroom", line
        assert not hasattr(TREE[path], "commands"), f"{line} names a group"
        TREE[path].make_context(line, list(words), resilient_parsing=False)


def test_who_watches_without_a_server_is_told_that_it_is_waited_for_once_and_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "MIN_PAUSE", 0)
    for is_quiet, told in (
        (False, "no server is running here; waiting for the server\nthe server is back\n"),
        (True, ""),
    ):
        patience = watch.Patience(is_quiet=is_quiet)
        for _ in range(2):
            patience.wait_out(ServerUnavailable("no server is running here"))
        patience.reset()
        assert capsys.readouterr().err == told


# `postroom gateway`.


def test_a_name_without_a_platform_is_refused_before_anybody_is_asked(fake: FakePostroom, run: Run) -> None:
    done = run("gateway", "people", "--remove", "telegram")
    assert (done.code, fake.seen, "telegram/4711" in done.err) == (2, [], True)


def test_messages_that_do_not_add_up_are_said_to(fake: FakePostroom, run: Run) -> None:
    wrong = {**HEALTH, "messages": {**HEALTH["messages"], "adds_up": False}}
    fake.admin["GET", "/health/detailed"] = lambda _: {"gateway": wrong}
    assert "the numbers do not add up" in run("gateway", "status").out


def test_a_file_is_checked_without_a_server_and_tells_who_answers_and_no_secret(
    bare: Run, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    missing = bare("gateway", "config", "check")
    assert (missing.code, "does not exist" in missing.err) == (78, True)
    (data / "chat.token").touch(mode=0o600)
    (data / "chat.token").write_text("sixteen characters or more")
    (data / "gateway.toml").write_text(
        '[agent]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n[platforms.web]\ntoken_file = "chat.token"\n'
    )
    assert bare("gateway", "config", "check").code == 0
    with (data / "gateway.toml").open("a") as file:
        file.write('[[routes]]\nagent = "Bo@harbour"\nmention = "bo"\n')
    done = bare("gateway", "config", "check", "--json")
    assert (list(done.document["channels"]), done.document["agent"]["model"]) == (["web"], "m")
    assert "sixteen" not in bare("gateway", "config", "check").out + done.out
    assert [line.split() for line in bare("gateway", "routes").out.splitlines()] == [
        ["RULE", "AGENT", "ANSWERS"],
        ["1", "Bo@harbour", "mention", "bo"],
        ["2", "default", "all", "messages"],
    ]
    why = ("gateway", "routes", "--why")
    assert bare(*why, "web/ada", "--text", "@bo hi").out == "Bo@harbour: rule 1: mention bo\n"
    assert bare(*why, "web/ada", "--json").document["agent"] == "default"
    assert bare(*why, "no name/ada").code == 2


def test_the_check_of_a_file_finds_all_libraries_that_are_missing(
    bare: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    for name, text in (("bot", "a.b.c"), ("app", "xapp-1")):
        (data / f"{name}.token").touch(mode=0o600)
        (data / f"{name}.token").write_text(text)
    (data / "gateway.toml").write_text(
        "[agent]\nbase_url = 'http://127.0.0.1:9/v1'\nmodel = 'm'\n"
        "[platforms.discord]\ntoken_file = 'bot.token'\n"
        "[platforms.slack]\ntoken_file = 'bot.token'\napp_token_file = 'app.token'\n"
    )
    assert bare("gateway", "config", "check").code == 0
    for platform, library in (("discord", "discord"), ("slack", "websockets")):
        monkeypatch.delitem(sys.modules, f"postroom.gateway.platforms.{platform}_library", raising=False)
        monkeypatch.setitem(sys.modules, library, None)
    checked = bare("gateway", "config", "check")
    assert checked.code == 78
    assert install_command("slack") in checked.err
    assert install_command("discord") in checked.err
