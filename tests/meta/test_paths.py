"""The path of a call to its effect may only shrink: functions, files, SQL statements and types of records."""

import pytest

from paths import FILE, Limit, limits, measured, passed


@pytest.mark.long
@pytest.mark.timeout(1200)  # on a very busy machine one play takes 15 seconds
@pytest.mark.parametrize("path", limits())
def test_a_path_passes_no_more_than_its_limits(path: str) -> None:
    """A hint or a poll of another round may fall into the counted time, so the lowest of twelve plays counts."""
    most = limits()[path]
    counted = passed(measured(path))
    for _ in range(11):
        if all(count <= limit for count, limit in zip(counted, most, strict=True)):
            return
        counted = Limit(*map(min, counted, passed(measured(path))))
    told = dict(zip(Limit._fields, counted, strict=True))
    assert counted == Limit(*map(min, counted, most)), f"{path}: {told}; {FILE.name} allows {most}"
