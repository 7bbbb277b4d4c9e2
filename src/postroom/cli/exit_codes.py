"""The exit codes of the process, and the failures to which they belong.

| code | meaning |
|---|---|
| 0 | done |
| 1 | failed; a person must check |
| 2 | usage, or the server refused the call |
| 75 | temporary: the same command may succeed later |
| 78 | configuration: a restart by a supervisor changes nothing |
| 130, 141, 143 | ended by Ctrl-C; the reader of the output closed it; ended by SIGTERM |
"""

from typing import Final

from postroom.contracts import errors

DONE: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
TEMPORARY: Final = 75
CONFIGURATION: Final = 78
INTERRUPTED: Final = 130
READER_GONE: Final = 141
TERMINATED: Final = 143

CODES: Final[dict[type[errors.PostroomError], int]] = {
    errors.PostroomError: FAILED,
    errors.InputError: REFUSED,
    errors.StateError: REFUSED,
    errors.AccessError: REFUSED,
    errors.StaleClaim: FAILED,
    errors.RunFailure: FAILED,
    errors.InternalError: FAILED,
    errors.StoreError: FAILED,
    errors.StoreHeld: CONFIGURATION,
    errors.StoreCorrupt: CONFIGURATION,
    errors.StoreReadOnly: CONFIGURATION,
    errors.SchemaTooNew: CONFIGURATION,
    errors.WrongStore: CONFIGURATION,
    errors.MissingExtra: CONFIGURATION,
    errors.ConfigError: CONFIGURATION,
}
"""The exit codes of permanent failures. The code of the nearest base class applies to a failure."""


def exit_code(error: errors.PostroomError) -> int:
    """Return the exit code for an error; a retryable error has the code for a temporary failure."""
    if error.retryable:
        return TEMPORARY
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
