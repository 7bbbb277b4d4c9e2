"""A throw-away home: one person's machine with clients, the post room and a model, and nothing of the real one."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from e2e.running import RunningServer
from machine import Bound
from real_clients.model_server import ModelServer

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".clients" / "node_modules" / ".bin"
PINS: Mapping[str, str] = json.loads((Path(__file__).parent / "package.json").read_text())["dependencies"]
PATIENCE = 60.0
"""Seconds within which a client must come to its end; a machine that has much else to do is slow."""
NOWHERE = "http://127.0.0.1:9"
"""A proxy that is not there: who asks anything beyond loopback is refused."""
PROXIES = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), NOWHERE),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1"),
}


@contextlib.contextmanager
def beside_packages(name: str) -> Iterator[Path]:
    """Copy a script of this folder, for this process only, to where Node finds the packages that it imports."""
    script = PROGRAMS.parent.parent / f"{os.getpid()}-{name}"
    script.write_text((Path(__file__).parent / name).read_text())
    try:
        yield script
    finally:
        script.unlink()


@dataclass(frozen=True, slots=True)
class Done:
    """A program that came to its end."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        said = f"$ {' '.join(self.words)}\n(exit {self.code})"
        return f"{said}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"

    @property
    def text(self) -> str:
        """Both outputs."""
        return f"{self.out}\n{self.err}"

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of output that are JSON objects."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


class NotOver(AssertionError):
    """A program did not come to its end within the bound, and was killed."""


class Home:
    """A home folder and a project in it; what runs here sees nothing else of this machine's environment."""

    def __init__(self, path: Path, model: ModelServer, *, is_git: bool = True) -> None:
        self.path = path
        self.model = model
        self.project = path / "harbour"
        self.project.mkdir(parents=True)
        (path / "tmp").mkdir()
        (self.project / "quay.txt").write_text("one boat\n")
        self.environment = _environment(path)
        self.server = RunningServer(path / ".local" / "share" / "postroom", environment=self.environment)
        """Not started: `with home.server:` starts it where `postroom` finds it by itself."""
        if is_git:
            self.must("git", "init", "--quiet", "-b", "main")

    def write(self, name: str, text: str) -> Path:
        """Write a file below the home folder."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(
        self,
        *words: str,
        cwd: Path | None = None,
        given: str | None = None,
        patience: float = PATIENCE,
        agent: str = "",
    ) -> Done:
        """Run a program in the project to its end, as an agent if `agent` is given.

        A program that takes too long fails the test with its output.
        """
        with subprocess.Popen(
            words,
            cwd=cwd or self.project,
            env={**self.environment, **({"POSTROOM_AGENT": agent} if agent else {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            bound, text = Bound(patience), (given or "").encode()
            while True:
                try:
                    out, err = process.communicate(text, timeout=bound.wait())
                    break
                except subprocess.TimeoutExpired:  # what it has said so far is kept for the next try
                    text = b""
                    if not bound.has_passed():
                        continue
                os.killpg(process.pid, 9)
                out, err = process.communicate()
                said = Done(words, -9, out.decode(errors="replace"), err.decode(errors="replace"))
                raise NotOver(f"not over in {patience} s of work: {said}\n{self.model.story()}")
        return Done(words, process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))

    def must(self, *words: str, **how: Any) -> Done:
        """Run a program that must exit with 0."""
        done = self.run(*words, **how)
        assert done.code == 0, f"{done}\n{self.model.story()}"
        return done

    def postroom(self, *words: str) -> Any:
        """Run a command of postroom in the project, and return its document."""
        return json.loads(self.must("postroom", *words, "--json").out)

    def end(self) -> None:
        """End what still runs in this home: Cline, for example, leaves a daemon."""
        for process in _marked(f"HOME={self.path}"):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def await_end_of(self, mark: str) -> None:
        """Wait until no process of this home has a variable in its environment; fail after a bound."""
        bound = Bound(PATIENCE)
        while left := _marked(mark):
            assert not bound.has_passed(), f"still running: {left}"
            psutil.wait_procs(left, timeout=1)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if mark.encode() + b"\0" in Path(f"/proc/{process.pid}/environ").read_bytes() + b"\0":
                found.append(process)
    return found


def _environment(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "PATH": os.pathsep.join(
            [str(PROGRAMS), str(Path(sys.executable).parent), os.environ.get("PATH", "/usr/bin:/bin")]
        ),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": str(home / "tmp"),
        "GIT_CONFIG_NOSYSTEM": "1",
        **PROXIES,
    }


def are_installed(packages: Sequence[str] = tuple(PINS)) -> bool:
    """Return whether each package is installed in the version that is pinned."""
    return all(_installed(package) == PINS[package] for package in packages)


def _installed(package: str) -> str:
    try:
        found = json.loads((PROGRAMS.parent / package / "package.json").read_text())
    except FileNotFoundError:
        return ""
    return str(found["version"])
