"""A scripted model and a home for each test; without the clients one test stands for all and is skipped."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from real_clients.bench import Bench
from real_clients.clients import CLIENTS
from real_clients.home import PINS, Home, are_installed
from real_clients.model_server import ModelServer
from real_clients.page import is_left, keep

HERE = Path(__file__).parent
NEEDS_CLIENTS = "the real clients are not installed in the pinned versions: `make clients`"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with which a run of the table continues from the last one."""
    parser.addoption(
        "--only-left",
        action="store_true",
        help="Leave out each scenario whose result passed in the last 7 days, with the pinned release.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one test of those that need clients, skipped, when they are not installed."""
    if config.getoption("--only-left", default=False):
        done = [item for item in items if "scenario" in _fixtures(item) and not is_left(*_cell_of(item))]
        items[:] = [item for item in items if item not in done]
        config.hook.pytest_deselected(items=done)
    if are_installed():
        return
    theirs = [item for item in items if HERE in item.path.parents and "home" in _fixtures(item)]
    if theirs:
        theirs[0].add_marker(pytest.mark.skip(reason=NEEDS_CLIENTS))
        items[:] = [item for item in items if item not in theirs[1:]]
        config.hook.pytest_deselected(items=theirs[1:])


def _cell_of(item: pytest.Item) -> tuple[str, str]:
    params: dict[str, str] = getattr(item, "callspec").params  # noqa: B009 - pytest types no parameters
    return params["client"], params["scenario"]


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what each scenario came to: `docs/clients.md` is written from it.

    A failure names the client and its version, and what its runs said, which is nowhere else when a home is gone.
    """
    report = yield
    if report.when == "call" and report.failed and "bench" in _fixtures(item):
        bench: Bench = getattr(item, "funcargs", {})["bench"]
        package = bench.client.package
        report.sections.append((f"{package} {PINS[package]}", bench.runs_said()))
    if report.when == "call" and "scenario" in _fixtures(item):
        keep(*_cell_of(item), passed=report.passed)
    return report


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, model: ModelServer) -> Iterator[Home]:
    one = Home(tmp_path / "home", model)
    yield one
    one.end()


@pytest.fixture
def bench(client: str, home: Home, model: ModelServer) -> Iterator[Bench]:
    """The client that the test's parameter `client` names, in its home, with a server that runs."""
    one = CLIENTS[client]
    one.prepare(home)
    with home.server:
        yield Bench(one, home, model)
