"""The import names: of the mail system (settings, database, archive, server), and of the gateway."""

import asyncio
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastmcp import Client
from sqlalchemy import text

from mcp_agent_mail import app, config, db, storage
from postroom.app.config import Settings
from postroom.contracts.errors import InvalidArgument, InvalidName

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("DATABASE_URL", f"sqlite+aiosqlite:///{tmp_path / 'names.sqlite3'}")
    monkeypatch.setenv("STORAGE_ROOT", str(tmp_path / "storage"))
    monkeypatch.setenv("POSTROOM_DATA_DIR", str(tmp_path / "data"))
    config.clear_settings_cache()
    yield config.get_settings()
    db.reset_database_state()
    storage.clear_repo_cache()
    config.clear_settings_cache()


def test_settings_are_read_once_and_again_after_a_clear(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_ROOT", str(tmp_path / "elsewhere"))
    assert config.get_settings() is settings
    config.clear_settings_cache()
    assert config.get_settings().storage_root == tmp_path / "elsewhere"


async def test_rows_of_a_session_and_messages_of_the_server_meet_in_one_file(settings: Settings) -> None:
    await db.ensure_schema()
    async with Client(app.build_mcp_server()) as client:
        await client.call_tool("ensure_project", {"human_key": "/srv/x"})
        async with db.get_session() as session:
            row = await session.execute(text("SELECT id FROM projects WHERE slug = 'srv-x'"))
            project_id = row.scalar()
            await session.execute(
                text(
                    "INSERT INTO messages (project_id, sender_id, subject, body_md, importance, ack_required,"
                    " created_ts) VALUES (:p, 1, 'Foreign', 'lighthouse', 'normal', 0, datetime('now'))"
                ),
                {"p": project_id},
            )
            await session.commit()
        found = await client.call_tool("search_messages", {"project_key": "srv-x", "query": "lighthouse"})
        assert [hit["thread_id"] for hit in found.data["hits"]] == ["msg-1"]
        assert found.data["hits"][0]["created_ts"].endswith("Z")
        summary = await client.call_tool("summarize_thread", {"project_key": "srv-x", "thread_id": "msg-1"})
        assert summary.data["messages"] == 1


async def test_what_a_session_does_not_commit_is_undone(settings: Settings) -> None:
    await db.ensure_schema()
    async with db.get_session() as session:
        await session.execute(
            text("INSERT INTO projects (slug, human_key, created_at) VALUES ('a', '/a', datetime('now'))")
        )
    async with db.get_session() as session:
        assert (await session.execute(text("SELECT count(*) FROM projects"))).scalar() == 0


async def test_profiles_and_messages_lie_in_the_archive(settings: Settings) -> None:
    archive = await storage.ensure_archive(settings, "some-project")
    await storage.write_agent_profile(archive, {"name": "Ada", "program": "p"})
    await storage.write_message_bundle(
        archive, message={"id": 7, "subject": "Hi"}, body_md="Body", sender="Ada", recipients=["Ben"]
    )
    found = await asyncio.to_thread(archive.repository.paths)
    assert "agents/Ada/profile.json" in found
    assert sum(path.endswith("/7-hi.md") for path in found) == 1


async def test_bad_profiles_and_messages_are_refused(settings: Settings) -> None:
    archive = await storage.ensure_archive(settings, "some-project")
    with pytest.raises(InvalidName):
        await storage.write_agent_profile(archive, {"name": "../../etc"})
    with pytest.raises(InvalidArgument):
        await storage.write_message_bundle(archive, message={}, body_md="", sender="A", recipients=[])
    assert await asyncio.to_thread(archive.repository.tip) is None


def test_an_application_keeps_its_own_package_gateway(tmp_path: Path) -> None:
    own = tmp_path / "gateway"
    own.mkdir()
    (own / "routes.py").write_text("name = 'mine'\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/postroom"]
    code = """if True:
        import importlib.util, sys
        sys.path = [one for one in sys.path if not one.endswith("import-names")]  # an installation has none
        import gateway.routes, postroom
        print(gateway.routes.name, importlib.util.find_spec("gateway.run"))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("mine None\n", "")


def test_the_import_name_gateway_gives_the_modules_of_the_gateway(tmp_path: Path) -> None:
    code = """if True:
        import gateway.run, postroom.gateway.run
        print(gateway.run is postroom.gateway.run)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
