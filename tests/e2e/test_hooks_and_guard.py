"""A real server, real processes of hooks, a real repository: what a day with hooks looks like."""

import fcntl
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.running import Line, RunningServer, lines_of, plain_environment
from machine import PATIENCE

pytestmark = pytest.mark.long

IDENTITY = {
    "GIT_AUTHOR_NAME": "n",
    "GIT_AUTHOR_EMAIL": "e@x",
    "GIT_COMMITTER_NAME": "n",
    "GIT_COMMITTER_EMAIL": "e@x",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    run(["git", "init", "-q", "-b", "main"], folder, {})
    return folder


def run(
    words: list[str], folder: Path, environment: Mapping[str, str], given: str = "", code: int | None = 0
) -> subprocess.CompletedProcess[str]:
    plain = {**plain_environment(folder.parent), **IDENTITY, **environment}
    done = subprocess.run(
        words, cwd=folder, input=given, capture_output=True, text=True, env=plain, timeout=30, check=False
    )
    assert code is None or done.returncode == code, done
    return done


def postroom(data: Path, folder: Path, *words: str, given: str = "", code: int = 0, **more: str) -> str:
    surroundings = {"POSTROOM_DATA_DIR": str(data), **more}
    return run([sys.executable, "-m", "postroom", *words], folder, surroundings, given, code).stdout


def hook(server: RunningServer, repo: Path, event: str, client: str = "claude", **sent: Any) -> Any:
    given = json.dumps({"session_id": "s1", "cwd": str(repo), **sent})
    found = postroom(server.data_dir, repo, "hook", client, event, given=given)
    return json.loads(found) if found else None


def furnished(server: RunningServer, repo: Path) -> Line:
    line = server.line()
    line.crew(str(repo), "Ada", "Ben")
    return line


def send(line: Line, repo: Path, *, subject: str = "A subject") -> int:
    message = {"to": ["Ben"], "subject": subject, "body_md": "A body"}
    sent = line.tool("send_message", project_key=str(repo), sender_name="Ada", **message)
    return int(sent["deliveries"][0]["payload"]["id"])


def test_a_session_from_its_start_to_its_end(server: RunningServer, repo: Path) -> None:
    with furnished(server, repo) as line:
        welcome = hook(server, repo, "SessionStart", source="startup")
        assert "start_session" in welcome["hookSpecificOutput"]["additionalContext"]
        sent = send(line, repo, subject="SECRET")
        assert hook(server, repo, "UserPromptSubmit") is None
        started = line.tool("start_session", project_key=str(repo), program="p", model="m", name="Ben")
        tool = {"tool_name": "mcp__postroom__start_session", "tool_input": {"project_key": str(repo)}}
        response = [{"type": "text", "text": json.dumps(started)}]
        assert hook(server, repo, "PostToolUse", **tool, tool_response=response) is None
        told = hook(server, repo, "UserPromptSubmit")["hookSpecificOutput"]["additionalContext"]
        assert '1 unread message for "Ben"; newest from "Ada"' in told
        assert "SECRET" not in told
        assert hook(server, repo, "UserPromptSubmit") is None
        status = line.tool("delivery_status", project_key=str(repo), agent_name="Ada", message_id=sent)
        assert status["recipients"][0]["state"] == "announced"
        server.kill()
        server.start()
    with server.line() as line:
        assert hook(server, repo, "UserPromptSubmit") is None
        assert hook(server, repo, "Stop", stop_hook_active=False)["decision"] == "block"
        assert hook(server, repo, "Stop", stop_hook_active=False) is None
        place = {"project_key": str(repo)}
        line.tool("file_reservation_paths", **place, agent_name="Ada", paths=["src/**"])
        line.tool("file_reservation_paths", **place, agent_name="Ben", paths=["by-hand"])
        asked = {**place, "agent_name": "Ben", "paths": ["docs/**"]}
        made = [{"type": "text", "text": json.dumps(line.tool("file_reservation_paths", **asked))}]
        tool = {"tool_name": "mcp__postroom__file_reservation_paths", "tool_input": asked}
        assert hook(server, repo, "PostToolUse", **tool, tool_response=made) is None
        edit = {"tool_name": "Write", "tool_input": {"file_path": str(repo / "src/a.py"), "content": "x"}}
        refused = hook(server, repo, "PreToolUse", **edit)["hookSpecificOutput"]
        assert refused["permissionDecision"] == "deny"
        assert '"src/a.py" is reserved by "Ada"' in refused["permissionDecisionReason"]
        own = {"tool_name": "Write", "tool_input": {"file_path": str(repo / "docs/a.md")}}
        assert hook(server, repo, "PreToolUse", **own) is None
        assert hook(server, repo, "SessionEnd", reason="exit") is None
        held = line.tool("list_file_reservations", project_key=str(repo))["reservations"]
        assert [one["path"] for one in held] == ["src/**", "by-hand"]
    server.stop()
    assert hook(server, repo, "PreToolUse", **edit) is None
    assert server.token not in server.log()


def test_commits_and_pushes_are_held_in_every_worktree(server: RunningServer, repo: Path) -> None:
    surroundings = {"POSTROOM_DATA_DIR": str(server.data_dir), "POSTROOM_AGENT": "Ben"}

    def git(*words: str, folder: Path = repo, code: int | None = 0, **more: str) -> str:
        return run(["git", *words], folder, {**surroundings, **more}, code=code).stderr

    git("commit", "-q", "--allow-empty", "-m", "first")
    git("init", "-q", "--bare", str(repo.parent / "origin.git"))
    git("remote", "add", "origin", str(repo.parent / "origin.git"))
    git("push", "-q", "origin", "main")
    tree = repo.parent / "tree"
    git("worktree", "add", "-q", str(tree))
    with furnished(server, repo) as line:
        place = {"project_key": str(repo)}
        line.tool("file_reservation_paths", **place, agent_name="Ada", paths=["piers/**"])
        assert "installed" in postroom(server.data_dir, tree, "guard", "install")
        for folder in (repo, tree):
            (folder / "piers").mkdir()
            (folder / "piers" / "a 'b\".py").write_text("x")
            (folder / "free.py").write_text("x")
            git("add", "free.py", folder=folder)
            git("commit", "-q", "-m", "free", folder=folder)
            git("add", ".", folder=folder)
            said = git("commit", "-q", "-m", "held", folder=folder, code=1)
            assert 'is reserved by "Ada"' in said
            assert "--no-verify" not in said  # a model that commits reads it
        git("commit", "-q", "-m", "own", POSTROOM_AGENT="Ada")
        assert "is reserved by" in git("push", "-q", "origin", "main", code=1)
        git("push", "-q", "origin", "main", POSTROOM_GUARD="off")
        said = git("commit", "-q", "--allow-empty", "-m", "x", POSTROOM_AGENT="Nobody")
        assert said == ""
        git("mv", "piers/a 'b\".py", "moved.py")
        said = git("commit", "-q", "-m", "nobody", POSTROOM_AGENT="Nobody", code=1, POSTROOM_GUARD="block")
        assert "no agent belongs to this session" in said
        assert "is reserved by" in git("commit", "-q", "-m", "held", code=1)
        line.tool("release_file_reservations", **place, agent_name="Ada")
        git("commit", "-q", "-m", "free again")


class Watcher:
    """A process of `postroom watch`, and the lines that it printed."""

    def __init__(self, data: Path, folder: Path, *words: str) -> None:
        surroundings = {**plain_environment(folder.parent), "POSTROOM_DATA_DIR": str(data)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "postroom", "watch", "--as", "Ben", *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=surroundings,
        )

    def end(self, signal_number: int) -> int:
        self.process.send_signal(signal_number)
        code = self.process.wait(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code


def test_messages_are_streamed_once_through_an_absence_of_the_server(repo: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with RunningServer(data) as server, furnished(server, repo) as line:
        first = send(line, repo)
        watcher = Watcher(data, repo, "--after", "0")
        assert lines_of(watcher.process, 1) == [f"1\t{first}\tnormal\tAda"]
        second = send(line, repo)
        assert lines_of(watcher.process, 1) == [f"2\t{second}\tnormal\tAda"]
        server.kill()
        server.start()
    with RunningServer(data) as server, server.line() as line:
        third = send(line, repo)
        assert lines_of(watcher.process, 1) == [f"3\t{third}\tnormal\tAda"]
        assert watcher.end(15) == 143
        again = Watcher(data, repo, "--after", "1", "--json")
        found = [json.loads(text) for text in lines_of(again.process, 2)]
        assert [(one["seq"], one["id"], one["from"]) for one in found] == [
            (2, second, "Ada"),
            (3, third, "Ada"),
        ]
        assert "subject" not in found[0]
        assert again.end(2) == 130
        status = line.tool("delivery_status", project_key=str(repo), agent_name="Ada", message_id=first)
        assert status["recipients"][0]["announced_by"] == "watch"


def test_a_watcher_ends_when_nobody_reads_or_nothing_can_be_followed(
    server: RunningServer, repo: Path
) -> None:
    with furnished(server, repo) as line:
        watcher = Watcher(server.data_dir, repo, "--after", "0")
        assert watcher.process.stdout is not None
        watcher.process.stdout.close()
        send(line, repo)
        assert watcher.process.wait(PATIENCE) == 141
        assert watcher.process.stderr is not None
        assert watcher.process.stderr.read() == ""
        watcher.process.stderr.close()
    place = ("--project", str(repo))
    assert "cursor_ahead" in postroom(
        server.data_dir, repo, "watch", "--as", "Ben", "--after", "9", "--json", *place, code=2
    )
    postroom(server.data_dir, repo, "watch", code=2)
    postroom(server.data_dir, repo, "watch", "--as", "Nobody", code=2)


def test_one_who_waits_to_wake_a_session_tells_of_each_unread_message_once(
    server: RunningServer, repo: Path
) -> None:
    def woken(*words: str) -> tuple[int, str]:
        data = {"POSTROOM_DATA_DIR": str(server.data_dir)}
        done = run([sys.executable, "-m", "postroom", "watch", "--wake", *words], repo, data, code=None)
        assert done.stdout == ""
        return done.returncode, done.stderr

    as_ben = ("--as", "Ben", "--after", "0")
    with furnished(server, repo) as line:
        send(line, repo)
        code, told = woken(*as_ben)
        assert (code, told.count("\n")) == (2, 1)
        assert "A message from Ada came for Ben" in told
        line.tool("mark_message_read", project_key=str(repo), agent_name="Ben", message_id=send(line, repo))
        [kept] = server.data_dir.glob("wake-*")
        assert kept.read_text() == "1"
        with kept.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert woken(*as_ben) == (0, "")
        send(line, repo)
        assert woken(*as_ben)[0] == 2
        assert kept.read_text() == "3"
    for words in ((), ("--as", "Nobody")):
        code, told = woken(*words)
        assert (code, bool(told)) == (1, True)


def test_the_p95_of_a_hook_is_below_two_starts_of_the_interpreter(server: RunningServer, repo: Path) -> None:
    """Both are counted in processor time, in turns, so that other work of the machine slows both equally."""
    furnished(server, repo).close()
    given = json.dumps(
        {"session_id": "s1", "cwd": str(repo), "tool_name": "Write", "tool_input": {"file_path": "a"}}
    )
    surroundings = {**os.environ, "POSTROOM_DATA_DIR": str(server.data_dir), "POSTROOM_AGENT": "Ben"}
    calling = (
        "import sys; from postroom.cli.main import main; sys.exit(main(['hook', 'claude', 'PreToolUse']))"
    )
    taken: dict[str, list[float]] = {"pass": [], calling: []}
    for _ in range(30):
        for program, times in taken.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(
                [sys.executable, "-c", program], input=given.encode(), env=surroundings, check=True
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    start, hook_call = (sorted(times)[int(0.95 * len(times))] for times in taken.values())
    print(f"p95 of a start: {1000 * start:.0f} ms, of a hook: {1000 * hook_call:.0f} ms")
    assert hook_call < 2 * start
