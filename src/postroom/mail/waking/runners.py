"""How a runner is kept with its agent: as JSON, which says everything and is checked each time it is read."""

import msgspec

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.remote_runners import ModelRunner
from postroom.contracts.runners import AnyRunner, Runner, runner_of


def read_runner(kept: str) -> AnyRunner:
    """Return the runner that was kept.

    Raises:
        InvalidRunner: it does not read back, or breaks a rule.
    """
    try:
        plain = msgspec.json.decode(kept)
    except msgspec.MsgspecError as error:
        raise InvalidRunner("the stored runner cannot be read", value=kept[:80]) from error
    return runner_of(plain)


def written_runner(runner: AnyRunner) -> str:
    """Return a runner as it is kept."""
    return msgspec.json.encode(runner.to_dict()).decode()


def place_of(runner: AnyRunner) -> str:
    """Return where its program is started: on a host, or where a label is; '' for anywhere."""
    return runner.runs_on if isinstance(runner, Runner) else ""


def reads_at_work(kept: str) -> bool:
    """Say whether a run reads what comes on its thread while it works.

    Most programs read their input once; what they are told meanwhile they ask for, or a hook tells them.
    """
    try:
        runner = read_runner(kept)
    except InvalidRunner:
        return False
    return isinstance(runner, ModelRunner) or (isinstance(runner, Runner) and runner.is_steered)
