"""One Git repository is one project: worktrees, clones, links and folders within, with the real Git."""

import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mail_room import Room, a_room, room_in_memory
from postroom.contracts.errors import NotPermitted
from postroom.contracts.runners import read_runner, runner_of, written_runner
from postroom.mail.context import Caller, Rules
from postroom.mail.git_identity import plain_remote, read_folder
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock

room = room_in_memory


def git(folder: Path, *words: str) -> None:
    ours = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *ours, *words], check=True, capture_output=True)


def a_repository(folder: Path, *, remote: str = "") -> Path:
    (folder / "inner" / "deep").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "inner" / "file").write_text(folder.name)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", f"first of {folder.name}")
    git(folder, "commit", "-q", "--allow-empty", "-m", "second")
    if remote:
        git(folder, "remote", "add", "origin", remote)
    return folder


async def ensured(room: Room, folder: Path, **more: Any) -> Any:
    return await room.call("ensure_project", human_key=str(folder), **more)


@pytest.fixture
def main(tmp_path: Path) -> Path:
    return a_repository(tmp_path / "main", remote="git@example.org:team/app.git")


def copies(main: Path) -> dict[str, Path]:
    """Make every way in which one repository appears in several folders."""
    around = main.parent
    git(main, "worktree", "add", "-q", str(around / "worktree"), "-b", "work")
    git(main, "worktree", "add", "-q", "--detach", str(main / "pages"))
    git(main / "pages", "checkout", "-q", "--orphan", "pages")
    git(main / "pages", "commit", "-q", "-m", "a first commit of its own")
    (around / "link").symlink_to(main)
    (around / "link-within").symlink_to(main / "inner")
    git(around, "clone", "-q", str(main), str(around / "clone"))
    git(around, "clone", "-q", str(around / "clone"), str(around / "clone-of-clone"))
    git(around, "clone", "-q", "--depth", "1", main.as_uri(), str(around / "shallow"))
    git(around, "clone", "-q", str(main), str(around / "without-remote"))
    git(around / "without-remote", "remote", "remove", "origin")
    git(around, "clone", "-q", str(main), str(around / "https"))
    git(around / "https", "remote", "set-url", "origin", "https://me:secret@example.org/team/app")
    made = (
        *("worktree", "link", "link-within", "clone", "clone-of-clone", "shallow", "without-remote", "https"),
    )
    inner = {"pages": main / "pages", "inner": main / "inner", "deep": main / "inner" / "deep"}
    return {name: around / name for name in made} | inner | {"in worktree": around / "worktree" / "inner"}


async def test_every_folder_of_a_repository_is_the_one_project(
    room: Room, main: Path, subtests: pytest.Subtests
) -> None:
    made = await ensured(room, main)
    for name, folder in copies(main).items():
        with subtests.test(name):
            found = await ensured(room, folder)
            assert (found["id"], found["human_key"]) == (made["id"], str(main))
            session = await room.call(
                "start_session", project_key=str(folder), program="p", model="m", name="Ada"
            )
            assert session["project"]["id"] == made["id"]


async def test_it_is_the_one_project_whichever_folder_came_first(
    tmp_path: Path, main: Path, subtests: pytest.Subtests
) -> None:
    folders = copies(main)
    for name, folder in folders.items():
        with subtests.test(name), closing(SqliteStore.in_memory()) as store:
            room = a_room(store, ManualClock())
            made = await ensured(room, folder)
            for other in (main, *folders.values()):
                assert (await ensured(room, other))["id"] == made["id"], other


async def test_a_project_that_began_in_a_worktree_has_the_main_working_tree_as_its_folder(
    room: Room, main: Path
) -> None:
    worktree = main.parent / "worktree"
    git(main, "worktree", "add", "-q", str(worktree), "-b", "work")
    made = await ensured(room, worktree / "inner")
    assert (made["human_key"], made["slug"].endswith("main")) == (str(main), True)
    git(main, "worktree", "remove", str(worktree))
    for gone in (worktree, worktree / "inner"):
        assert (await ensured(room, gone))["id"] == made["id"], "its names stay"


async def test_worktrees_of_a_bare_repository_have_no_other_home(room: Room, main: Path) -> None:
    bare, worktree = main.parent / "app" / ".git", main.parent / "app" / "work"
    git(main, "clone", "-q", "--bare", str(main), str(bare))
    git(bare, "worktree", "add", "-q", str(worktree), "main")
    assert (await ensured(room, worktree))["human_key"] == str(worktree)


async def test_a_folder_that_is_gone_gives_way_to_one_of_its_repository_and_runners_go_along(
    room: Room, main: Path
) -> None:
    """The project was made where worktrees were separate projects."""
    worktree, clone = main.parent / "worktree", main.parent / "clone"
    git(main, "worktree", "add", "-q", str(worktree), "-b", "work")
    with closing(SqliteStore.in_memory()) as store:
        by_folder = a_room(store, ManualClock(), Rules(projects_by="folder"))
        made = await ensured(by_folder, worktree)
        folders = {"Ada": worktree, "Bo": worktree / "inner", "Cy": main.parent}
        for name, folder in folders.items():
            await by_folder.call(
                "register_agent", project_key=str(worktree), program="p", model="m", name=name
            )
            runner = written_runner(runner_of({"argv": ["true"]}, home=str(folder)))
            await by_folder.mail.set_runner(str(worktree), name, runner, declared_by="operator")
        room = a_room(store, ManualClock())
        assert (await ensured(room, main))["human_key"] == str(worktree), "it is there"
        git(main, "worktree", "remove", str(worktree))
        found = await ensured(room, main)
        assert (found["id"], found["slug"], found["human_key"]) == (made["id"], made["slug"], str(main))
        assert (await ensured(room, worktree))["id"] == made["id"]
        kept = await by_folder.store.read(lambda tx: tx.runners(limit=10))
        assert [read_runner(one.runner).cwd for one in kept] == [
            str(main),
            str(main / "inner"),
            str(main.parent),
        ]
        git(main.parent, "clone", "-q", str(main), str(clone))
        git(clone, "remote", "set-url", "origin", "git@example.org:team/app.git")
        shutil.rmtree(main)
        started = await room.call("start_session", project_key=str(clone), program="p", model="m", name="Ada")
        assert (started["project"]["id"], started["project"]["human_key"]) == (made["id"], str(clone))


async def test_a_clone_is_of_the_project_of_its_remote_beside_one_that_shares_the_first_commit(
    room: Room, tmp_path: Path
) -> None:
    alone = a_repository(tmp_path / "alone")
    git(tmp_path, "clone", "-q", "--bare", str(alone), str(tmp_path / "app.git"))
    git(tmp_path, "clone", "-q", "--depth", "1", (tmp_path / "app.git").as_uri(), str(tmp_path / "shallow"))
    git(tmp_path, "clone", "-q", str(tmp_path / "app.git"), str(tmp_path / "clone"))
    first, shallow, clone = [
        (await ensured(room, tmp_path / name))["id"] for name in ("alone", "shallow", "clone")
    ]
    assert (first != shallow, clone) == (True, shallow)


async def test_forks_other_repositories_and_plain_folders_stay_apart(room: Room, main: Path) -> None:
    around = main.parent
    git(around, "clone", "-q", str(main), str(around / "fork"))
    git(around / "fork", "remote", "set-url", "origin", "git@example.org:other/app.git")
    a_repository(around / "other", remote="git@example.org:team/other.git")
    a_repository(around / "alone")
    git(around, "clone", "-q", "--bare", str(main), str(around / "one.git"))
    git(around, "clone", "-q", "--bare", str(main), str(around / "two.git"))
    for name in ("one", "two"):
        git(around / f"{name}.git", "remote", "remove", "origin")
        git(around, "clone", "-q", str(around / f"{name}.git"), str(around / f"of-{name}"))
    (around / "empty").mkdir()
    git(around / "empty", "init", "-q")
    (around / "plain" / "within").mkdir(parents=True)
    names = ("main", "fork", "other", "alone", "of-one", "of-two", "empty", "plain", "plain/within", "gone")
    found = [(await ensured(room, around / name))["id"] for name in names]
    assert len(set(found)) == len(names)


async def test_a_copy_that_fits_two_forks_is_of_neither(room: Room, main: Path) -> None:
    around = main.parent
    git(around, "clone", "-q", str(main), str(around / "fork"))
    git(around / "fork", "remote", "set-url", "origin", "git@example.org:other/app.git")
    git(around, "clone", "-q", str(main), str(around / "copy"))
    git(around / "copy", "remote", "remove", "origin")
    found = {(await ensured(room, around / name))["id"] for name in ("main", "fork", "copy")}
    assert len(found) == 3


async def test_folders_stay_apart_where_the_setting_or_the_caller_says_so(room: Room, main: Path) -> None:
    folders = (main, *copies(main).values())
    with closing(SqliteStore.in_memory()) as store:
        by_folder = a_room(store, ManualClock(), Rules(projects_by="folder"))
        assert len({(await ensured(by_folder, one))["id"] for one in folders}) == len(folders)
    made = await ensured(room, main)
    docs = await ensured(room, main / "inner", git_identity="docs")
    assert docs["id"] != made["id"]
    assert (await ensured(room, main.parent / "elsewhere", git_identity="docs"))["id"] == docs["id"]
    assert (await ensured(room, main / "inner"))["id"] == docs["id"], "and it stays so"


async def test_a_run_that_names_another_folder_of_a_repository_works_in_its_project(
    room: Room, main: Path
) -> None:
    made = await ensured(room, main)
    agent = await room.call(
        "register_agent", project_key=str(main), program="shell", model="none", name="Ada"
    )
    run = Caller(agent_id=agent["id"], run_id="r")
    found = await ensured(room, main / "inner", caller=run)
    assert found["id"] == made["id"]
    (main.parent / "plain").mkdir()
    await room.refused(NotPermitted, "ensure_project", human_key=str(main.parent / "plain"), caller=run)


def test_without_git_a_folder_is_known_by_its_path_and_where_links_lead(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (main.parent / "link").symlink_to(main)
    monkeypatch.setenv("PATH", str(main))
    found = read_folder(str(main.parent / "link"))
    assert (found.top, found.others, found.identity) == (str(main.parent / "link"), (str(main),), "")


def test_what_a_repository_is_set_to_do_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are its maker's: reading them starts no program and reaches no host."""
    main, ran = a_repository(tmp_path / "main"), tmp_path / "ran"
    for name in ("core.sshCommand", "core.fsmonitor", "core.pager", "remote.origin.uploadpack"):
        git(main, "config", name, f"touch {ran}")
    git(main, "config", "remote.origin.url", f"ext::touch {ran}")
    git(main, "config", "remote.origin.promisor", "true")
    git(main, "config", "extensions.partialClone", "origin")
    git(main, "config", "core.repositoryFormatVersion", "1")
    (main / ".git" / "objects").rename(main / ".git" / "gone")
    (main / ".git" / "objects").mkdir()
    read_folder(str(main))
    assert not ran.exists()


async def test_what_is_no_repository_and_no_remote_makes_a_project_all_the_same(
    room: Room, main: Path
) -> None:
    around = main.parent
    (around / "loop").symlink_to(around / "loop")
    for name, remote in (
        *(("long", "%" * 500), ("longer", "x" * 100_000), ("lines", "a\nb")),
        *(("option", "--upload-pack=true"), ("escape", "\x1b[2J")),
    ):
        git(a_repository(around / name), "config", "remote.origin.url", remote)
    (around / "pipe" / ".git").mkdir(parents=True)
    os.mkfifo(around / "pipe" / ".git" / "HEAD")
    (around / "pointer").mkdir()
    (around / "pointer" / ".git").write_text("gitdir: /nowhere\n")
    names = ("long", "longer", "lines", "option", "escape", "loop", "pipe", "pointer", "x" * 300, "y/" * 900)
    found = {(await ensured(room, around / name))["id"] for name in names}
    assert len(found) == len(names)


def test_a_server_that_git_itself_started_asks_about_the_folder_all_the_same(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = a_repository(main.parent / "other")
    monkeypatch.setenv("GIT_DIR", str(main / ".git"))
    assert read_folder(str(other)).identity != read_folder(str(main)).identity


def test_spellings_of_a_remote_are_one_and_none_tells_a_password() -> None:
    spelled = (
        "git@Example.org:team/app.git",
        "https://me:secret@example.org/team/app",
        "ssh://git@example.org:22/team/app.git/",
        "git://example.org/team/app.git",
    )
    assert {plain_remote(one) for one in spelled} == {"example.org/team/app"}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = tmp_path / "plain"
    folder.mkdir()
    if not read_folder(str(folder)).identity:
        pytest.skip("this file system tells no birth time")
    return folder


async def test_a_renamed_folder_without_git_keeps_its_project(room: Room, plain: Path) -> None:
    made = await ensured(room, plain)
    moved = plain.rename(plain.parent / "moved")
    found = await ensured(room, moved)
    assert (found["id"], found["human_key"]) == (made["id"], str(moved))
    assert (await room.call("show_project", project_key=str(plain)))["id"] == made["id"], (
        "the former path too"
    )


async def test_a_folder_made_where_another_was_deleted_is_another_project(room: Room, plain: Path) -> None:
    """File systems give the inode of a deleted folder to the next one."""
    made = await ensured(room, plain)
    plain.rmdir()
    later = plain.parent / "later"
    later.mkdir()
    assert (await ensured(room, later))["id"] != made["id"]


async def test_a_renamed_folder_is_another_project_while_its_former_path_has_a_folder(
    room: Room, plain: Path
) -> None:
    made = await ensured(room, plain)
    moved = plain.rename(plain.parent / "moved")
    plain.mkdir()
    assert (await ensured(room, moved))["id"] != made["id"]
    assert (await ensured(room, plain))["id"] == made["id"]


async def test_a_folder_that_becomes_a_repository_is_known_by_it(room: Room, plain: Path) -> None:
    made = await ensured(room, plain)
    a_repository(plain, remote="git@example.org:team/later.git")
    again = await ensured(room, plain)
    git(plain.parent, "clone", "-q", str(plain), str(plain.parent / "clone"))
    assert (await ensured(room, plain.parent / "clone"))["id"] == again["id"] == made["id"]
