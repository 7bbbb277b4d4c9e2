"""Available to every test: a clock to move, stores, and a guard against blocking the event loop."""

import asyncio
import gc
import logging
import os
import random
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a machine that has other work is no fault of an example
)
settings.register_profile("night", settings.get_profile("steady"), derandomize=False, print_blob=True)
"""For `make nightly`: other examples each time. A failure prints how to repeat it."""
settings.load_profile("steady")

pytest.register_assert_rewrite("conformance.promises")

from blockbuster import blockbuster_ctx  # noqa: E402 - the rewriting of assertions comes first

from lanes import lane_of  # noqa: E402 - as above
from patient_loop import patient_loop  # noqa: E402 - as above
from postroom.stores.sqlite import SqliteStore  # noqa: E402 - as above
from postroom.testing import ManualClock  # noqa: E402 - as above
from sqlite_files import open_new  # noqa: E402 - as above

if TYPE_CHECKING:
    from e2e.browser import Browser

TESTS = Path(__file__).parent

# Each HTTP client reads the certificates that it trusts: those of the system take 40 ms, a single one takes 0.1 ms.
# Every server that a test asks is its own.
os.environ["SSL_CERT_FILE"] = str(TESTS / "one_authority.pem")
os.environ.pop("SSL_CERT_DIR", None)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what stands before `&` so, and every program that a test starts would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Make the loops of all tests yield the processor to the tasks that they wait for."""
    return {"patient": patient_loop}


def _lane_of(item: pytest.Item) -> str | None:
    """Return the marker that `lanes` gives a case, or None."""
    case = getattr(item, "callspec", None)
    return lane_of(
        item.path.relative_to(TESTS).as_posix(),
        item.name,
        () if case is None else case.params.values(),
        is_long=item.get_closest_marker("long") is not None,
    )


@pytest.hookimpl(tryfirst=True)  # before those are left out that are marked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases as `lanes` says. If `SHUFFLE_TESTS` is set, shuffle them by that seed: tests are independent."""
    for item in items:
        if lane := _lane_of(item):
            item.add_marker(getattr(pytest.mark, lane))
    if seed := os.environ.get("SHUFFLE_TESTS"):
        random.Random(seed).shuffle(items)


def pytest_configure(config: pytest.Config) -> None:
    """Turn the garbage collector off during collection: its passes would take a fourth of that time.

    If `PAUSE_STORES` is set, the stores pause at random, by that seed.
    """
    gc.disable()
    if seed := os.environ.get("PAUSE_STORES"):
        from pauses import Pauses

        config.pluginmanager.register(Pauses(seed))


def pytest_collection_finish() -> None:
    """Turn the garbage collector on again, and exempt the collected tests from its passes."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def logs_as_embedded() -> Iterator[None]:
    """Begin each test with logs as an embedding program has them, and undo what a test configures."""
    for name in ("uvicorn", "uvicorn.access", "uvicorn.error"):  # a server within a test may have set them
        theirs = logging.getLogger(name)
        theirs.handlers[:] = []
        theirs.setLevel(logging.NOTSET)
        theirs.propagate, theirs.disabled = True, False
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True, scope="session")
def loop_is_never_blocked() -> Iterator[None]:
    """Fail each test in which code of postroom does blocking I/O on a thread that runs an event loop."""
    with blockbuster_ctx("postroom", excluded_modules=["postroom.testing"]):  # that is test code
        yield


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sqlite_store(tmp_path: Path, clock: ManualClock) -> Iterator[SqliteStore]:
    """A store on an empty file; opened and closed outside of the event loop, for both wait for the disk."""
    store = open_new(tmp_path / "postroom.db", clock)
    yield store
    store.close()


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    """A PostgreSQL for the tests of this process; without one they are skipped, and fail where `CI` is set.

    Here alone: a fixture that modules import is one of each module, and so would be the server.
    """
    import store_kinds  # here, for it loads the driver, which most tests do without
    from postgres_server import running_postgres

    store_kinds.refuse_missing("postgres")
    with running_postgres() as dsn:
        yield dsn
        store_kinds.forget(dsn)


@pytest.fixture(scope="session")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Browser]":
    """The browser of this process: its start takes longer than most tests of a page."""
    from e2e.browser import Browser, program

    opened = Browser(program(), str(tmp_path_factory.mktemp("profile")))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def browser(one_browser: "Browser") -> "Iterator[Browser]":
    """A browser that nobody has logged in with; no page stays open, whose stream a server would wait for."""
    yield one_browser
    one_browser.begin_anew()


_SCHEMAS = count(1)


@pytest.fixture
def a_schema() -> str:
    """The name of a schema that nobody uses."""
    return f'own "{os.getpid()}" {next(_SCHEMAS)}'
