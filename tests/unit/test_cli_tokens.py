"""`postroom tokens`: what is sent, what is printed once, and what is left behind when it is refused."""

import hashlib
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_postroom import FakePostroom, Raw, Seen
from postroom.cli.main import main
from postroom.contracts.tokens import TOKEN_FORM

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fake() -> Iterator[FakePostroom]:
    with FakePostroom() as running:
        running.admin["POST", "/admin/tokens"] = _told
        running.admin["POST", "/admin/tokens/rotate"] = _told
        running.admin["DELETE", "/admin/tokens"] = lambda _: {"revoked": 1}
        yield running


@pytest.fixture
def run(
    fake: FakePostroom, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("POSTROOM_URL", fake.url)

    def running(*words: str) -> tuple[int, str, str]:
        code = main(("tokens", *words))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return running


def _told(seen: Seen) -> dict[str, Any]:
    return {"name": seen.body["name"], "id": seen.body["id"], "state": "good"}


def _problem(status: int, code: str, *, retryable: bool) -> Raw:
    told = {"code": code, "detail": "no", "retryable": retryable}
    return Raw(status, json.dumps(told).encode(), "application/problem+json")


def test_a_token_is_printed_once_and_only_its_hash_is_sent(
    fake: FakePostroom, run: Run, tmp_path: Path
) -> None:
    code, out, err = run(
        "create", "ci", "--scope", "mail:read", "--scope", "run", "-p", ".", "--expires", "90d"
    )
    token = out.strip()
    assert (code, err) == (0, "")
    found = TOKEN_FORM.fullmatch(token)
    assert found
    (sent,) = fake.seen
    assert sent.body == {
        "name": "ci",
        "scopes": ["mail:read", "run"],
        "project": str(tmp_path),
        "life_seconds": 90 * 86_400,
        "id": found[1],
        "hash": hashlib.sha256(token.encode()).hexdigest(),
    }
    assert token[17:] not in json.dumps(sent.body)


def test_a_token_may_go_into_a_private_file_and_is_not_printed(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("create", "ci", "--scope", "run", "--out", "token", "--json")
    file = tmp_path / "token"
    assert code == 0
    assert TOKEN_FORM.fullmatch(file.read_text().strip())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(out)["file"] == str(file)
    assert "prt_" not in out


@pytest.mark.parametrize("there", ["file", "no folder", "link"])
def test_a_file_that_cannot_be_made_new_is_left_alone(
    fake: FakePostroom, run: Run, tmp_path: Path, there: str
) -> None:
    target = tmp_path / ("gone/token" if there == "no folder" else "token")
    if there == "file":
        target.write_text("mine")
    if there == "link":
        target.symlink_to(tmp_path / "elsewhere")
    code, _, err = run("create", "ci", "--scope", "run", "--out", str(target))
    assert code == 2
    assert "cannot be made" in err
    assert fake.seen == []
    assert there != "file" or target.read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_a_refused_token_leaves_no_file_and_is_not_printed(
    fake: FakePostroom, run: Run, tmp_path: Path
) -> None:
    fake.admin["POST", "/admin/tokens"] = lambda _: _problem(409, "name_taken", retryable=False)
    code, out, _ = run("create", "ci", "--scope", "run", "--out", "token")
    assert code == 2
    assert "prt_" not in out
    assert not (tmp_path / "token").exists()
    assert len(fake.seen) == 1


@pytest.mark.parametrize(
    "lost", [_problem(503, "commit_unknown", retryable=True), Raw(502, b"<html>", "text/html")]
)
@pytest.mark.parametrize("words", [("create", "ci", "--scope", "run"), ("rotate", "ci")])
def test_when_the_answer_is_lost_the_same_token_is_sent_again(
    fake: FakePostroom, run: Run, lost: Raw, words: tuple[str, ...]
) -> None:
    path = "/admin/tokens/rotate" if words[0] == "rotate" else "/admin/tokens"
    answers = iter([lost])
    fake.admin["POST", path] = lambda seen: next(answers, None) or _told(seen)
    code, out, _ = run(*words)
    assert code == 0
    first, second = (one.body for one in fake.seen)
    assert first == second
    assert first["hash"] == hashlib.sha256(out.strip().encode()).hexdigest()


def test_an_overlap_is_a_length_of_time(fake: FakePostroom, run: Run) -> None:
    for said, seconds in ((("--overlap", "0s"), 0), ((), 86_400), (("--overlap", "30m"), 1_800)):
        assert run("rotate", "ci", *said)[0] == 0
        assert fake.seen[-1].body["overlap_seconds"] == seconds
    for wrong in ("90", "d", "-1d", "1.5h", "1w", "9999999d", ""):
        code, _, err = run("rotate", "ci", "--overlap", wrong)
        assert (code, "no length of time" in err) == (2, True), wrong
    assert len(fake.seen) == 3


def test_revoking_says_whether_there_was_one(fake: FakePostroom, run: Run) -> None:
    assert run("revoke", "ci")[1] == "ci is revoked\n"
    fake.admin["DELETE", "/admin/tokens"] = lambda _: {"revoked": 0}
    assert run("revoke", "ci")[1] == "ci was no good any more\n"
    assert fake.seen[-1].body == {"name": "ci"}


def test_the_list_shows_what_each_may_and_when_it_was_used(fake: FakePostroom, run: Run) -> None:
    row = {"name": "ci", "id": "a" * 12, "scopes": ["run"], "project": None, "expires_at": None}
    told = {"tokens": [{**row, "state": "good", "last_used_at": "2026-11-21"}, {**row, "state": "replaced"}]}
    told["tokens"][1]["last_used_at"] = None
    fake.admin["GET", "/admin/tokens"] = fake.admin["GET", "/admin/tokens?all=yes"] = lambda _: told
    _, out, _ = run("list")
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[1] == ["ci", "run", "all", "good", "never", "2026-11-21", "a" * 12]
    assert rows[2][3:6] == ["replaced, good until it expires", "never", "never"]
    assert json.loads(run("list", "--all", "--json")[1]) == told
    assert fake.seen[-1].path.endswith("?all=yes")


@pytest.mark.parametrize(
    "words",
    [
        ("tokens", "create", "ci", "--scope", "run"),
        ("tokens", "rotate", "ci"),
        ("tokens", "revoke", "ci"),
        ("tokens", "list"),
        ("people", "add", "Kim"),
        ("people", "list"),
        ("people", "remove", "Kim"),
    ],
    ids=" ".join,
)
def test_a_folder_of_data_names_the_server_as_with_other_commands(
    words: tuple[str, ...],
    fake: FakePostroom,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake.admin["GET", "/admin/tokens"] = lambda _: {"tokens": []}
    fake.admin["GET", "/admin/people"] = lambda _: {"people": []}
    fake.admin["PUT", "/admin/people"] = lambda _: {"address": "human:Kim"}
    fake.admin["DELETE", "/admin/people"] = lambda _: {"removed": True}
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "token").write_text("of-this-folder\n")
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("POSTROOM_URL", fake.url)
    assert main((*words, "--data-dir", str(folder))) == 0, capsys.readouterr().err
    assert fake.seen[-1].headers["Authorization"] == "Bearer of-this-folder"
