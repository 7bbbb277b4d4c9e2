"""A shell completes commands of `postroom` when Tab is pressed: real shells, each on a separate terminal."""

import os
import pty
import select
import shutil
import signal
import sys
from pathlib import Path

import pytest

from e2e.running import plain_environment
from machine import PATIENCE

pytestmark = pytest.mark.long

SET_UP = {
    "bash": ("--norc -i", 'eval "$(postroom --show-completion bash)"'),
    "zsh": ("-f -i", 'autoload -Uz compinit; compinit -u; eval "$(postroom --show-completion zsh)"'),
}


class Terminal:
    """An interactive shell on a terminal."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self._pid, self._screen = pty.fork()
        if self._pid == 0:
            os.execvpe(words[0], words, environment)

    def types(self, text: str, *, expecting: str) -> None:
        """Press keys, and wait until the screen shows a text after them."""
        os.write(self._screen, text.encode())
        shown = b""
        while expecting.encode() not in shown:
            assert select.select([self._screen], [], [], PATIENCE)[0], shown
            shown += os.read(self._screen, 1 << 12)

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._screen)


@pytest.mark.parametrize("shell", sorted(SET_UP))
def test_tab_completes_groups_and_commands(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    flags, line = SET_UP[shell]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    more = {"PATH": path, "TERM": "xterm", "ZDOTDIR": str(tmp_path), "HOME": str(tmp_path)}
    terminal = Terminal([shell, *flags.split()], {**plain_environment(tmp_path), **more})
    try:
        terminal.types(f'{line}; echo rea""dy\n', expecting="ready\r")
        terminal.types("postroom reser\t", expecting="reservations")
        terminal.types("li\t", expecting="list")
        terminal.types("\x15postroom runs \t\t", expecting="replay")
    finally:
        terminal.end()
