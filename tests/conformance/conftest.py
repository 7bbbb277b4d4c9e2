"""The stores of these tests, empty for each: on SQLite, unless a test says `on_both` or `on_each`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.boxes import Box, running_loop
from conformance.promises.given import Office, office
from postroom.stores.mail.store import MailStore
from postroom.testing import ManualClock
from store_kinds import opened, refuse_missing


@pytest.fixture
def engine() -> str:
    return "sqlite"


@pytest.fixture
def mail_store(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[MailStore]:
    refuse_missing(engine)
    with opened(engine, tmp_path, lambda: request.getfixturevalue("postgres_dsn"), clock) as store:
        yield MailStore(store)


@pytest.fixture
def box(mail_store: MailStore) -> Iterator[Box]:
    with running_loop() as loop:
        yield Box(mail_store, loop)


@pytest.fixture
def here(box: Box) -> Office:
    return box.change(office)


@pytest.fixture
def there(box: Box, here: Office) -> Office:
    return box.change(lambda tx: office(tx, "elsewhere"))
