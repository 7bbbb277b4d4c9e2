"""Requests for another server's work: their address, and the answer if they cannot reach it."""

from collections.abc import AsyncIterator, Mapping

import pytest
from starlette.requests import Request

from conformance.run_backends import Prepared, prepared_stores, run_place
from postroom.app.tokens import new_run_token
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import ServerUnavailable
from postroom.contracts.leases import SERVER, Lease
from postroom.http_api.other_servers import PASSED_ON, OtherServers, read_server_tag
from postroom.leases import Leases
from postroom.stores.store import SqlStore
from postroom.testing import ManualClock

__all__ = ["prepared_stores", "run_place"]

HERE, THERE = "mill/1/aaaaaaaa", "quay/2/bbbbbbbb"


@pytest.fixture
async def store(prepared_stores: Prepared) -> AsyncIterator[SqlStore]:
    async with prepared_stores.opened() as stores:
        yield stores.store


def server(name: str, address: str) -> Lease:
    about = {"host": name.partition("/")[0], "address": address}
    return Lease(name=SERVER + name, holder=name, about=about, fence=1, since=0, until=2**53)


def request(headers: Mapping[str, str] | None = None) -> Request:
    told = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/chat",
            "raw_path": b"/chat",
            "query_string": b"",
            "headers": told,
            "server": ("127.0.0.1", 1),
            "client": ("127.0.0.1", 2),
        }
    )


async def put(store: SqlStore, *leases: Lease) -> None:
    for lease in leases:
        await store.write(lambda tx, lease=lease: tx.leases.put(lease), key="leases")  # type: ignore[misc]


async def refused(others: OtherServers, there: Lease, headers: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ServerUnavailable) as raised:
        await others.pass_on(request(headers), there)
    assert raised.value.retryable
    return raised.value.message


async def test_who_cannot_be_reached_is_named(store: SqlStore) -> None:
    others = OtherServers(Leases(store, HERE, {}), SystemClock())
    alone = await refused(others, server(THERE, "http://127.0.0.1:1"))
    assert alone == "the server on quay is responsible, but it listens only on loopback"
    for address in ("http://127.0.0.1:1", "http://0.0.0.0:1"):
        silent = await refused(others, server("mill/3/cccccccc", address))
        assert silent == "the server mill/3/cccccccc is responsible, but does not answer (ConnectError)"


async def test_a_request_is_passed_on_once(store: SqlStore) -> None:
    told = await refused(
        OtherServers(Leases(store, HERE, {}), SystemClock()), server(THERE, "http://quay:1"), {PASSED_ON: "1"}
    )
    assert told == "this task is moving to another server"


@pytest.mark.parametrize(
    ("secret", "change", "after_ms", "is_believed"),
    [
        ("common", {}, 0, True),
        ("another", {}, 0, False),
        ("", {}, 0, False),
        ("common", {"x-forwarded-for": "203.0.113.2"}, 0, False),
        ("common", {"x-forwarded-proto": "http"}, 0, False),
        ("common", {"x-postroom-passed-on": "1"}, 0, False),
        ("common", {}, 301_000, False),
    ],
)
async def test_who_calls_is_believed_of_a_server_that_knows_the_secret(
    secret: str, change: dict[str, str], after_ms: int, is_believed: bool, store: SqlStore
) -> None:
    clock = ManualClock(1_000_000)
    sender = OtherServers(Leases(store, HERE, {}), clock)
    sender.know(secret)
    asked = request({"X-Forwarded-For": "198.51.100.7"})
    asked.scope.update(client=("203.0.113.1", 5), scheme="https")
    told = {name.decode(): value.decode() for name, value in sender.headers_for(asked)}
    clock.set(1_000_000 + after_ms)
    receiver = OtherServers(Leases(store, THERE, {}), clock)
    receiver.know("" if not secret else "common")
    scope = request({name.lower(): value for name, value in told.items()} | change).scope
    receiver.believe(scope)
    seen = (scope["client"][0], scope["scheme"])
    assert seen == (("203.0.113.1", "https") if is_believed else ("127.0.0.1", "http"))


async def test_what_no_other_server_has_is_refused_for_a_moment(store: SqlStore) -> None:
    others = OtherServers(Leases(store, HERE, {}), SystemClock())
    mine, theirs = server(HERE, "http://mill:1"), server(THERE, "http://quay:1")
    channel = Lease(name="channel web", holder=HERE, about={}, fence=1, since=0, until=2**53)
    await put(store, mine, theirs, channel)
    with pytest.raises(ServerUnavailable, match="no server is responsible for the channel web at the moment"):
        await others.with_lease("channel web")
    await put(store, Lease(name="channel web", holder=THERE, about={}, fence=2, since=0, until=2**53))
    assert (await others.with_lease("channel web")).holder == THERE


async def test_the_token_of_a_run_says_whose_it_is(store: SqlStore) -> None:
    others = OtherServers(Leases(store, HERE, {}), SystemClock())
    await put(store, server(HERE, "http://mill:1"), server(THERE, "http://quay:1"))
    found = await others.of_run("prr_bbbbbbbb_" + "x" * 43)
    assert found is not None
    assert found.holder == THERE
    for token in ("prr_aaaaaaaa_", "prr_cccccccc_", "prt_bbbbbbbb_", "prm_", "prr_"):
        assert await others.of_run(token + "x" * 43) is None
    assert read_server_tag(new_run_token("bbbbbbbb")) == "bbbbbbbb"


async def test_what_has_not_the_form_of_a_runs_token_costs_no_look(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = Leases(store, HERE, {})
    monkeypatch.delattr(leases, "_store")
    long = "prr_bbbbbbbb_" + "x" * 42
    for token in ("prr_bbbbbbbb_x", long, f"{long}é", f"{long}xx", f"{long}x\n", "prr_bbbbbbbb", "\udc80"):
        assert await OtherServers(leases, SystemClock()).of_run(token) is None
