"""Shared by tests of whole processes: a separate server, on a port that the system chose."""

from collections.abc import Iterator

import pytest

from e2e.running import RunningServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A running server on an empty data folder, shared by the tests of one file."""
    with RunningServer(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    """A PostgreSQL of this file alone, which its tests may stop and change as a whole."""
    import store_kinds  # it loads the driver, which most of these tests do without
    from postgres_server import running_postgres

    store_kinds.refuse_missing("postgres")
    with running_postgres() as found:
        yield found
