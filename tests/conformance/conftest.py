"""The stores of these tests, empty for each: on SQLite, unless a test says `on_both` or `on_each`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.boxes import Box, running_loop
from conformance.promises.given import Office, office
from conformance.run_backends import Place
from postroom.stores.chats.stores import ChatStores
from postroom.stores.mail.store import MailStore
from postroom.stores.runs.ports import DispatchStore, RunStores
from postroom.stores.stores import Stores
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


@pytest.fixture
def prepared(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[Stores]:
    refuse_missing(engine)
    dsn = request.getfixturevalue("postgres_dsn") if engine == "postgres" else ""
    prepared = Place(engine, tmp_path, dsn).prepared(clock)
    yield prepared.held
    prepared.close()


@pytest.fixture
def stores(prepared: Stores) -> RunStores:
    return prepared.runs


@pytest.fixture
def chats(prepared: Stores) -> ChatStores:
    return prepared.chat


@pytest.fixture
def queue(stores: RunStores) -> DispatchStore:
    return stores.dispatches
