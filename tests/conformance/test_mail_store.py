"""Every promise of the mail store's port, on every store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from postroom.contracts.store import MailStore
from postroom.stores.memory import MemoryStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from postroom.testing.conformance.mail_store import PROMISES, Promise

Closable = MemoryStore | SqliteStore

BACKENDS: dict[str, Callable[[Path, ManualClock], Closable]] = {
    "memory": lambda path, clock: MemoryStore(),
    "sqlite": lambda path, clock: SqliteStore.open(path / "postroom.db", clock=clock, purpose="test"),
}


@pytest.fixture(params=BACKENDS)
def mail_store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[MailStore]:
    store = BACKENDS[request.param](tmp_path, clock)
    yield store
    store.close()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_a_mail_store_keeps_its_promise(
    promise: Promise, mail_store: MailStore, clock: ManualClock
) -> None:
    await promise(mail_store, clock)


def test_no_promise_is_made_twice() -> None:
    names = [promise.__name__ for promise in PROMISES]
    assert len(names) == len(set(names))
