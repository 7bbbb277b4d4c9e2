import pytest

from postroom.cli.exit_codes import CODES, CONFIGURATION, REFUSED, TEMPORARY, exit_code
from postroom.contracts import errors
from postroom.contracts.errors import PostroomError, all_errors


def test_every_failure_has_an_exit_code_of_its_own_branch(subtests: pytest.Subtests) -> None:
    for kind in all_errors():
        with subtests.test(kind=kind):
            nearest = next(one for one in kind.__mro__ if one in CODES)
            assert kind is PostroomError or kind.retryable or nearest is not PostroomError
            assert exit_code(kind("x")) == (TEMPORARY if kind.retryable else CODES[nearest])


def test_what_may_be_repeated_is_temporary_and_nothing_else_is(subtests: pytest.Subtests) -> None:
    for kind in all_errors():
        with subtests.test(kind=kind):
            assert (exit_code(kind("x")) == TEMPORARY) == kind.retryable


def test_the_codes_are_those_that_supervisors_know(subtests: pytest.Subtests) -> None:
    for kind, code in [
        (errors.UnknownAgent, REFUSED),
        (errors.IdempotencyConflict, REFUSED),
        (errors.TokenRequired, REFUSED),
        (errors.ServerUnavailable, TEMPORARY),
        (errors.StoreUnavailable, TEMPORARY),
        (errors.StoreHeld, CONFIGURATION),
        (errors.SchemaTooNew, CONFIGURATION),
        (errors.ConfigError, CONFIGURATION),
        (errors.StoreCorrupt, CONFIGURATION),
    ]:
        with subtests.test(kind=kind, code=code):
            assert exit_code(kind("x")) == code
