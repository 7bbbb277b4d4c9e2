"""`postroom gateway`, against a fake server: what it sends, what it prints, and the code it ends with."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_postroom import FakePostroom
from postroom.cli.main import main

STATE = {
    "state": "connected",
    "since": "09:30",
    "inbound_at": "10:00",
    "outbound_at": None,
    "error_code": None,
    "error": None,
}
MESSAGES = {"accepted": 3, "finished": 1, "queued": 1, "running": 1, "rejected": 0, "adds_up": True}
HEALTH = {
    "state": "running",
    "channels": {"web": STATE},
    "messages": MESSAGES,
    "dispatches": {},
    "undelivered": 2,
}
ADA = {"platform": "telegram", "user_id": "77", "role": "member", "name": "Ada\x1b[2J", "from": "paired"}
BEN = {"platform": "telegram", "user_id": "78", "name": None, "expires_at": "11:00"}
DEAD = {
    "outbox_id": "o-1",
    "target": "telegram/1",
    "chat": "telegram/77",
    "who": "Ada on telegram",
    "created_at": "09:00",
    "error": "forbidden: blocked",
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fake() -> Iterator[FakePostroom]:
    with FakePostroom() as running:
        yield running


@pytest.fixture
def run(
    fake: FakePostroom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    for name in os.environ:
        if name.startswith("POSTROOM_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("POSTROOM_URL", fake.url)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(("gateway", *words))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


CALLS: list[tuple[tuple[str, ...], tuple[str, str], Any, Any, str]] = [
    (
        ("pair", "telegram", "ABCD2345", "--role", "operator"),
        ("POST", "/admin/gateway/pair"),
        {"platform": "telegram", "code": "ABCD2345", "role": "operator"},
        {"person": ADA},
        "Ada\\x1b[2J is let in as member",
    ),
    (
        ("people", "--remove", "telegram/7/7"),
        ("DELETE", "/admin/gateway/people"),
        {"platform": "telegram", "user_id": "7/7"},
        {"removed": True},
        "telegram/7/7 is shut out",
    ),
    (
        ("send", "slack", "C1", "hello", "--thread", "9.1", "--idempotency-key", "k"),
        ("POST", "/admin/gateway/send"),
        {"platform": "slack", "chat_id": "C1", "text": "hello", "thread_id": "9.1", "key": "k"},
        {"outbox_id": "o-1", "status": "pending"},
        "kept as o-1",
    ),
    (
        ("dead", "--revive", "o-1"),
        ("POST", "/admin/gateway/dead"),
        {"outbox_id": "o-1"},
        {"outbox_id": "o-1", "status": "pending"},
        "o-1 is tried again",
    ),
    (
        ("reconnect", "telegram"),
        ("POST", "/admin/gateway/reconnect"),
        {"platform": "telegram"},
        {"platform": "telegram", "state": "failed", "error": "the token is\x1b refused"},
        "telegram is failed: the token is\\x1b refused",
    ),
    (
        ("people",),
        ("GET", "/admin/gateway/people"),
        None,
        {"people": [ADA], "asking": [BEN]},
        "PLATFORM\tUSER\tROLE\tNAME\tFROM\ntelegram\t77\tmember\tAda\\x1b[2J\tpaired\n"
        "telegram\t78\tasks\t\tuntil 11:00",
    ),
    (
        ("dead",),
        ("GET", "/admin/gateway/dead"),
        None,
        {"undelivered": [DEAD]},
        "ID\tCHAT\tFROM\tSINCE\tWHY\no-1\ttelegram/77\tAda on telegram\t09:00\tforbidden: blocked",
    ),
    (
        ("status",),
        ("GET", "/health/detailed"),
        None,
        {"gateway": HEALTH},
        "gateway: running\nCHANNEL\tSTATE\tSINCE\tRECEIVED\tSENT\tWHY\nweb\tconnected\t09:30\t10:00\t-\t\n"
        "messages: 3 accepted = 1 finished, 1 queued, 1 running, 0 rejected\nundelivered: 2",
    ),
]


@pytest.mark.parametrize(("words", "route", "body", "answer", "text"), CALLS)
def test_a_command_asks_the_server_and_tells_its_answer(
    fake: FakePostroom,
    run: Run,
    words: tuple[str, ...],
    route: tuple[str, str],
    body: Any,
    answer: Any,
    text: str,
) -> None:
    fake.admin[route] = lambda _: answer
    code, out, _ = run(*words)
    assert (code, out.rstrip("\n")) == (0, text)
    assert fake.seen[-1].body == body
    code, out, _ = run(*words, "--json")
    assert code == 0
    assert json.loads(out) == answer.get("gateway", answer)


def test_a_name_without_a_platform_is_refused_before_anybody_is_asked(fake: FakePostroom, run: Run) -> None:
    code, _, err = run("people", "--remove", "telegram")
    assert (code, fake.seen) == (2, [])
    assert "telegram/4711" in err


def test_messages_that_do_not_add_up_are_said_to(fake: FakePostroom, run: Run) -> None:
    wrong = {**HEALTH, "messages": {**MESSAGES, "adds_up": False}}
    fake.admin[("GET", "/health/detailed")] = lambda _: {"gateway": wrong}
    assert "which does not add up" in run("status")[1]


def test_a_file_is_checked_without_a_server_and_no_secret_is_shown(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    code, _, err = run("config", "check")
    assert (code, "there is no" in err) == (78, True)
    (data / "chat.token").touch(mode=0o600)
    (data / "chat.token").write_text("sixteen characters or more")
    (data / "gateway.toml").write_text(
        '[agent]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n[platforms.web]\ntoken_file = "chat.token"\n'
    )
    code, out, _ = run("config", "check", "--json")
    told = json.loads(out)
    assert (code, list(told["channels"]), told["agent"]["model"]) == (0, ["web"], "m")
    assert "sixteen" not in run("config", "check")[1] + out


def test_who_answers_and_why_is_read_off_the_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    token = tmp_path / "data" / "chat.token"
    token.write_text("of-sixteen-characters")
    token.chmod(0o600)
    (tmp_path / "data" / "gateway.toml").write_text(
        '[agent]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n[platforms.web]\ntoken_file = "chat.token"\n'
        '[[routes]]\nagent = "Bo@harbour"\nmention = "bo"\n'
    )
    code, out, _ = run("routes")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["RULE", "AGENT", "ANSWERS"],
        ["1", "Bo@harbour", "mention", "bo"],
        ["2", "default", "all", "messages"],
    ]
    assert run("routes", "--why", "web/ada", "--text", "@bo hi")[1] == "Bo@harbour: rule 1: mention bo\n"
    assert json.loads(run("routes", "--why", "web/ada", "--json")[1])["agent"] == "default"
    assert run("routes", "--why", "irc/ada")[0] == 2


def test_that_everything_was_delivered_is_said_on_stderr(fake: FakePostroom, run: Run) -> None:
    fake.admin[("GET", "/admin/gateway/dead")] = lambda _: {"undelivered": []}
    assert run("dead") == (0, "", "everything was delivered\n")
    assert json.loads(run("dead", "--json")[1]) == {"undelivered": []}
