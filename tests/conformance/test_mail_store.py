"""Every promise of the mail store's port, on every store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.promises.given import agent, an_office, never_made, put_message
from conformance.promises.mail_store import PROMISES, Promise
from postroom.stores.mail.store import MailStore
from postroom.stores.sqlite import SqliteStore
from postroom.testing import ManualClock
from store_kinds import KINDS, POOLED, opened, refuse_missing


@pytest.fixture(params=[*KINDS, POOLED])
def mail_store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[MailStore]:
    refuse_missing(request.param)
    with opened(request.param, tmp_path, lambda: request.getfixturevalue("postgres_dsn"), clock) as store:
        yield MailStore(store)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_a_mail_store_keeps_its_promise(
    promise: Promise, mail_store: MailStore, clock: ManualClock
) -> None:
    await promise(mail_store, clock)


def test_no_promise_is_made_twice() -> None:
    names = [promise.__name__ for promise in PROMISES]
    assert len(names) == len(set(names))


async def test_on_sqlite_a_change_that_was_undone_leaves_its_ids_to_the_next(
    sqlite_store: SqliteStore,
) -> None:
    here = await an_office(sqlite_store)
    await never_made(sqlite_store, lambda tx: put_message(tx, here.ada, [here.ben]))
    await never_made(sqlite_store, lambda tx: agent(tx, here.project.id, "Dot"))
    assert (await sqlite_store.write(lambda tx: put_message(tx, here.ada, [here.ben]))).id == 1
    assert (await sqlite_store.write(lambda tx: agent(tx, here.project.id, "Eve"))).id == here.cyd.id + 1
