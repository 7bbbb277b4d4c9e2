"""A schema of its own for a test on PostgreSQL; import the fixtures with `postgres_dsn` of `run_backends`."""

import os
from itertools import count

import pytest

from conformance.run_backends import refuse_missing

_NUMBERS = count(1)


@pytest.fixture
def postgres_is_there() -> None:
    """Skip the test where there is no PostgreSQL, and fail it where `CI` is set."""
    refuse_missing("postgres")


@pytest.fixture
def a_schema(postgres_is_there: None) -> str:
    """The name of a schema that nobody uses."""
    return f'own "{os.getpid()}" {next(_NUMBERS)}'
