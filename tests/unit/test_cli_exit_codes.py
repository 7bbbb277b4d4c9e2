from postroom.cli.exit_codes import CODES, CONFIGURATION, REFUSED, TEMPORARY, exit_code
from postroom.contracts import errors
from postroom.contracts.errors import PostroomError, all_errors


def test_every_failure_has_the_exit_code_of_its_branch_and_what_may_be_repeated_is_temporary() -> None:
    for kind in all_errors():
        nearest = next(one for one in kind.__mro__ if one in CODES)
        assert kind is PostroomError or kind.retryable or nearest is not PostroomError, kind
        assert exit_code(kind("x")) == (TEMPORARY if kind.retryable else CODES[nearest]), kind
        assert (exit_code(kind("x")) == TEMPORARY) == kind.retryable, kind


def test_the_codes_are_those_that_supervisors_know() -> None:
    for code, kinds in {
        REFUSED: (errors.UnknownAgent, errors.IdempotencyConflict, errors.TokenRequired),
        TEMPORARY: (errors.ServerUnavailable, errors.StoreUnavailable),
        CONFIGURATION: (errors.StoreHeld, errors.SchemaTooNew, errors.ConfigError, errors.StoreCorrupt),
    }.items():
        assert {exit_code(kind("x")) for kind in kinds} == {code}
