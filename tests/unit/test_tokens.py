"""Tokens, and that none of them reaches a log."""

import errno
import io
import json
import logging
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from machine import PATIENCE
from postroom.app import tokens
from postroom.app.config import load_settings
from postroom.app.logs import configure_logs, log_failure
from postroom.contracts.errors import ConfigError, StoreFull
from postroom.log import binding, get_logger
from postroom.mail.context import token_hash

SECRET = "prm_" + "s" * 43
"""Looks like a token; opens nothing."""


def test_the_first_start_makes_a_private_token_and_later_ones_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "data" / "token"
    token = tokens.load_or_make_token(path)
    assert token.startswith("prm_")
    assert len(token) == len("prm_") + 43
    assert tokens.load_or_make_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [found.name for found in path.parent.iterdir()] == ["token"]


def test_racing_starts_get_one_token(tmp_path: Path) -> None:
    path = tmp_path / "data" / "token"
    barrier = threading.Barrier(8)
    found: list[str] = []

    def start() -> None:
        barrier.wait(timeout=PATIENCE)
        found.append(tokens.load_or_make_token(path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=5)
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]


def test_a_full_disk_takes_no_token_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFull) as caught:
        tokens.load_or_make_token(tmp_path / "token")
    assert str(tmp_path / "token") in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_private_token_of_this_user_is_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            tokens.load_or_make_token(path)
        return caught.value

    path = tmp_path / "token"
    token = tokens.load_or_make_token(path)
    for mode in (0o644, 0o640, 0o604, 0o660, 0o602):
        path.chmod(mode)
        error = refused(path)
        assert (f"{mode:04o}" in error.message, f"chmod 600 {path}" in error.remedy) == (True, True)
        assert token not in str(error.as_dict())
    path.chmod(0o600)
    me = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: me + 1)
        assert f"belongs to user {me}" in refused(path).message
    for content in (b"", b"\n", b"prm_short", b"secret", b"\xff" * 47, SECRET.encode() + b"x"):
        path.write_bytes(content)
        assert "contains no token" in refused(path).message
        assert path.read_bytes() == content
    assert str(tmp_path) in refused(path / "token").message
    (tmp_path / "folder").mkdir(mode=0o700)
    refused(tmp_path / "folder")


def test_tokens_are_stored_by_hash_compared_whole_and_give_a_key_for_each_purpose() -> None:
    assert token_hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    for other in ("", SECRET[:-1], SECRET + "s", SECRET.upper(), "\udcff", "é"):
        assert not tokens.token_check(SECRET)(other)
    assert tokens.token_check(SECRET)(SECRET)
    assert SECRET not in repr(tokens.token_check(SECRET))
    keys = {tokens.derived_key(token, purpose) for token in (SECRET, "x") for purpose in ("page", "mail")}
    assert [len(key) for key in keys] == [32] * 4
    made = {tokens.new_agent_token() for _ in range(100)}
    assert {(token[:4], len(token)) for token in made} == {("pra_", 47)}
    assert len(made) == 100


def test_tokens_passwords_and_keys_of_others_are_masked() -> None:
    for text, expected in [
        (f"token={SECRET}", "token=prm_***"),
        (f"/login?code=prl_{'c' * 43}&x=1", "/login?code=prl_***&x=1"),
        (f"%3Dpra_{'c' * 43}", "%3Dpra_***"),
        ("Authorization: Bearer abcdefghijkl, x", "Authorization: Bearer ***, x"),
        ("authorization: bearer  abcdefghijkl", "authorization: bearer  ***"),
        *((one, one) for one in ("a bearer token is needed", "", "see http://127.0.0.1:8765/p and 10:30")),
    ]:
        assert tokens.redact(text) == expected
    keys = ("xoxb-123456789-abcdef", "ghp_abcdefghij0123456789", "123456789:" + "A" * 35)
    platforms = ("xapp-1-A0123-456-abcdef", f"MTE{'a' * 21}.Gabcde.{'b' * 27}", f"syt_Ym90_{'c' * 20}_1abcde")
    for key in (*keys, *platforms, "eyJhbGciOi.eyJzdWIi.c2ln", "postgresql://ann:hunter22@db/x"):
        shown = tokens.redact(f"failed with {key} twice")
        assert (key in shown, "hunter22" in shown) == (False, False), key


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers = handlers
    root.setLevel(level)


def configured(log: io.StringIO, form: str, level: str = "info") -> None:
    settings = load_settings(
        environment={"HOME": "/nowhere", "POSTROOM_LOG_FORMAT": form, "POSTROOM_LOG_LEVEL": level}
    )
    configure_logs(settings, stream=log)


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_reaches_a_log(log: io.StringIO, form: str) -> None:
    configured(log, form)
    ours = get_logger("ours")
    ours.info("it.happened", note=f"x {SECRET} y", headers={"Cookie": "opensesame"})
    ours.info("it.happened", token="opensesame")
    ours.info(
        "it.happened", values=[f"Bearer {SECRET}"], body_md="the message's text", path=Path(f"/{SECRET}")
    )
    logging.getLogger("library").warning("called with %s", SECRET)
    logging.getLogger("uvicorn.access").info('"GET /login?code=prl_%s HTTP/1.1"', "c" * 43)
    try:
        int(SECRET)
    except ValueError:
        ours.exception("it.broke")
        logging.getLogger("library").exception("broke")
    written = log.getvalue()
    for secret in (SECRET, "s" * 20, "opensesame", "the message's text", "c" * 20):
        assert secret not in written
    assert written.count("Traceback") == 2
    assert "prm_***" in written


def test_json_logs_hold_one_object_a_line_with_what_is_bound_and_nobody_writes_beside_them(
    log: io.StringIO,
) -> None:
    theirs = io.StringIO()
    logging.getLogger("uvicorn.access").addHandler(logging.StreamHandler(theirs))
    configured(log, "json")
    with binding(request_id="r1"):
        get_logger("ours").info("mail.sent", message_id=7, code="ok")
        logging.getLogger("library").warning("line\nfeed %s", "\x1b[31m")
    logging.getLogger("library").warning("bad %d " + SECRET, "x")
    logging.getLogger("uvicorn.access").info("GET /")
    first, second, third, last = (json.loads(line) for line in log.getvalue().splitlines())
    assert (first["event"], first["level"], first["logger"]) == ("mail.sent", "info", "ours")
    assert (first["message_id"], first["code"], first["request_id"]) == (7, "ok", "r1")
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["request_id"]) == ("line\\x0afeed \\x1b[31m", "r1")
    assert (SECRET in third["event"], "do not fit" in third["event"]) == (False, True)
    assert (theirs.getvalue(), last["event"]) == ("", "GET /")
    configured(log, "json", level="warning")
    for name in ("ours", "library"):
        get_logger(name).info("quiet")
        logging.getLogger(name).info("quiet")
    configured(log, "json", level="debug")
    get_logger("ours").debug("said")
    assert [json.loads(line)["event"] for line in log.getvalue().splitlines()[4:]] == ["said"]


def failing(text: str) -> None:
    raise ValueError(text)


def test_no_exception_or_control_character_forges_a_line_of_the_console(log: io.StringIO) -> None:
    configured(log, "console")
    try:
        failing("x\n2026-11-29T00:00:00Z [info    ] forged.line [postroom] \x1b[2J")
    except ValueError:
        get_logger("ours").exception("it.broke")
    get_logger("ours").info("one\ntwo", path="/\x1b[2J")
    lines = log.getvalue().splitlines()
    assert [line for line in lines if not line.startswith("  ")] == [lines[0], lines[-1]]
    assert ("forged" in log.getvalue(), "\x1b" in log.getvalue()) == (True, False)


class FullDisk(io.StringIO):
    """A stream that takes nothing while its disk is full."""

    is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_line_that_cannot_be_written_fails_nobody_and_is_known(
    log: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = FullDisk()
    configured(disk, "json")
    get_logger("ours").info("it.happened")
    failure = log_failure()
    assert failure is not None
    assert failure.errno == errno.ENOSPC
    assert capsys.readouterr().err == ""
    disk.is_full = False
    get_logger("ours").info("it.happened")
    assert log_failure() is None
    assert "it.happened" in disk.getvalue()
