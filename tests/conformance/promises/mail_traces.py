"""Promises of a mail store about places in traces."""

from conformance.promises.given import never_made, refused
from postroom.contracts.errors import StoreError
from postroom.stores.mail.store import MailStore
from postroom.testing.clock import ManualClock

_FIRST = f"00-{'a' * 32}-{'1' * 16}-01"
_SECOND = f"00-{'a' * 32}-{'2' * 16}-01"


async def a_place_in_a_trace_is_kept_and_replaced(store: MailStore, clock: ManualClock) -> None:
    """Under a name of any kind; what was never kept is not there, and what is no place is refused."""
    await store.write(lambda tx: tx.put_trace("message/1", _FIRST))
    await store.write(lambda tx: tx.put_trace("run/é \N{SNOWMAN}", _FIRST))
    await store.write(lambda tx: tx.put_trace("message/1", _SECOND))
    await never_made(store, lambda tx: tx.put_trace("message/1", _FIRST))
    found = await store.read(lambda tx: tx.traces(["run/é \N{SNOWMAN}", "message/2", "message/1"]))
    assert found == {"message/1": _SECOND, "run/é \N{SNOWMAN}": _FIRST}
    assert await store.read(lambda tx: tx.traces([])) == {}
    for wrong in ("", _FIRST[:-1], f"{_FIRST}0"):
        with refused(StoreError):
            await store.write(lambda tx, wrong=wrong: tx.put_trace("message/2", wrong))  # type: ignore[misc]


PROMISES = (a_place_in_a_trace_is_kept_and_replaced,)
