"""The stored form of an agent's runner: complete JSON, which is checked each time it is read."""

from functools import lru_cache

import msgspec

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.runners import AnyRunner, ModelRunner, Runner, runner_of


@lru_cache(maxsize=1_024)
def read_runner(kept: str) -> AnyRunner:
    """Return a stored runner; the same text gives the same runner, which never changes.

    Raises:
        InvalidRunner: It cannot be read, or breaks a rule.
    """
    try:
        plain = msgspec.json.decode(kept)
    except msgspec.MsgspecError as error:
        raise InvalidRunner("the stored runner cannot be read", value=kept[:80]) from error
    return runner_of(plain)


def written_runner(runner: AnyRunner) -> str:
    """Return the stored form of a runner."""
    return msgspec.json.encode(runner.to_dict()).decode()


def place_of(runner: AnyRunner) -> str:
    """Return the host or label where its program must be started; '' for anywhere."""
    return runner.runs_on if isinstance(runner, Runner) else ""


def reads_at_work(kept: str) -> bool:
    """Return whether a run reads messages that arrive on its thread while it works.

    Most programs read their input once; they ask for later messages, or a hook shows them.
    """
    try:
        runner = read_runner(kept)
    except InvalidRunner:
        return False
    return isinstance(runner, ModelRunner) or (isinstance(runner, Runner) and runner.is_steered)
