"""The archive's repository against everything that can come between a batch and its commit."""

import hashlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from filelock import FileLock

from machine import PATIENCE
from postroom.contracts.errors import ArchiveUnavailable, InvalidArgument, InvalidPath
from postroom.mail.archive import repository as repository_module
from postroom.mail.archive.repository import ArchiveRepository
from table_rows import each_row

NOW = 1_760_000_000_123
REAL_GIT = "/usr/bin/env git"
NUMBERS = itertools.count()


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
    program = tmp_path / f"git-{next(NUMBERS)}"
    program.write_text(f'#!/bin/sh\ncase "$*" in\n{case}\nesac\nexec {REAL_GIT} "$@"\n')
    program.chmod(0o755)
    return str(program)


def refs(folder: Path) -> list[str]:
    return git(folder, "for-each-ref", "--format=%(refname)").split()


def refused(repository: ArchiveRepository, files: dict[str, bytes] | None = None) -> ArchiveUnavailable:
    """Return how a write is refused."""
    with pytest.raises(ArchiveUnavailable) as raised:
        repository.write(files or {"a": b""}, subject="s", now=NOW)
    assert raised.value.remedy
    return raised.value


def unpack(folder: Path) -> None:
    """Make loose objects of the only pack, as an older Git leaves them."""
    (pack,) = (folder / "objects/pack").glob("*.pack")
    content = pack.read_bytes()
    for part in (folder / "objects/pack").iterdir():
        part.unlink()
    unpacking = ["git", "--git-dir", str(folder), "unpack-objects", "-q"]
    subprocess.run(unpacking, input=content, check=True, timeout=PATIENCE)


# --- what a commit is ---


def test_a_new_repository_is_bare_has_main_and_never_tidies_itself(
    repository: ArchiveRepository, folder: Path
) -> None:
    assert git(folder, "symbolic-ref", "HEAD").strip() == "refs/heads/main"
    for name, value in (("core.bare", "true"), ("gc.auto", "0"), ("core.logAllRefUpdates", "false")):
        assert git(folder, "config", name).strip() == value
    assert (repository.tip(), repository.commit_count(), repository.read("a.md")) == (None, 0, None)
    assert (repository.existing(["a.md"]), repository.paths(), repository.check()) == (set(), [], [])
    assert list(repository.walk()) == []
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
    asked = ["2026/11/a.md", "agents/Blue/profile.json", "2026", "2026/11/b.md"]
    assert repository.existing(asked) == set(asked[:2])
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


def test_later_batches_add_and_replace_whatever_their_bytes_and_an_equal_one_changes_nothing(
    repository: ArchiveRepository, folder: Path
) -> None:
    assert repository.write({}, subject="nothing", now=NOW) is None
    assert repository.tip() is None
    first = repository.write({"a/1.md": b"1", "a/2.md": b"2"}, subject="one", now=NOW)
    second = repository.write({"a/2.md": b"two", "b/3.md": b"3"}, subject="two", now=NOW + 1000)
    assert git(folder, "rev-list", "main").split() == [second, first]
    files = {"a/1.md": b"1", "a/2.md": b"two", "b/3.md": b"3"}
    assert dict(repository.walk()) == files
    for same in (files, {"a/1.md": b"1"}):
        assert repository.write(same, subject="again", now=NOW + 5000) is None
    assert (repository.tip(), refs(folder), repository.check()) == (second, ["refs/heads/main"], [])
    odd = {
        **{"large.webp": hashlib.shake_256(b"large").digest(1_048_576), "empty": b""},
        **{"stream-words": b"data 3\nabc\ncommit refs/heads/main\ndone\n", "nul\ttab": b"\x00\xff\r\n\x00"},
    }
    repository.write(odd, subject="bytes", now=NOW)
    assert {path: repository.read(path) for path in odd} == odd
    assert dict(repository.walk()) == {**files, **odd}


@each_row(
    "subject, body, trailer, written",
    [
        (
            "a\nb\r\n  c\x1b[31m " + "x" * 100,
            "one\r\ntwo\x00\x07\ttab\n\n",
            "v\n\nOther: w",
            ("a b c[31m " + "x" * 100)[:72] + "\n\none\ntwo\ttab\n\nKey: v Other: w",
        ),
        (" \n", "", "v", "(no subject)\n\nKey: v"),
        (
            "\nfrom refs/heads/main\ndata 0\n\ud800",
            "\x00\ndata 5\nM 100644 inline x\ndone\n",
            "\ncommit refs/heads/evil",
            "from refs/heads/main data 0 ?\n\ndata 5\nM 100644 inline x\ndone\n\nKey: commit refs/heads/evil",
        ),
    ],
)
def test_a_hostile_message_is_folded_cut_and_stays_one_sound_commit(
    repository: ArchiveRepository, folder: Path, subject: str, body: str, trailer: str, written: str
) -> None:
    files = {"a": subject.encode(errors="replace")}
    assert repository.write(files, subject=subject, body=body, trailers=[("Key", trailer)], now=NOW)
    assert git(folder, "log", "-1", "--format=%B").strip() == written
    assert [path for path, _ in repository.walk()] == ["a"]
    assert refs(folder) == ["refs/heads/main"]
    assert repository.check() == []


@each_row("name, email", [("", "a@b"), ("A", " "), ("A <x", "a@b"), ("A", "a@b>\nx")])
def test_an_author_a_trailer_or_an_instant_that_would_break_a_commit_is_refused(
    repository: ArchiveRepository, tmp_path: Path, name: str, email: str
) -> None:
    with pytest.raises(InvalidArgument):
        ArchiveRepository.open(tmp_path / "other", author_name=name, author_email=email)
    assert not (tmp_path / "other").exists()
    for key in ("", "a b", "a:b", "Ключ", "a\nb"):
        with pytest.raises(InvalidArgument):
            repository.write({"a": b""}, subject="s", trailers=[(key, "v")], now=NOW)
    with pytest.raises(InvalidArgument):
        repository.write({"a": b""}, subject="s", now=-1)
    assert repository.tip() is None


# --- paths ---

ODD_BUT_FINE = [
    "quotes \"double\" and 'single'.md",
    "line\nbreak\r.md",
    "back\\slash.md",
    *("-r", "--help", ":(glob)*", "[a-z]*?.md", " leading and trailing ", "tab\tand\x01control"),
    "данные/Überblick/日本.md",
    *("git/config", "a.git/x", "refs/heads/main", "deep/" * 40 + "leaf", "x" * 255),
    *(".gitignore", ".gitattributes", "digit~1", ".github/x", "gitty", "a~1", "magit~1"),
]


def test_odd_names_are_kept_as_they_are(repository: ArchiveRepository, folder: Path) -> None:
    files = {path: path.encode() for path in ODD_BUT_FINE}
    repository.write(files, subject="odd", now=NOW)

    listed = git(folder, "ls-tree", "-r", "-z", "--name-only", "main").rstrip("\0").split("\0")
    assert listed == sorted(files, key=str.encode)
    assert repository.existing(files) == set(files)
    assert {path: repository.read(path) for path in files} == files
    assert list(repository.walk()) == sorted(files.items(), key=lambda item: item[0].encode())
    assert repository.check() == []


HOSTILE = [
    *("", "/etc/passwd", "a//b", "a/", "..", "../a", "a/../b", "a/./b", "a\\..\\b"),
    *(".git", ".GIT/config", "a/.Git/hooks/post-update", ".git./x", ".git /x", ".git::$INDEX_ALLOCATION/x"),
    *(".g\u200cit/x", "a\\.git\\config", "git~1/x", "GIT~1", ".gitmodules", "gitmod~1"),
    *("nul\x00byte", "lone\udc80surrogate", "x" * 256, "long/" * 1000 + "x"),
]


@each_row("path", HOSTILE)
def test_a_hostile_path_is_refused_and_nothing_is_written(repository: ArchiveRepository, path: str) -> None:
    with pytest.raises(InvalidPath) as caught:
        repository.write({"fine.md": b"", path: b"evil"}, subject="s", now=NOW)
    assert caught.value.value == path
    assert repository.tip() is None
    for ask in (repository.read, lambda given: repository.existing([given])):
        with pytest.raises(InvalidPath):
            ask(path)


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
    monkeypatch.setattr(repository_module, "GROUP_BYTES", 2**20)
    repository.write({f"f{number:02}": bytes([number]) * 2**18 for number in range(48)}, subject="s", now=NOW)
    tracemalloc.start()
    try:
        assert sum(len(content) for _, content in repository.walk()) == 12 * 2**20
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20, "12 MB are walked through, 1 at a time"
    finally:
        tracemalloc.stop()


# --- several writers ---


def overtaken(tmp_path: Path, folder: Path, times: int, *, begun: bool = True) -> str:
    """Make another Git commit `theirs-0`, ... each time before the branch is set."""
    streams = tmp_path / f"streams-{next(NUMBERS)}"
    streams.mkdir()
    for number in range(times):
        parent = "from refs/heads/main^0\n" if begun or number else ""
        commit = f"commit refs/heads/main\ncommitter T <t@example.invalid> 1 +0000\ndata 0\n{parent}"
        (streams / str(number)).write_text(f"{commit}M 644 inline theirs-{number}\ndata 1\nt\n")
    theirs = f'{REAL_GIT} --git-dir \'{folder}\' fast-import --quiet < "$one" && rm "$one"'
    look = f"for one in '{streams}'/*; do [ -e \"$one\" ] && {theirs}; break; done"
    return stand_in(tmp_path, f"*update-ref*) {look};;")


@each_row("begun", [False, True])
def test_another_writer_between_read_and_set_costs_nobody_a_file(tmp_path: Path, begun: bool) -> None:
    folder = tmp_path / f"archive-{begun}.git"
    old = {"old.md": b"old"} if begun else {}
    opened(folder).write(old, subject="old", now=NOW)
    repository = opened(folder, program=overtaken(tmp_path, folder, 2, begun=begun))
    written = repository.write({"ours.md": b"o"}, subject="ours", now=NOW)

    assert repository.tip() == written
    assert repository.commit_count() == 3 + begun
    assert dict(repository.walk()) == {"ours.md": b"o", "theirs-0": b"t", "theirs-1": b"t"} | old
    assert refs(folder) == ["refs/heads/main"]
    assert repository.check() == []


def test_a_write_that_always_comes_second_gives_up(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "ATTEMPTS", 3)
    opened(folder)
    repository = opened(folder, program=overtaken(tmp_path, folder, 3, begun=False))
    assert "3 times" in refused(repository).message
    assert repository.paths() == ["theirs-0", "theirs-1", "theirs-2"]


def test_a_writer_that_never_gets_its_turn_gives_up(folder: Path) -> None:
    hasty, patient = opened(folder, timeout=timedelta(seconds=0.5)), opened(folder)
    with FileLock(folder / "postroom.lock"):
        assert "postroom.lock" in refused(hasty).message
    assert patient.tip() is None
    assert patient.write({"a": b""}, subject="s", now=NOW)
    (folder / "postroom.lock").unlink(missing_ok=True)
    (folder / "postroom.lock").mkdir()
    assert "cannot be written" in refused(patient, {"b": b""}).message
    assert patient.paths() == ["a"]


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
    for each in [writer(folder, name, 12) for name in ("one", "two")]:
        out, _ = each.communicate(timeout=PATIENCE)
        assert (each.returncode, out.count("done ")) == (0, 12)

    repository = opened(folder)
    assert repository.commit_count() == 24
    assert len(repository.paths()) == 24 * 20
    assert refs(folder) == ["refs/heads/main"]
    assert repository.check() == []


@pytest.mark.long
@each_row("round_", range(10))
def test_a_killed_writer_leaves_a_sound_repository_and_all_it_reported(tmp_path: Path, round_: int) -> None:
    folder = tmp_path / f"archive-{round_}.git"
    lines_left = random.Random(round_).randint(5, 60)
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
            with suppress(ProcessLookupError):
                os.killpg(int(rest[0]), signal.SIGKILL)

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


# --- faults ---


def test_a_held_branch_is_told_and_nothing_changes(repository: ArchiveRepository, folder: Path) -> None:
    before = repository.write({"a.md": b"a"}, subject="one", now=NOW)
    lock = folder / "refs/heads/main.lock"
    lock.touch()

    told = refused(repository, {"b.md": b"b"})
    assert "main.lock" in told.message
    assert "lock file" in told.remedy
    assert (told.value, told.retryable, lock.exists()) == (str(folder), True, True)
    assert repository.tip() == before
    assert refs(folder) == ["refs/heads/main"]

    lock.unlink()
    assert repository.write({"b.md": b"b"}, subject="two", now=NOW)
    assert dict(repository.walk()) == {"a.md": b"a", "b.md": b"b"}
    assert repository.check() == []


@each_row(
    "said, advice",
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
    told = refused(
        opened(folder, program=stand_in(tmp_path, f'*fast-import*) echo "{said}" >&2; exit 128;;'))
    )
    assert said in told.message
    assert advice in told.remedy
    assert told.details == {"command": "fast-import", "exit_code": 128}
    endless = stand_in(tmp_path, "*fast-import*) yes words | head -c 100000 >&2; exit 1;;")
    assert len(refused(opened(folder, program=endless)).message) < 400


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

    assert "free space" in refused(opened(folder, program=program)).remedy
    assert [path for path in own if path.exists()] == []
    assert others.exists()


@each_row("trap", ["", "trap '' TERM; "])
def test_a_git_that_hangs_is_ended_with_its_children(folder: Path, tmp_path: Path, trap: str) -> None:
    row = tmp_path / f"row-{next(NUMBERS)}"
    row.mkdir()
    pipe, never = row / "alive", row / "never"
    os.mkfifo(pipe)
    os.mkfifo(never)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    # The stand-in and its child hold the pipe open; it reads as ended once both are gone.
    hangs = f"*fast-import*) {trap}exec 9>'{pipe}'; (cat '{never}'); exit 0;;"
    repository = opened(folder, timeout=timedelta(seconds=1.5), program=stand_in(tmp_path, hangs))
    try:
        assert "1.5 s" in refused(repository, {pipe.parent.name: b""}).message
        assert select.select([reader], [], [], 10)[0]
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
    assert opened(folder).write({pipe.parent.name: b""}, subject="s", now=NOW)


def test_a_place_that_cannot_be_the_repository_is_told_and_left_alone(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    assert opened(folder).write({"a": b""}, subject="s", now=NOW), "an empty folder becomes one"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "message.txt").write_text("mine")
    for path in (theirs, theirs / "message.txt" / "archive.git", tmp_path / ("x" * 300)):
        with pytest.raises(ArchiveUnavailable) as raised:
            opened(path)
        assert raised.value.remedy
    assert [entry.name for entry in theirs.iterdir()] == ["message.txt"]
    assert {entry.name for entry in tmp_path.iterdir()} == {folder.name, theirs.name}

    (theirs / "HEAD").write_text("mine too")
    with pytest.raises(ArchiveUnavailable, match="not a git repository"):
        opened(theirs)


def lose_the_branch(folder: Path) -> None:
    (folder / "refs/heads/main").write_text("")  # what a power cut can leave


def lose_the_objects(folder: Path) -> None:
    for part in (folder / "objects/pack").iterdir():
        part.unlink()


def lose_one_object(folder: Path) -> None:
    unpack(folder)
    blob = git(folder, "rev-parse", "main:a").strip()
    (folder / "objects" / blob[:2] / blob[2:]).unlink()


def flip_a_bit(folder: Path) -> None:
    (pack,) = (folder / "objects/pack").glob("*.pack")
    pack.chmod(0o600)
    damaged = bytearray(pack.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    pack.write_bytes(damaged)


@each_row("damage", [lose_the_branch, lose_the_objects, lose_one_object, flip_a_bit])
def test_damage_is_an_error_and_a_finding_never_an_empty_archive(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / f"{damage.__name__}.git"
    repository = opened(folder)
    repository.write({"a": hashlib.shake_256(b"a").digest(5000)}, subject="s", now=NOW)
    damage(folder)

    assert repository.check() != []
    calls: list[Callable[[], object]] = [lambda: repository.read("a"), lambda: list(repository.walk())]
    if damage is lose_the_branch:
        calls += [repository.tip, repository.commit_count]
    for call in calls:
        with pytest.raises(ArchiveUnavailable) as raised:
            call()
        assert raised.value.remedy
    if damage in (lose_the_branch, lose_the_objects):
        assert refused(repository, {"b": b"b"})


def test_an_object_that_vanishes_while_it_is_read_is_an_error(folder: Path, tmp_path: Path) -> None:
    opened(folder).write({"a": b"abc"}, subject="s", now=NOW)
    unpack(folder)
    blob = git(folder, "rev-parse", "main:a").strip()
    vanishes = stand_in(tmp_path, f"*cat-file*) rm -f '{folder}/objects/{blob[:2]}/{blob[2:]}';;")
    with pytest.raises(ArchiveUnavailable, match="missing or damaged"):
        opened(folder, program=vanishes).read("a")


def test_a_missing_program_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ArchiveUnavailable) as missing:
        opened(folder, program="/nowhere/git")
    assert missing.value.value == "/nowhere/git"
    vanishes = stand_in(tmp_path, "")
    repository = opened(folder, program=vanishes)
    Path(vanishes).unlink()
    for error in (missing.value, refused(repository)):
        assert "install Git" in error.remedy


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


def test_many_packs_and_loose_objects_become_few_packs_and_nothing_is_lost(
    repository: ArchiveRepository, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_module, "PACKS_KEPT", 5)
    files = {f"{number}": b"%d" % number for number in range(6)}
    for path, content in files.items():
        assert repository.tidy(NOW) is False
        repository.write({path: content}, subject="s", now=NOW)
    assert [repository.tidy(NOW), repository.tidy(NOW)] == [True, False]
    assert len(list((folder / "objects/pack").glob("*.pack"))) < 5
    unpack(folder)
    monkeypatch.setattr(repository_module, "LOOSE_KEPT", 3)
    assert [repository.tidy(NOW), repository.tidy(NOW)] == [True, False]
    assert (dict(repository.walk()), repository.commit_count(), repository.check()) == (files, 6, [])


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
    names = ("objects/pack/tmp_pack_dead", "fast_import_crash_1", "objects/pack/.tmp-9-pack-a")
    old = [folder / name for name in names]
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
