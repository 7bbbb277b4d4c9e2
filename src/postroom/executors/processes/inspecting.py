"""Says whether a runner could be started, by looking and never by starting it.

Blocks: call it outside of the event loop.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from postroom.contracts.errors import CommandNotStarted
from postroom.contracts.runners import Runner
from postroom.executors.processes.surroundings import environment


def program_of(program: str, runner: Runner, server: Mapping[str, str]) -> str:
    """Return the file that would be started, found as it is then: by the PATH that the program is given.

    Raises:
        CommandNotStarted: the working folder cannot be entered, or the program is missing or not executable.
    """
    cwd = Path(runner.cwd)
    if not cwd.is_dir():
        raise CommandNotStarted(
            f"the working folder {runner.cwd!r} is {'no folder' if cwd.exists() else 'missing'}",
            value=runner.cwd,
        )
    if not os.access(cwd, os.X_OK):
        raise CommandNotStarted(f"the working folder {runner.cwd!r} cannot be entered", value=runner.cwd)
    return _found(program, cwd, environment(runner, server, {}, {}).get("PATH", os.defpath))


def _found(program: str, cwd: Path, path: str) -> str:
    if os.sep in program:
        where, name = str((cwd / program).parent), Path(program).name
    else:
        where, name = os.pathsep.join(str(cwd / one) for one in path.split(os.pathsep)), program
    if found := shutil.which(name, path=where):
        return found
    if there := shutil.which(name, mode=os.F_OK, path=where):
        raise CommandNotStarted(f"the command {there!r} is not executable", value=program)
    raise CommandNotStarted(
        f"the command {program!r} was not found",
        value=program,
        remedy="install it, or give the runner its whole path or a PATH of its own",
    )
