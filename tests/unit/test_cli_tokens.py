"""`postroom tokens`: the requests, the output that is printed once, and the state after a refusal."""

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from cli_room import Run
from fake_postroom import FakePostroom, Raw, Seen
from postroom.contracts.tokens import TOKEN_FORM
from table_rows import each_row

CREATE = ("tokens", "create", "ci", "--scope", "run")


@pytest.fixture(autouse=True)
def _answers(fake: FakePostroom) -> None:
    fake.admin["POST", "/admin/tokens"] = fake.admin["POST", "/admin/tokens/rotate"] = _told


def _told(seen: Seen) -> dict[str, Any]:
    return {"name": seen.body["name"], "id": seen.body["id"], "state": "valid"}


def _problem(status: int, code: str, *, retryable: bool) -> Raw:
    told = {"code": code, "detail": "no", "retryable": retryable}
    return Raw(status, json.dumps(told).encode(), "application/problem+json")


def test_a_token_is_printed_once_and_only_its_hash_is_sent(
    fake: FakePostroom, run: Run, folder: Path
) -> None:
    done = run(*CREATE, "--scope", "mail:read", "-p", ".", "--expires", "90d")
    token = done.out.strip()
    assert (done.code, done.err) == (0, "")
    found = TOKEN_FORM.fullmatch(token)
    assert found
    (sent,) = fake.seen
    assert sent.body == {
        **{"name": "ci", "scopes": ["run", "mail:read"], "project": str(folder), "life_seconds": 90 * 86_400},
        **{"id": found[1], "hash": hashlib.sha256(token.encode()).hexdigest()},
    }
    assert token[17:] not in json.dumps(sent.body)


def test_a_token_may_go_into_a_private_file_and_is_not_printed(run: Run, folder: Path) -> None:
    done, file = run(*CREATE, "--out", "token", "--json"), folder / "token"
    assert (done.code, done.document["file"], "prt_" in done.out) == (0, str(file), False)
    assert TOKEN_FORM.fullmatch(file.read_text().strip())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_made_new_is_left_alone(fake: FakePostroom, run: Run, folder: Path) -> None:
    (folder / "file").write_text("mine")
    (folder / "link").symlink_to(folder / "elsewhere")
    for target in ("file", "link", "gone/token"):
        done = run(*CREATE, "--out", target)
        assert (done.code, "cannot create" in done.err, fake.seen) == (2, True, []), target
    assert (folder / "file").read_text() == "mine"
    assert not (folder / "elsewhere").exists()


def test_a_refused_token_leaves_no_file_and_is_not_printed(
    fake: FakePostroom, run: Run, folder: Path
) -> None:
    fake.admin["POST", "/admin/tokens"] = lambda _: _problem(409, "name_taken", retryable=False)
    done = run(*CREATE, "--out", "token")
    assert (done.code, "prt_" in done.out, len(fake.seen)) == (2, False, 1)
    assert not (folder / "token").exists()


@each_row("lost", [_problem(503, "commit_unknown", retryable=True), Raw(502, b"<html>", "text/html")])
def test_when_the_answer_is_lost_the_same_token_is_sent_again(
    fake: FakePostroom, run: Run, lost: Raw
) -> None:
    for words, path in ((CREATE, "/admin/tokens"), (("tokens", "rotate", "ci"), "/admin/tokens/rotate")):
        answers = iter([lost])
        fake.admin["POST", path] = lambda seen, answers=answers: next(answers, None) or _told(seen)
        done = run(*words)
        first, second = (one.body for one in fake.seen[-2:])
        assert (done.code, first) == (0, second)
        assert first["hash"] == hashlib.sha256(done.out.strip().encode()).hexdigest()


def test_an_overlap_is_a_length_of_time(fake: FakePostroom, run: Run) -> None:
    words = {"0s": 0, "30m": 1_800, "1.5h": 5_400, "1w": 604_800, "2 hours": 7_200, "P1D": 86_400}
    for said, seconds in (((), 86_400), *((("--overlap", word), found) for word, found in words.items())):
        assert run("tokens", "rotate", "ci", *said).code == 0
        assert fake.seen[-1].body["overlap_seconds"] == seconds
    for wrong in ("90", "d", "-1d", "soon", "1h 1h", ""):
        done = run("tokens", "rotate", "ci", "--overlap", wrong)
        assert (done.code, "not a duration" in done.err) == (2, True), wrong
    assert len(fake.seen) == 1 + len(words)
