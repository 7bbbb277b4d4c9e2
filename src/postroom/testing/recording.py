"""Makes the database record which process owns each run, and when.

Triggers write a numbered line in each transaction in which a process sets or removes the owner of a dispatch.
The numbers of the lines are the time of this history. The numbers are in order, because the lock of a thread
orders the changes of the thread, and the lock of the limits orders the claims under a limit.
"""

from collections.abc import Sequence
from typing import Any, Final

from postroom.embedded.mailbox import Mailbox
from postroom.stores.runs.ports import RunStores
from postroom.stores.store import Transaction
from postroom.testing.history import Execution

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS testing_claims (
  number NUMBER, is_claim integer NOT NULL, thread_id text NOT NULL, run_id text NOT NULL,
  token text NOT NULL, owner text, attempt integer NOT NULL, epoch integer NOT NULL);
"""
_CLAIMED: Final = """
INSERT INTO testing_claims (is_claim, thread_id, run_id, token, owner, attempt, epoch)
VALUES (1, NEW.thread_id, NEW.run_id, NEW.claim_token, NEW.claimed_by, NEW.attempt_count + 1,
        NEW.dispatch_epoch);
"""
_LET_GO: Final = """
INSERT INTO testing_claims (is_claim, thread_id, run_id, token, owner, attempt, epoch)
VALUES (0, OLD.thread_id, OLD.run_id, OLD.claim_token, OLD.claimed_by, OLD.attempt_count + 1,
        OLD.dispatch_epoch);
"""
_SQLITE: Final = (
    _TABLE.replace("NUMBER", "integer PRIMARY KEY AUTOINCREMENT"),
    f"""
CREATE TRIGGER IF NOT EXISTS testing_begun AFTER INSERT ON run_dispatches
  WHEN NEW.claim_token IS NOT NULL BEGIN {_CLAIMED} END;
""",
    f"""
CREATE TRIGGER IF NOT EXISTS testing_let_go AFTER UPDATE OF claim_token ON run_dispatches
  WHEN OLD.claim_token IS NOT NULL AND OLD.claim_token IS NOT NEW.claim_token BEGIN {_LET_GO} END;
""",
    f"""
CREATE TRIGGER IF NOT EXISTS testing_claimed AFTER UPDATE OF claim_token ON run_dispatches
  WHEN NEW.claim_token IS NOT NULL AND OLD.claim_token IS NOT NEW.claim_token BEGIN {_CLAIMED} END;
""",
)
_POSTGRES: Final = f"""
{_TABLE.replace("NUMBER", "bigserial PRIMARY KEY")}
CREATE OR REPLACE FUNCTION testing_claims_noted() RETURNS trigger LANGUAGE plpgsql AS $noted$
BEGIN
  IF TG_OP = 'UPDATE' AND OLD.claim_token IS NOT DISTINCT FROM NEW.claim_token THEN
    RETURN NULL;
  END IF;
  IF TG_OP = 'UPDATE' AND OLD.claim_token IS NOT NULL THEN
    {_LET_GO}
  END IF;
  IF NEW.claim_token IS NOT NULL THEN
    {_CLAIMED}
  END IF;
  RETURN NULL;
END $noted$;
CREATE OR REPLACE TRIGGER testing_claims_noted AFTER INSERT OR UPDATE ON run_dispatches
  FOR EACH ROW EXECUTE FUNCTION testing_claims_noted();
"""
_THERE: Final = {
    "sqlite": "SELECT name FROM sqlite_master WHERE name = 'testing_claims'",
    "postgres": "SELECT to_regclass('testing_claims')::text",
}
_ALL: Final = (
    "SELECT number, is_claim, thread_id, run_id, token, owner, attempt, epoch"
    "  FROM testing_claims ORDER BY number"
)


async def record(looked_at: Mailbox | RunStores) -> None:
    """Start to record in the database which worker owns each run.

    The function adds a table and triggers to the database, so use the function only in tests. A second call
    does nothing.

    Raises:
        StoreError: The table cannot be created.
    """
    stores = looked_at.stores if isinstance(looked_at, Mailbox) else looked_at
    await stores.store.write(_add)


async def recorded(stores: RunStores) -> list[Execution]:
    """Return the recorded owners of runs, or an empty list if the recording was never started."""
    return await stores.store.read(_executions)


def _add(tx: Transaction) -> None:
    sql: Any = _sql(tx)
    if sql.dialect == "postgres":
        sql.connection.run_script(_POSTGRES)
        return
    for statement in _SQLITE:
        sql.connection.execute(statement)


def _executions(tx: Transaction) -> list[Execution]:
    there = _rows(tx, _THERE[_sql(tx).dialect])
    if not there or there[0][0] is None:
        return []
    rows = _rows(tx, _ALL)
    let_go = {row[4]: row[0] for row in rows if not row[1]}
    end = rows[-1][0] + 1 if rows else 0
    return [
        Execution(
            run_id=run_id,
            thread_id=thread_id,
            owner=owner,
            began=number,
            ended=let_go.get(token, end),
            attempt=attempt,
            epoch=epoch,
        )
        for number, is_claim, thread_id, run_id, token, owner, attempt, epoch in rows
        if is_claim
    ]


def _rows(tx: Transaction, statement: str) -> Sequence[Sequence[Any]]:
    sql: Any = _sql(tx)
    if sql.dialect == "sqlite":
        return list(sql.connection.execute(statement))
    answer = sql.connection.send(statement, ())
    sql.connection.wait()
    return list(answer.rows)


def _sql(tx: Transaction) -> Any:
    assert isinstance(tx, Transaction), "a record is kept by a database"
    return tx.sql
