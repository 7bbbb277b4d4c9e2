"""The secret that this server and another share: read when a run needs it, kept nowhere, never shown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from postroom.app.gateway_secrets import Table, take_secret
from postroom.contracts.errors import ConfigError, RunnerSecretMissing
from postroom.contracts.remote_runners import HttpRunner
from postroom.contracts.signing import LEAST_SECRET

_RUNNER: Final = Table(Path("the runner"), "")


def signing_secret(runner: HttpRunner, environment: Mapping[str, str]) -> str:
    """Return the secret that a runner names, by a variable of the environment or by a private file. Blocks.

    Raises:
        RunnerSecretMissing: it is not there, others can read it, or it is too short to sign with.
    """
    told = {"secret_env": runner.secret_env, "secret_file": runner.secret_file}
    named: dict[str, object] = {name: place for name, place in told.items() if place is not None}
    try:
        secret = take_secret(_RUNNER, named, "secret", environment) or ""
    except ConfigError as error:
        value = runner.secret_env or runner.secret_file
        raise RunnerSecretMissing(error.message, value=value, remedy=error.remedy) from error
    if len(secret) < LEAST_SECRET:
        raise RunnerSecretMissing(
            f"the runner's secret has less than {LEAST_SECRET} characters",
            value=runner.secret_env or runner.secret_file,
            remedy=f"make one at random, of {LEAST_SECRET} characters or more, and give it to both servers",
        )
    return secret
