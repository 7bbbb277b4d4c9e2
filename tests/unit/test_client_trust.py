"""The report of a client that asks before it runs hooks: passed on unchanged, even if it is useless."""

import json
import sys

import pytest

from clients_room import Room
from table_rows import each_row

GREETING = {"id": 0, "result": {"userAgent": "postroom/0.169.0 (Debian)"}}


def hook(trust: str, *, enabled: bool = True, command: str = "postroom hook codex Stop") -> dict[str, object]:
    return {"eventName": "stop", "command": command, "trustStatus": trust, "enabled": enabled}


def listed(*hooks: dict[str, object]) -> list[dict[str, object]]:
    """Return the answers to the greeting and to the one question after it, about hooks or the account."""
    account = {"account": {"type": "apiKey"}, "requiresOpenaiAuth": True}
    return [GREETING, {"id": 1, "result": {"data": [{"hooks": list(hooks)}], **account}}]


@pytest.fixture
def room(room: Room) -> Room:
    room.home.with_name("bin").mkdir()
    room.more = {"PATH": str(room.home.with_name("bin"))}
    room.set_up("codex")
    return room


def says(room: Room, *lines: object) -> None:
    """Put a program of the client's name on the path that says these lines, one for each that it is asked."""
    program = room.home.with_name("bin") / "codex"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"lines = {[one if isinstance(one, str) else json.dumps(one) for one in lines]!r}\n"
        "for line in lines:\n    sys.stdin.readline()\n    print(line, flush=True)\n"
        "sys.stdin.read()\n"
        if lines
        else "#!/bin/sh\nexit 3\n"
    )
    program.chmod(0o755)


def test_a_client_that_is_not_there_is_not_asked(room: Room) -> None:
    assert room.drifts("codex") == []


@each_row("trust", ["trusted", "managed"])
def test_trusted_hooks_are_well(room: Room, trust: str) -> None:
    says(room, *listed(hook(trust), hook("untrusted", command="mine")))
    assert room.drifts("codex") == []


@each_row(
    "found, why",
    [
        (hook("untrusted"), "stop (untrusted)"),
        (hook("modified"), "stop (modified)"),
        (hook("trusted", enabled=False), "stop (disabled)"),
    ],
)
def test_hooks_that_the_client_does_not_run_are_told_with_its_word_for_why(
    room: Room, found: dict[str, object], why: str
) -> None:
    says(room, *listed(found))
    status = room.status_of("codex")
    [finding] = status.findings
    assert (status.state, finding.drift) == ("drifted", "hooks_untrusted")
    assert why in finding.detail
    assert "start `codex`" in finding.remedy


@each_row(
    "lines, words",
    [
        ((), "found no answer to initialize, because the program ended"),
        (("garbage",), "Expecting value"),
        ((GREETING, {"id": 1, "error": {"message": "unknown method"}}), "Codex 0.169.0 did not say"),
        (listed(hook("trusted", command="mine")), "expected the hooks in its answer to hooks/list"),
        ((GREETING, {"id": 1, "result": {"data": [{"hooks": [{"command": 3}]}]}}), "0.169.0"),
    ],
)
def test_a_client_that_says_nothing_of_use_is_named_with_what_was_expected_and_found(
    room: Room, lines: tuple[object, ...], words: str
) -> None:
    says(room, *lines)
    [finding] = room.status_of("codex").findings
    assert finding.drift == "hooks_unknown"
    assert words in finding.detail
    assert "`codex`" in finding.remedy
