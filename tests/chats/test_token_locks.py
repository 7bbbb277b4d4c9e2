"""On one machine, one process, or the servers of one database, may receive with a bot's token."""

from pathlib import Path

import pytest

from postroom.contracts.errors import ConfigError
from postroom.gateway.status import ScopedLocks

TOKEN = ("telegram", "4711:secret")


def taken(folder: Path, store_id: str = "", server: str = "") -> ScopedLocks:
    locks = ScopedLocks(folder)
    locks.acquire(*TOKEN, store_id=store_id, server=server)
    return locks


@pytest.mark.parametrize("first", [("", ""), ("a" * 32, "/one")])
@pytest.mark.parametrize("second", [("", "/two"), ("b" * 32, "/two")])
def test_a_token_is_not_taken_by_a_server_of_another_store(tmp_path, first, second) -> None:
    one = taken(tmp_path, *first)
    with pytest.raises(ConfigError, match="another process receives messages with the same telegram token"):
        taken(tmp_path, *second)
    one.release_all()
    other = taken(tmp_path, *second)
    with pytest.raises(ConfigError):
        taken(tmp_path, *first)
    other.release_all()


def test_servers_of_one_database_share_a_token_and_hold_it_until_the_last_is_gone(tmp_path) -> None:
    one, two = taken(tmp_path, "a" * 32, "/one"), taken(tmp_path, "a" * 32, "/two")
    one.release_all()
    with pytest.raises(ConfigError):
        taken(tmp_path)
    two.release_all()
    taken(tmp_path).release_all()
    assert not [one for one in tmp_path.rglob("*") if TOKEN[1] in one.name]
