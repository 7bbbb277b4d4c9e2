"""A refusal of PostgreSQL is a postroom error, by its SQLSTATE; without its driver the store names the extra."""

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

from postroom.contracts import errors
from postroom.extras import install_command
from postroom.stores.postgres import PostgresStore, store
from postroom.stores.postgres.errors import ConnectionLost, Contended, Refusal, error_for

ERRORS: dict[str, type[Exception]] = {
    "08006": ConnectionLost,  # connection_failure
    "57P01": ConnectionLost,  # admin_shutdown
    "57P02": ConnectionLost,  # crash_shutdown
    "57P03": ConnectionLost,  # cannot_connect_now
    "57P05": ConnectionLost,  # idle_session_timeout
    "25P03": ConnectionLost,  # idle_in_transaction_session_timeout
    "40001": Contended,  # serialization_failure
    "40P01": Contended,  # deadlock_detected
    "55P03": errors.StoreUnavailable,  # lock_not_available
    "57014": errors.StoreUnavailable,  # query_canceled, as by statement_timeout
    "53300": errors.StoreUnavailable,  # too_many_connections
    "53200": errors.StoreUnavailable,  # out_of_memory
    "53100": errors.StoreFull,  # disk_full
    "25006": errors.StoreReadOnly,  # read_only_sql_transaction
    "42501": errors.StoreReadOnly,  # insufficient_privilege
    "XX001": errors.StoreCorrupt,  # data_corrupted
    "XX002": errors.StoreCorrupt,  # index_corrupted
    "28P01": errors.ConfigError,  # invalid_password
    "3D000": errors.ConfigError,  # invalid_catalog_name
    "22021": errors.InvalidRecord,  # character_not_in_repertoire
    "22003": errors.InvalidRecord,  # numeric_value_out_of_range
    "23505": errors.StoreError,  # unique_violation: a change looks first, so that this is a defect
    "23503": errors.StoreError,  # foreign_key_violation
    "42P01": errors.WrongStore,  # undefined_table: the schema was dropped or replaced
}


def test_each_state_of_the_server_is_one_of_our_errors() -> None:
    found = {state: type(error_for(Refusal(state=state, text="no", rule="a_rule"))) for state in ERRORS}
    assert found == ERRORS


def test_an_error_of_the_store_says_what_the_server_said() -> None:
    error = error_for(Refusal(state="23505", text="duplicate key", rule="agents_key"))
    assert isinstance(error, errors.StoreError)
    assert ("duplicate key" in error.message, error.value) == (True, "agents_key")


def test_without_the_driver_the_store_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "psycopg" else importlib.util.find_spec(name, package)

    monkeypatch.setattr(store, "find_spec", find_spec)
    with pytest.raises(errors.MissingExtra, match="psycopg") as refused:
        PostgresStore.open("postgresql://nobody@127.0.0.1/none")
    assert refused.value.remedy == install_command("postgres")


OPEN_WITHOUT_DRIVER = """
import asyncio, sys
from postroom import Mailbox
from postroom.contracts.errors import MissingExtra
from postroom.extras import install_command

sys.modules["psycopg"] = None


async def main():
    try:
        async with Mailbox.open("postgresql://nobody@127.0.0.1/none", None):
            pass
    except MissingExtra as error:
        print(error.remedy == install_command("postgres"))


asyncio.run(main())
"""


def test_without_the_driver_a_mailbox_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPEN_WITHOUT_DRIVER], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
