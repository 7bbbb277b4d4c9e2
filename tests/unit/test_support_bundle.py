"""A support bundle describes an installation and none of its content: every mark is searched."""

import asyncio
import json
import logging
import os
import stat
import tarfile
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from application_room import Place, place
from fake_postroom import FakePostroom
from postroom.app.backups import stamp
from postroom.app.config import Settings
from postroom.app.logs import configure_logs
from postroom.cli.main import main
from postroom.contracts.errors import StoreFull
from postroom.log import get_logger
from postroom.services.runners import RunnerService
from postroom.testing import ManualClock

MARK = "quux"
"""Is part of everything that a person wrote, named or keeps secret here, in any case."""
PROJECT = "/home/Quux/shop"
FILES = {
    *("counts.json", "doctor.json", "log.txt", "metrics.txt", "queue.json", "runners.json", "schema.json"),
    *("schema.sql", "settings.json", "versions.json"),
}


def private_settings() -> dict[str, Any]:
    return {
        **{"owner": "Quux", "git_author_name": "Ada Quux", "git_author_email": "ada@quux.example"},
        **{"environment": "quux-prod", "allowed_hosts": ("mail.quux.example",), "mcp_path": "/quux"},
    }


@pytest.fixture
def here(tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    with place(tmp_path / "Quux" / "data", clock, **private_settings()) as found:
        yield found


async def fill(here: Place) -> list[str]:
    """Put a mark wherever something can be put, and return the tokens that were made."""
    mail = here.application.mail
    await mail.call("ensure_project", {"human_key": PROJECT})
    for name in ("QuuxAda", "QuuxBo"):
        registered = {"project_key": PROJECT, "program": "quux", "model": "quux", "name": name}
        await mail.call("register_agent", {**registered, "task_description": "quux"})
    message = {"subject": "Quux", "body_md": "quux " * 50, "thread_id": "quux-thread", "topic": "quux"}
    sent = {"project_key": PROJECT, "sender_name": "QuuxAda", "to": ["QuuxBo"], **message}
    await mail.call("send_message", sent)
    runner = {
        "argv": ["/opt/quux/bin/tool", "--api-key", "quux", "{prompt}"],
        "cwd": "/home/quux",
        "env": {"API_KEY": "quux"},
        "prompt": "argument",
    }
    await RunnerService(mail, lambda runner: None).declare(PROJECT, "QuuxBo", runner)
    await here.give_up("quux-dead", "the program said: quux")
    await here.queue("quux-waiting")
    folder = here.application.backups.folder
    await here.application.backups.round()
    await asyncio.to_thread((folder / "quux-monday.db").write_bytes, b"quux")
    await asyncio.to_thread(write_log, here.application.settings)
    return [await here.operator.issue_agent_token(PROJECT, "QuuxBo")]


def write_log(settings: Settings) -> None:
    """Log in both forms, as a server does whose output goes to a file."""
    text = ""
    for form in ("console", "json"):
        stream = StringIO()
        configure_logs(Settings(data_dir=settings.data_dir, log_format=form), stream=stream)
        log = get_logger("postroom.app.somewhere")
        log.error("backup.failed", code=StoreFull.code, reason="quux", agent="QuuxBo", path="/home/quux")
        log.warning("quux said code=quux_word")
        log.info("agents.started", code="quux_word")
        logging.getLogger("quux").warning("mail.quux.example is away")
        logging.getLogger("library").warning("mail.quux.example   [postroom.quux]")
        text += stream.getvalue()
    greeting = "postroom\n  page http://127.0.0.1:1/login?code=quux\n"
    (settings.data_dir / "server.log").write_text(f"{greeting}{text}Traceback quux\n{{quux\n")
    assert MARK in text.lower()


def refuse_marks(files: dict[str, str], secrets: list[str]) -> None:
    for name, text in files.items():
        assert MARK not in text.lower(), name
        assert not [secret for secret in secrets if secret in text], name


async def test_nothing_that_somebody_wrote_named_or_keeps_secret_is_in_it(here: Place) -> None:
    secrets = await fill(here)
    files = dict(await here.operator.support_bundle())
    assert files.keys() == FILES
    refuse_marks(files, secrets)


async def test_it_tells_what_helps(here: Place) -> None:
    await fill(here)
    files = dict(await here.operator.support_bundle())
    queue = json.loads(files["queue.json"])
    assert queue["states"] == {"DeadLetter": 1, "Queued": 1}
    assert {one["status"] for one in queue["runs"]} == {"DeadLetter", "Queued"}
    (runner,) = json.loads(files["runners.json"])
    assert (runner["recipe"], runner["program"], runner["words"]) == ("shell", "tool", 4)
    assert runner["env"] == ["API_KEY"]
    settings = {one["name"]: one["value"] for one in json.loads(files["settings.json"])}
    assert (settings["backup_interval"], settings["profile"], settings["owner"]) == ("1d", "full", "(hidden)")
    doctor = {one["part"]: one for one in json.loads(files["doctor.json"])}
    assert (doctor["runs"]["state"], doctor["runs"]["dead_letter"]) == ("failed", 1)
    assert doctor["runner"] == {"part": "runner", "state": "failed", "code": "command_not_started"}
    assert json.loads(files["counts.json"])["messages"] == 1
    assert "CREATE TABLE messages" in files["schema.sql"]
    assert "postroom_dead_letters 1.0" in files["metrics.txt"]
    told = [line.split(" ", 1)[1] for line in files["log.txt"].splitlines()]
    assert told == ["error backup.failed code=store_full", "info agents.started"] * 2


def test_an_id_that_was_not_made_at_random_is_told_apart_and_not_shown(here: Place) -> None:
    from postroom.app.support import _id

    random = "0123456789abcdef0123456789abcdef"
    assert _id(random) == random
    assert _id(f"run_{random}") == f"run_{random}"
    assert _id("quux") == _id("quux") != _id("quux2")
    assert MARK not in _id("quux")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith("POSTROOM_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "Quux" / "data"
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("POSTROOM_OWNER", "Quux")
    return folder


def unpacked(bundle: Path) -> dict[str, str]:
    """Return the files of a bundle; what stands in its heads counts as one of them."""
    files, heads = {}, []
    with tarfile.open(bundle) as opened:
        for member in opened.getmembers():
            content = opened.extractfile(member)
            assert content is not None
            files[Path(member.name).name] = content.read().decode()
            heads.append(
                f"{member.name} {member.uname} {member.gname} {member.uid} {member.gid} {oct(member.mode)}"
            )
    assert all(head.endswith("  0 0 0o600") for head in heads), heads
    return files


def test_without_a_server_it_holds_what_can_be_read(
    data: Path, tmp_path: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    with place(data, clock, **private_settings()) as here:
        secrets = asyncio.run(fill(here))
    target = tmp_path / "bundle.tar.gz"
    assert main(["support-bundle", "--output", str(target), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["path"], document["server"]) == (str(target), False)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    files = unpacked(target)
    assert files.keys() == FILES - {"metrics.txt", "runners.json"}
    refuse_marks(files, secrets)
    doctor = {one["part"]: one["state"] for one in json.loads(files["doctor.json"])}
    assert doctor == {"server": "failed", "store": "ok", "backups": "ok", "disk": "ok"}
    assert json.loads(files["queue.json"])["states"] == {"DeadLetter": 1, "Queued": 1}


@pytest.mark.parametrize("content", [None, b"quux is no database" * 1000])
def test_without_a_database_that_can_be_read_it_says_so(
    content: bytes | None, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data.mkdir(parents=True)
    if content is not None:
        (data / "postroom.db").write_bytes(content)
    target = tmp_path / "bundle.tar.gz"
    assert main(["support-bundle", "--output", str(target)]) == 0
    files = unpacked(target)
    refuse_marks(files, [])
    doctor = {one["part"]: one for one in json.loads(files["doctor.json"])}
    assert doctor["store"]["state"] == "failed"
    assert doctor["store"]["code"] == ("state_conflict" if content is None else "store_corrupt")


def test_a_file_that_is_there_is_not_replaced(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.write_text("mine")
    assert main(["support-bundle", "--output", str(target), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "invalid_path"
    assert target.read_text() == "mine"
    missing = str(tmp_path / "gone" / "bundle.tar.gz")
    assert main(["support-bundle", "--output", missing, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "invalid_path"


def test_a_running_server_tells_what_is_packed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "bundle.tar.gz"
    with FakePostroom() as fake:
        fake.admin[("GET", "/admin/support-bundle")] = lambda _: {"files": {"../../counts.json": "{}\n"}}
        monkeypatch.setenv("POSTROOM_URL", fake.url)
        assert main(["support-bundle", "--output", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["server"] is True
    assert unpacked(target) == {"counts.json": "{}\n"}
    assert stamp(0) == "1970-01-01T000000000Z"
