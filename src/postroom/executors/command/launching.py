"""Makes a program's words and opens what it reads: how it is told what it was asked.

Everything here blocks: call it outside of the event loop.
"""

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from postroom.contracts.runners import PROMPT, PROMPT_FILE, PromptWay, Runner
from postroom.executors.command.recipes import RECIPES, SESSION
from postroom.executors.processes.starting import write_private


def words_of(runner: Runner, *, prompt: str, prompt_file: Path, session: str | None) -> tuple[str, ...]:
    """Return the command with the words to resume and the prompt where they belong.

    A prompt that begins with a dash is put behind a blank, so that no program takes it for an option: what an
    agent is told must not decide how it is run.
    """
    rules = RECIPES[runner.recipe]
    words = [word.replace(PROMPT_FILE, str(prompt_file)) for word in runner.argv or rules.command]
    if session is not None:
        words += [session if word == SESSION else word for word in rules.resume]
    if runner.prompt is PromptWay.ARGUMENT:
        shown = f" {prompt}" if prompt.startswith("-") else prompt
        if PROMPT not in words:
            words += rules.with_argument
        words = [shown if word == PROMPT else word for word in words]
    elif runner.prompt is PromptWay.STDIN and not _end_with(words, rules.with_stdin):
        words += rules.with_stdin
    return tuple(words)


def _end_with(words: Sequence[str], last: Sequence[str]) -> bool:
    return not last or tuple(words[-len(last) :]) == tuple(last)


def told_to(way: PromptWay, prompt: bytes, prompt_file: Path, opened: ExitStack) -> "IO[bytes] | int":
    """Return what the program reads; by stdin a file without a name, so that nobody waits for a reader."""
    if way is PromptWay.STDIN:
        held = opened.enter_context(tempfile.TemporaryFile(dir=prompt_file.parent))  # noqa: SIM115 - the stack closes it
        held.write(prompt)
        held.seek(0)
        return held
    if way is PromptWay.FILE:
        write_private(prompt_file, prompt)
    return subprocess.DEVNULL
