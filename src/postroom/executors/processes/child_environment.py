"""The environment of a program, and the parts of it that may appear in errors."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from postroom.contracts.activation import RunActivation
from postroom.contracts.messages import storable
from postroom.contracts.runners import Runner

PASSED: Final = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "SHELL"})
"""The variables that are copied from the server's environment, together with every `LC_...`."""
MASK: Final = "[masked]"
AGENT: Final = "POSTROOM_AGENT"
_SECRET: Final = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST_LINE: Final = 8
_SHORTEST_BEGIN: Final = 4


def child_environment(
    runner: Runner,
    server: Mapping[str, str],
    told: Mapping[str, str],
    defaults: Mapping[str, str],
) -> dict[str, str]:
    """Return a program's whole environment.

    `told` overrides the runner's variables, these override `defaults`.

    Names in `pass_env` that the server does not have are ignored.
    """
    taken = {
        name: value
        for name, value in server.items()
        if name in PASSED or name.startswith("LC_") or name in runner.pass_env
    }
    said = {name: storable(value).replace("\0", "") for name, value in told.items()}
    return {**taken, **defaults, **runner.env, **said}


def names_of(activation: RunActivation) -> dict[str, str]:
    """Return the variables that identify the run for its program."""
    return {
        "POSTROOM_THREAD": activation.thread_id,
        "POSTROOM_RUN": activation.run_id or "",
        "POSTROOM_DISPATCH": activation.trace.dispatch_id or "",
    }


def secrets_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables with names of secrets, the longest first.

    Each longer line of a multi-line value counts as well: a program may print it alone.
    """
    found: set[str] = set()
    for name, value in environment.items():
        if _SECRET.search(name) and value.strip():
            lines = (line.strip() for line in value.splitlines())
            found |= {value, value.strip(), *(line for line in lines if len(line) >= _SHORTEST_LINE)}
    return tuple(sorted(found, key=len, reverse=True))


def masked(text: str, secrets: Iterable[str], *, is_cut: bool = False) -> str:
    """Return the text with every secret in it masked.

    If the beginning of the text was cut off, it may start with the end of a secret, or be part of one. The
    text may also end within a secret, if its writer was ended. These parts are masked as well.
    """
    known = tuple(secrets)
    if is_cut and any(text in secret for secret in known):
        return MASK
    if is_cut and (length := max((_overlap(secret, text) for secret in known), default=0)):
        text = MASK + text[length:]
    for secret in known:
        text = text.replace(secret, MASK)
    length = max((_overlap(text, secret) for secret in known), default=0)
    return text[:-length] + MASK if length >= _SHORTEST_BEGIN else text


def _overlap(left: str, right: str) -> int:
    """Return the length of the longest end of `left` that `right` begins with."""
    most = min(len(left), len(right))
    return next((length for length in range(most, 0, -1) if right.startswith(left[-length:])), 0)
