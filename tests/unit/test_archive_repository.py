"""The archive's repository against everything that can come between a batch and its commit."""

import hashlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from filelock import FileLock

from postroom.contracts.errors import ArchiveUnavailable, InvalidArgument, InvalidPath
from postroom.mail.archive import repository as repository_module
from postroom.mail.archive.commit import checked_path, message
from postroom.mail.archive.repository import ArchiveRepository

NOW = 1_760_000_000_123
REAL_GIT = "/usr/bin/env git"


def opened(folder: Path, **options: object) -> ArchiveRepository:
    return ArchiveRepository.open(
        folder,
        author_name="Postroom",
        author_email="postroom@example.invalid",
        **options,  # type: ignore[arg-type] # each test passes what `open` takes
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive.git"


@pytest.fixture
def repository(folder: Path) -> ArchiveRepository:
    return opened(folder)


def git(folder: Path, *arguments: str) -> str:
    """Ask Git itself, so that no test trusts the code under test to judge itself."""
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", "--git-dir", str(folder), *arguments],
        capture_output=True,
        env=environment,
        check=True,
        timeout=30,
    )
    return done.stdout.decode()


def stand_in(tmp_path: Path, case: str) -> str:
    """Make a program that is Git, except for what `case`, a shell case branch, says."""
    program = tmp_path / "git-stand-in"
    program.write_text(f'#!/bin/sh\ncase "$*" in\n{case}\nesac\nexec {REAL_GIT} "$@"\n')
    program.chmod(0o755)
    return str(program)


def refs(folder: Path) -> list[str]:
    return git(folder, "for-each-ref", "--format=%(refname)").split()


# --- what a commit is ---


def test_a_new_repository_is_bare_has_main_and_never_tidies_itself(
    repository: ArchiveRepository, folder: Path
) -> None:
    assert git(folder, "symbolic-ref", "HEAD").strip() == "refs/heads/main"
    assert git(folder, "config", "core.bare").strip() == "true"
    assert git(folder, "config", "gc.auto").strip() == "0"
    assert git(folder, "config", "core.logAllRefUpdates").strip() == "false"
    assert repository.tip() is None
    assert repository.commit_count() == 0
    assert repository.existing(["a.md"]) == set()
    assert repository.read("a.md") is None
    assert list(repository.walk()) == []
    assert repository.paths() == []
    assert repository.check() == []
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_a_batch_is_one_commit_with_all_its_files(repository: ArchiveRepository, folder: Path) -> None:
    written = repository.write(
        {"2026/11/a.md": b"one", "agents/Blue/profile.json": b"{}"},
        subject="mail: two files",
        body="First line.\nSecond line.",
        trailers=[("Message-Id", "17"), ("Thread", "T-1")],
        now=NOW,
    )

    assert written == repository.tip() == git(folder, "rev-parse", "main").strip()
    assert repository.commit_count() == 1
    assert repository.existing(["2026/11/a.md", "agents/Blue/profile.json", "2026", "2026/11/b.md"]) == {
        "2026/11/a.md",
        "agents/Blue/profile.json",
    }
    assert repository.read("2026/11/a.md") == b"one"
    assert repository.read("2026/11") is None
    assert git(folder, "log", "-1", "--format=%an <%ae>|%cn <%ce>|%ad|%cd", "--date=raw").strip() == (
        "Postroom <postroom@example.invalid>|Postroom <postroom@example.invalid>"
        "|1760000000 +0000|1760000000 +0000"
    )
    assert git(folder, "log", "-1", "--format=%B").rstrip("\n") == (
        "mail: two files\n\nFirst line.\nSecond line.\n\nMessage-Id: 17\nThread: T-1"
    )
    assert git(folder, "log", "-1", "--format=%(trailers:key=Thread,valueonly)").strip() == "T-1"
    assert refs(folder) == ["refs/heads/main"]


def test_a_later_batch_adds_and_replaces_and_keeps_the_rest(
    repository: ArchiveRepository, folder: Path
) -> None:
    first = repository.write({"a/1.md": b"1", "a/2.md": b"2"}, subject="one", now=NOW)
    second = repository.write({"a/2.md": b"two", "b/3.md": b"3"}, subject="two", now=NOW + 1000)

    assert git(folder, "rev-list", "main").split() == [second, first]
    assert dict(repository.walk()) == {"a/1.md": b"1", "a/2.md": b"two", "b/3.md": b"3"}
    assert repository.check() == []


def test_an_empty_batch_writes_nothing(repository: ArchiveRepository) -> None:
    assert repository.write({}, subject="nothing", now=NOW) is None
    assert repository.tip() is None


def test_a_repeated_batch_changes_nothing(repository: ArchiveRepository, folder: Path) -> None:
    batch = {"a.md": b"a", "b/c.md": b"c"}
    first = repository.write(batch, subject="once", now=NOW)

    assert repository.write(batch, subject="again", now=NOW + 5000) is None
    assert repository.write({"a.md": b"a"}, subject="a part of it", now=NOW + 9000) is None
    assert repository.tip() == first
    assert refs(folder) == ["refs/heads/main"]
    assert repository.check() == []


def test_any_bytes_come_back_as_they_were(repository: ArchiveRepository) -> None:
    large = hashlib.shake_256(b"large").digest(1_048_576)
    files = {
        "large.webp": large,
        "empty": b"",
        "stream-words": b"data 3\nabc\ncommit refs/heads/main\ndone\n",
        "nul\ttab": b"\x00\xff\r\n\x00",
    }
    repository.write(files, subject="bytes", now=NOW)

    assert {path: repository.read(path) for path in files} == files
    assert dict(repository.walk()) == files


def test_the_message_is_folded_and_cut() -> None:
    text = message(
        "a\nb\r\n  c\x1b[31m " + "x" * 100, "one\r\ntwo\x00\x07\ttab\n\n", [("Key", "v\n\nOther: w")]
    )
    subject, body, trailers = text.split("\n\n")

    assert subject == ("a b c[31m " + "x" * 100)[:72]
    assert body == "one\ntwo\ttab"
    assert trailers == "Key: v Other: w\n"
    assert message(" \n", "", []) == "(no subject)\n"


def test_a_hostile_message_stays_one_sound_commit(repository: ArchiveRepository, folder: Path) -> None:
    repository.write(
        {"a": b""},
        subject="\nfrom refs/heads/main\ndata 0\n\ud800",
        body="\x00\ndata 5\nM 100644 inline x\ndone\n",
        trailers=[("Key", "\ncommit refs/heads/evil")],
        now=NOW,
    )

    assert [path for path, _ in repository.walk()] == ["a"]
    assert refs(folder) == ["refs/heads/main"]
    assert git(folder, "log", "-1", "--format=%s").strip() == "from refs/heads/main data 0 ?"
    assert repository.check() == []


@pytest.mark.parametrize("key", ["", "a b", "a:b", "Ключ", "a\nb"])
def test_a_key_that_is_no_trailer_key_is_refused(repository: ArchiveRepository, key: str) -> None:
    with pytest.raises(InvalidArgument):
        repository.write({"a": b""}, subject="s", trailers=[(key, "v")], now=NOW)


def test_an_instant_before_1970_is_refused(repository: ArchiveRepository) -> None:
    with pytest.raises(InvalidArgument):
        repository.write({"a": b""}, subject="s", now=-1)


@pytest.mark.parametrize(("name", "email"), [("", "a@b"), ("A", " "), ("A <x", "a@b"), ("A", "a@b>\nx")])
def test_an_author_that_would_break_a_commit_is_refused(folder: Path, name: str, email: str) -> None:
    with pytest.raises(InvalidArgument):
        ArchiveRepository.open(folder, author_name=name, author_email=email)
    assert not folder.exists()


# --- paths ---

ODD_BUT_FINE = [
    "quotes \"double\" and 'single'.md",
    "line\nbreak\r.md",
    "back\\slash.md",
    "-r",
    "--help",
    ":(glob)*",
    "[a-z]*?.md",
    " leading and trailing ",
    "данные/Überblick/日本.md",
    "tab\tand\x01control",
    ".gitignore",
    "git/config",
    "a.git/x",
    "refs/heads/main",
    "deep/" * 40 + "leaf",
    "x" * 255,
]


def test_odd_names_are_kept_as_they_are(repository: ArchiveRepository, folder: Path) -> None:
    files = {path: path.encode() for path in ODD_BUT_FINE}
    repository.write(files, subject="odd", now=NOW)

    assert git(folder, "ls-tree", "-r", "-z", "--name-only", "main").rstrip("\0").split("\0") == sorted(
        files, key=str.encode
    )
    assert repository.existing(files) == set(files)
    assert {path: repository.read(path) for path in files} == files
    assert list(repository.walk()) == sorted(files.items(), key=lambda item: item[0].encode())
    assert repository.check() == []


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "a//b",
        "a/",
        "..",
        "../a",
        "a/../b",
        "a/./b",
        "a\\..\\b",
        ".git",
        ".GIT/config",
        "a/.Git/hooks/post-update",
        ".git./x",
        ".git /x",
        ".git::$INDEX_ALLOCATION/x",
        ".g\u200cit/x",
        "a\\.git\\config",
        "git~1/x",
        "GIT~1",
        ".gitmodules",
        "gitmod~1",
        "nul\x00byte",
        "lone\udc80surrogate",
        "x" * 256,
        "long/" * 1000 + "x",
    ],
)
def test_a_hostile_path_is_refused_and_nothing_is_written(repository: ArchiveRepository, path: str) -> None:
    with pytest.raises(InvalidPath) as refused:
        repository.write({"fine.md": b"", path: b"evil"}, subject="s", now=NOW)
    assert refused.value.value == path
    assert repository.tip() is None
    for ask in (repository.read, lambda given: repository.existing([given])):
        with pytest.raises(InvalidPath):
            ask(path)


def test_a_name_that_only_looks_like_gits_own_is_fine() -> None:
    for path in (".gitattributes", "digit~1", ".github/x", "gitty", "git", "a~1", "magit~1"):
        assert checked_path(path) == path


def test_a_file_never_takes_the_place_of_a_folder_nor_a_folder_that_of_a_file(
    repository: ArchiveRepository,
) -> None:
    repository.write({"a/b/c.md": b"c", "d.md": b"d"}, subject="one", now=NOW)
    before = repository.tip()

    for files in ({"a": b""}, {"a/b": b""}, {"d.md/e": b""}, {"x": b"", "x/y": b""}):
        with pytest.raises(InvalidPath):
            repository.write(files, subject="two", now=NOW)
    assert repository.tip() == before
    assert dict(repository.walk()) == {"a/b/c.md": b"c", "d.md": b"d"}


# --- reading ---


def test_walk_shows_one_folder_in_order_and_one_commit_throughout(
    repository: ArchiveRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "GROUP_ITEMS", 3)
    files = {f"m/{day:02}/{name}": f"{day}{name}".encode() for day in range(4) for name in ("b", "a", "a.b")}
    repository.write({**files, "mm/x": b"", "other": b""}, subject="one", now=NOW)

    walk = repository.walk("m/")
    seen = [next(walk)]
    repository.write({"m/03/zz": b"late", "m/03/b": b"changed"}, subject="two", now=NOW)
    seen += walk

    assert seen == sorted(files.items())
    assert [path for path, _ in repository.walk("m/03")] == ["m/03/a", "m/03/a.b", "m/03/b", "m/03/zz"]
    assert repository.paths("m/03/") == ["m/03/a", "m/03/a.b", "m/03/b", "m/03/zz"]
    assert repository.paths() == sorted({*files, "mm/x", "other", "m/03/zz"})
    assert list(repository.walk("nothing/here")) == []
    assert repository.paths("nothing/here") == []
    for ask in (repository.walk, repository.paths):
        with pytest.raises(InvalidPath):
            ask("../m")


def test_walk_holds_some_contents_at_a_time(
    repository: ArchiveRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "GROUP_BYTES", 1000)
    files = {f"f{number:02}": bytes([number]) * 300 for number in range(20)} | {"g": b"g" * 5000, "h": b"h"}
    repository.write(files, subject="one", now=NOW)
    groups: list[int] = []
    contents = repository._contents

    def counted(entries: list[repository_module._Entry]) -> object:
        groups.append(sum(entry.size for entry in entries))
        return contents(entries)

    monkeypatch.setattr(repository, "_contents", counted)
    assert dict(repository.walk()) == files
    assert max(groups) == 5000
    assert sorted(groups)[-2] <= 1000


def test_existing_asks_in_as_many_calls_as_it_needs(
    repository: ArchiveRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "ARGUMENTS_LIMIT", 50)
    files = {f"{number % 7}/file-{number}": b"x" for number in range(60)}
    repository.write(files, subject="one", now=NOW)

    assert repository.existing([*files, "1/file-999", "9/9"]) == set(files)
    assert repository.existing([]) == set()


# --- several writers ---


def test_two_threads_may_open_at_once(folder: Path) -> None:
    start = threading.Barrier(4)
    tips: list[str | None] = []

    def work(number: int) -> None:
        start.wait(timeout=20)
        tips.append(opened(folder).write({f"{number}.md": b"x"}, subject="s", now=NOW))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=40)

    repository = opened(folder)
    assert len(set(tips)) == 4
    assert None not in tips
    assert repository.commit_count() == 4
    assert [path for path, _ in repository.walk()] == ["0.md", "1.md", "2.md", "3.md"]
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def commit_by_somebody_else(folder: Path, path: str) -> None:
    """Add one file to the branch as a Git does that knows nothing of postroom."""
    branch = "refs/heads/main"
    origin = f"from {branch}^0\n" if refs(folder) else ""
    stream = (
        f"commit {branch}\ncommitter T <t@example.invalid> 1 +0000\ndata 0\n{origin}M 644 inline {path}\n"
    )
    command = ["git", "--git-dir", str(folder), "fast-import", "--quiet"]
    subprocess.run(command, input=f"{stream}data 1\nt\n".encode(), check=True, timeout=30)


@pytest.mark.parametrize("already", [False, True])
def test_another_writer_between_read_and_set_costs_nobody_a_file(
    repository: ArchiveRepository, folder: Path, monkeypatch: pytest.MonkeyPatch, already: bool
) -> None:
    if already:
        repository.write({"old.md": b"old"}, subject="old", now=NOW)
    move = repository._move_branch
    moves: list[bool] = []

    def interrupted(parent: str | None, built: str) -> bool:
        if len(moves) < 2:
            commit_by_somebody_else(folder, f"theirs-{len(moves)}.md")
        moves.append(move(parent, built))
        return moves[-1]

    monkeypatch.setattr(repository, "_move_branch", interrupted)
    written = repository.write({"ours.md": b"o"}, subject="ours", now=NOW)

    assert moves == [False, False, True]
    assert repository.tip() == written
    assert repository.commit_count() == 3 + already
    expected = {"ours.md": b"o", "theirs-0.md": b"t", "theirs-1.md": b"t"} | (
        {"old.md": b"old"} if already else {}
    )
    assert dict(repository.walk()) == expected
    assert refs(folder) == ["refs/heads/main"]
    assert repository.check() == []


def test_a_write_that_always_comes_second_gives_up(
    repository: ArchiveRepository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "ATTEMPTS", 3)
    monkeypatch.setattr(repository, "_move_branch", lambda parent, built: False)

    with pytest.raises(ArchiveUnavailable) as refused:
        repository.write({"a": b""}, subject="s", now=NOW)
    assert "3 times" in refused.value.message
    assert refused.value.remedy
    assert repository.tip() is None
    assert refs(folder) == []


def test_a_writer_that_never_gets_its_turn_gives_up(folder: Path) -> None:
    repository = opened(folder, timeout=timedelta(seconds=0.5))
    with FileLock(folder / "postroom.lock"), pytest.raises(ArchiveUnavailable) as refused:
        repository.write({"a": b""}, subject="s", now=NOW)
    assert "postroom.lock" in refused.value.message
    patient = opened(folder)
    assert patient.tip() is None
    assert patient.write({"a": b""}, subject="s", now=NOW)


def test_a_turn_that_cannot_be_taken_is_told(repository: ArchiveRepository, folder: Path) -> None:
    (folder / "postroom.lock").mkdir()
    with pytest.raises(ArchiveUnavailable, match="cannot be written"):
        repository.write({"a": b""}, subject="s", now=NOW)
    assert repository.tip() is None


WRITER = """
import subprocess, sys
from pathlib import Path
from postroom.mail.archive.repository import ArchiveRepository

folder, name, batches = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

class Reported(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print("git", self.pid, flush=True)

subprocess.Popen = Reported
repository = ArchiveRepository.open(folder, author_name="W", author_email="w@example.invalid")
for batch in range(batches):
    folder = f"{name}/{batch:03}"
    files = {f"{folder}/{number}.md": f"{name} {batch} {number}".encode() * 50 for number in range(20)}
    print("done", batch, repository.write(files, subject=f"{name} {batch}", now=1760000000000), flush=True)
"""


def writer(folder: Path, name: str, batches: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, str(batches)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_two_processes_share_one_repository(folder: Path) -> None:
    writers = [writer(folder, name, 20) for name in ("one", "two")]
    for each in writers:
        out, _ = each.communicate(timeout=50)
        assert each.returncode == 0
        assert out.count("done ") == 20

    repository = opened(folder)
    assert repository.commit_count() == 40
    assert sum(1 for _ in repository.walk()) == 40 * 20
    assert refs(folder) == ["refs/heads/main"]
    assert repository.check() == []


@pytest.mark.long
@pytest.mark.parametrize("round_", range(10))
def test_a_killed_writer_leaves_a_sound_repository_and_all_it_reported(folder: Path, round_: int) -> None:
    chance = random.Random(round_)
    lines_left = chance.randint(5, 60)
    reported: list[tuple[str, str]] = []
    with writer(folder, "w", 1000) as process:
        assert process.stdout is not None
        for line in process.stdout:
            word, *rest = line.split()
            if word == "done":
                reported.append((rest[0], rest[1]))
            lines_left -= 1
            if lines_left <= 0 and word == "git":
                break
        process.kill()
        if round_ % 2:  # and, as a machine that dies does, the Git it had just started
            _kill_group(int(rest[0]))

    repository = opened(folder)
    assert repository.check() == []
    assert refs(folder) in ([], ["refs/heads/main"])
    history = git(folder, "rev-list", "main").split() if repository.tip() else []
    assert {commit for _, commit in reported} <= set(history)
    for batch, _ in reported:
        assert sum(1 for _ in repository.walk(f"w/{int(batch):03}")) == 20

    if round_ % 2:  # the operator's part where update-ref itself was killed; else it may still be at work
        (folder / "refs/heads/main.lock").unlink(missing_ok=True)
    assert repository.write({"after.md": b"x"}, subject="after", now=NOW)
    assert repository.check() == []


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


# --- faults ---


def test_a_held_branch_is_told_and_nothing_changes(repository: ArchiveRepository, folder: Path) -> None:
    before = repository.write({"a.md": b"a"}, subject="one", now=NOW)
    lock = folder / "refs/heads/main.lock"
    lock.touch()

    with pytest.raises(ArchiveUnavailable) as refused:
        repository.write({"b.md": b"b"}, subject="two", now=NOW)

    assert "main.lock" in refused.value.message
    assert "lock file" in refused.value.remedy
    assert refused.value.value == str(folder)
    assert refused.value.retryable
    assert lock.exists()
    assert repository.tip() == before
    assert refs(folder) == ["refs/heads/main"]
    assert dict(repository.walk()) == {"a.md": b"a"}

    lock.unlink()
    assert repository.write({"b.md": b"b"}, subject="two", now=NOW)
    assert dict(repository.walk()) == {"a.md": b"a", "b.md": b"b"}
    assert repository.check() == []


def test_a_store_of_objects_that_cannot_be_written_is_told(
    repository: ArchiveRepository, folder: Path
) -> None:
    packs = folder / "objects/pack"
    packs.rmdir()
    packs.write_text("not a folder")

    with pytest.raises(ArchiveUnavailable) as refused:
        repository.write({"a.md": b"a"}, subject="one", now=NOW)
    assert "fast-import" in refused.value.message
    assert refused.value.remedy

    packs.unlink()
    packs.mkdir()
    assert repository.tip() is None
    assert repository.write({"a.md": b"a"}, subject="one", now=NOW)
    assert repository.check() == []


def test_a_missing_program_is_told(folder: Path) -> None:
    with pytest.raises(ArchiveUnavailable) as refused:
        opened(folder, program="/nowhere/git")
    assert "install Git" in refused.value.remedy
    assert refused.value.value == "/nowhere/git"


def test_a_program_that_vanishes_later_is_told(folder: Path, tmp_path: Path) -> None:
    program = stand_in(tmp_path, "")
    repository = opened(folder, program=program)
    Path(program).unlink()
    with pytest.raises(ArchiveUnavailable) as refused:
        repository.write({"a": b""}, subject="s", now=NOW)
    assert "install Git" in refused.value.remedy


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("fatal: write error: No space left on device", "free space"),
        ("error: unable to create temporary file: Read-only file system", "write access"),
        ("fatal: packed object abc (stored in pack) is corrupt", "doctor"),
        ("fatal: something nobody foresaw", "doctor"),
    ],
)
def test_a_failure_of_git_is_told_with_its_remedy(
    folder: Path, tmp_path: Path, said: str, advice: str
) -> None:
    repository = opened(folder, program=stand_in(tmp_path, f'*fast-import*) echo "{said}" >&2; exit 128;;'))
    with pytest.raises(ArchiveUnavailable) as refused:
        repository.write({"a": b""}, subject="s", now=NOW)
    assert said in refused.value.message
    assert advice in refused.value.remedy
    assert refused.value.details == {"command": "fast-import", "exit_code": 128}


def test_a_full_disk_is_not_kept_full_by_what_the_failed_batch_left(folder: Path, tmp_path: Path) -> None:
    opened(folder)
    own = [folder / "objects/pack/tmp_pack_a1B2c3", folder / "fast_import_crash_4711"]
    words = (
        f"fatal: sha1 file '{own[0]}' write error. Out of diskspace\n"
        f"fast-import: dumping crash report to {own[1]}\n"
    )
    (tmp_path / "words").write_text(words)
    others = folder / "objects/pack/tmp_pack_others"
    for path in [*own, others]:
        path.touch()
    program = stand_in(tmp_path, f"*fast-import*) cat '{tmp_path / 'words'}' >&2; exit 128;;")

    with pytest.raises(ArchiveUnavailable) as refused:
        opened(folder, program=program).write({"a": b""}, subject="s", now=NOW)

    assert "free space" in refused.value.remedy
    assert [path for path in own if path.exists()] == []
    assert others.exists()


def test_long_complaints_are_shortened(folder: Path, tmp_path: Path) -> None:
    program = stand_in(tmp_path, "*fast-import*) yes words | head -c 100000 >&2; exit 1;;")
    with pytest.raises(ArchiveUnavailable) as refused:
        opened(folder, program=program).write({"a": b""}, subject="s", now=NOW)
    assert len(refused.value.message) < 400


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_git_that_hangs_is_ended_with_its_children(folder: Path, tmp_path: Path, trap: str) -> None:
    pipe = tmp_path / "alive"
    never = tmp_path / "never"
    os.mkfifo(pipe)
    os.mkfifo(never)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    # The stand-in and its child hold the pipe open; it reads as ended once both are gone.
    program = stand_in(tmp_path, f"*fast-import*) {trap}exec 9>'{pipe}'; (cat '{never}'); exit 0;;")
    repository = opened(folder, timeout=timedelta(seconds=1.5), program=program)
    try:
        with pytest.raises(ArchiveUnavailable) as refused:
            repository.write({"a": b""}, subject="s", now=NOW)
        assert "1.5 s" in refused.value.message
        assert select.select([reader], [], [], 10)[0]
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
    assert opened(folder).write({"a": b""}, subject="s", now=NOW)


def test_a_stream_that_is_cut_off_names_nothing(folder: Path, tmp_path: Path) -> None:
    cut = stand_in(tmp_path, f"*fast-import*) sed '/^get-mark/,$d' | {REAL_GIT} \"$@\"; exit $?;;")
    with pytest.raises(ArchiveUnavailable, match="fast-import"):
        opened(folder, program=cut).write({"a": b"a"}, subject="s", now=NOW)
    assert refs(folder) == []
    assert opened(folder).check() == []


def test_a_lost_answer_may_be_repeated(folder: Path, tmp_path: Path) -> None:
    program = stand_in(tmp_path, f'*update-ref*) {REAL_GIT} "$@"; echo lost >&2; exit 1;;')
    repository = opened(folder, program=program)

    written = repository.write({"a": b"a"}, subject="s", now=NOW)

    assert written is None  # the branch had moved: to this very batch, found on looking again
    assert repository.commit_count() == 1
    assert repository.read("a") == b"a"


def test_a_folder_that_holds_something_else_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "message.txt").write_text("mine")
    with pytest.raises(ArchiveUnavailable) as refused:
        opened(folder)
    assert refused.value.remedy
    assert [entry.name for entry in folder.iterdir()] == ["message.txt"]
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]

    (folder / "HEAD").write_text("mine too")
    with pytest.raises(ArchiveUnavailable, match="not a git repository"):
        opened(folder)


def test_an_empty_folder_becomes_the_repository(tmp_path: Path) -> None:
    empty = tmp_path / "deep" / "archive"
    empty.mkdir(parents=True)
    assert opened(empty).write({"a": b""}, subject="s", now=NOW)
    assert opened(empty).commit_count() == 1


def test_a_place_where_nothing_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "archive.git", tmp_path / ("x" * 300)):
        with pytest.raises(ArchiveUnavailable) as refused:
            opened(path)
        assert refused.value.remedy


def test_a_broken_branch_is_an_error_and_a_finding_never_an_empty_archive(
    repository: ArchiveRepository, folder: Path
) -> None:
    repository.write({"a": b"a"}, subject="s", now=NOW)
    (folder / "refs/heads/main").write_text("")  # what a power cut can leave

    calls: list[Callable[[], object]] = [
        repository.tip,
        repository.commit_count,
        lambda: repository.read("a"),
        lambda: repository.write({"b": b"b"}, subject="s", now=NOW),
    ]
    for call in calls:
        with pytest.raises(ArchiveUnavailable) as refused:
            call()
        assert "doctor" in refused.value.remedy
    assert repository.check() != []


def test_lost_objects_are_an_error_and_a_finding(repository: ArchiveRepository, folder: Path) -> None:
    repository.write({"a": b"a"}, subject="s", now=NOW)
    for part in (folder / "objects/pack").iterdir():
        part.unlink()

    assert repository.check() != []
    for call in (lambda: repository.read("a"), lambda: repository.write({"b": b"b"}, subject="s", now=NOW)):
        with pytest.raises(ArchiveUnavailable) as refused:
            call()
        assert refused.value.remedy


def test_an_object_that_vanishes_while_it_is_read_is_an_error(repository: ArchiveRepository) -> None:
    gone = repository_module._Entry(path="a", blob="0" * 39 + "1", size=3)
    with pytest.raises(ArchiveUnavailable, match="missing or damaged"):
        list(repository._contents([gone]))


def test_a_damaged_pack_is_a_finding(repository: ArchiveRepository, folder: Path) -> None:
    repository.write({"a": hashlib.shake_256(b"a").digest(5000)}, subject="s", now=NOW)
    (pack,) = (folder / "objects/pack").glob("*.pack")
    pack.chmod(0o600)
    damaged = bytearray(pack.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    pack.write_bytes(damaged)

    assert repository.check() != []
    with pytest.raises(ArchiveUnavailable):
        repository.read("a")


def test_the_settings_of_the_user_and_the_callers_environment_do_not_reach_git(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text("[user]\n\tname = Mallory\n[core]\n\tbare = nonsense\nthis is no config\n")
    for name in ("GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_AUTHOR_DATE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.chdir(tmp_path)

    repository = opened(Path("archive.git"))
    monkeypatch.chdir("/")

    assert repository.write({"a": b"a"}, subject="s", now=NOW)
    assert git(folder, "log", "-1", "--format=%cn").strip() == "Postroom"
    assert not (tmp_path / "elsewhere").exists()
    assert not (folder / "index").exists()


# --- tidying ---


def test_many_packs_become_few_and_nothing_is_lost(
    repository: ArchiveRepository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "PACKS_KEPT", 5)
    files: dict[str, bytes] = {}
    for batch in range(5):
        files |= (added := {f"{batch}/{number}": f"{batch}{number}".encode() for number in range(3)})
        repository.write(added, subject="s", now=NOW)
    assert repository.tidy(NOW) is False

    repository.write({"last": b"x"}, subject="s", now=NOW)
    unnamed = repository._build(repository.tip(), "being written\n", b"", NOW)
    assert repository.tidy(NOW) is True

    assert len(list((folder / "objects/pack").glob("*.pack"))) < 5
    assert dict(repository.walk()) == files | {"last": b"x"}
    assert repository._move_branch(repository.tip(), unnamed)
    assert repository.commit_count() == 7
    assert repository.check() == []
    assert repository.tidy(NOW) is False


def test_loose_objects_are_packed(
    repository: ArchiveRepository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.write({"a": b"a", "b": b"b"}, subject="s", now=NOW)
    (pack,) = (folder / "objects/pack").glob("*.pack")
    content = pack.read_bytes()
    for part in (folder / "objects/pack").iterdir():
        part.unlink()
    subprocess.run(
        ["git", "--git-dir", str(folder), "unpack-objects", "-q"], input=content, check=True, timeout=30
    )
    monkeypatch.setattr(repository_module, "LOOSE_KEPT", 3)

    assert repository.tidy(NOW) is True
    assert repository.tidy(NOW) is False
    assert dict(repository.walk()) == {"a": b"a", "b": b"b"}
    assert repository.check() == []


def test_a_writer_and_readers_go_on_while_another_tidies(
    repository: ArchiveRepository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "PACKS_KEPT", 3)
    faults: list[BaseException] = []
    tidied: list[bool] = []
    done = threading.Event()

    def tidy() -> None:
        try:
            while not done.is_set():
                tidied.append(opened(folder).tidy(NOW))
        except ArchiveUnavailable as error:
            faults.append(error)

    thread = threading.Thread(target=tidy)
    thread.start()
    try:
        for batch in range(25):
            repository.write({f"{batch // 5}/{batch}": b"x" * batch}, subject="s", now=NOW)
            assert sum(1 for _ in repository.walk()) == batch + 1
    finally:
        done.set()
        thread.join(timeout=30)

    assert faults == []
    assert any(tidied)
    assert repository.commit_count() == 25
    assert repository.check() == []


def test_tidy_removes_what_dead_processes_left_and_nothing_younger(
    repository: ArchiveRepository, folder: Path
) -> None:
    old = [
        folder / "objects/pack/tmp_pack_dead",
        folder / "fast_import_crash_1",
        folder / "objects/pack/.tmp-9-pack-a",
    ]
    young = folder / "objects/pack/tmp_pack_alive"
    lock = folder / "refs/heads/main.lock"
    for path in [*old, young, lock]:
        path.touch()
    for path in [*old, lock]:
        os.utime(path, (NOW // 1000 - 7200, NOW // 1000 - 7200))
    os.utime(young, (NOW // 1000 - 60, NOW // 1000 - 60))

    assert repository.tidy(NOW) is False

    assert [path for path in old if path.exists()] == []
    assert young.exists()
    assert lock.exists()
