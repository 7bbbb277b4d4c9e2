"""One test over the rows of a table, in place of a case for each: what they ask of a fixture is made once."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Test = Callable[..., Any]


def each_row(names: str, rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for every row in one case; names and rows are those of `pytest.mark.parametrize`.

    For rows that leave nothing for the next one. A failure names its row, and ends the test.
    """
    keys = [name.strip() for name in names.split(",")]
    table = [dict(zip(keys, [row] if len(keys) == 1 else row, strict=True)) for row in rows]
    assert table, "a table without rows tests nothing"

    def over(test: Test) -> Test:
        signature = inspect.signature(test)
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run_each(**fixtures: Any) -> None:
                for row in table:
                    with _named(row):
                        await test(**fixtures, **row)
        else:

            @functools.wraps(test)
            def run_each(**fixtures: Any) -> None:
                for row in table:
                    with _named(row):
                        test(**fixtures, **row)

        others = [one for name, one in signature.parameters.items() if name not in keys]
        run_each.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run_each

    return over


@contextmanager
def _named(row: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"in the row {row!r:.500}")
        raise
