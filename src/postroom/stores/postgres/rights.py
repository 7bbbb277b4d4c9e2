"""The rights of a user on a schema, checked when it is opened and by each probe."""

import re
from collections.abc import Sequence
from typing import Final

from postroom.contracts.errors import StoreReadOnly
from postroom.stores.migrations import Migration
from postroom.stores.postgres.connection import Connection, quoted
from postroom.stores.postgres.errors import grants
from postroom.stores.sql_transaction import Row
from postroom.stores.statements import Statement

_NAMES: Final = re.compile(r"(?:CREATE TABLE|RENAME TO) (?:IF NOT EXISTS )?(\w+)")
# One query on the catalog, whatever the number of tables. The schema may hold unrelated tables; if it holds
# none of postroom's, missing rights show when they are created. The query names the schema, because a session
# has no current schema if the user may not use it.
LACKING: Final = Statement(
    name="store.lacking_rights",
    text="""
SELECT found.* FROM (
  WITH ours AS MATERIALIZED (
    SELECT c.oid, CAST(c.relname AS text) AS name, n.oid AS schema
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = $1::text AND c.relkind = 'r' AND c.relname = ANY ($2::text[])
  ), lacking AS (
    SELECT wanted, name FROM ours, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS wanted
     WHERE NOT has_table_privilege(oid, wanted) AND (name <> 'schema_migrations' OR wanted = 'SELECT')
     UNION ALL
    SELECT 'USAGE', CAST(s.relname AS text)
      FROM ours JOIN pg_depend AS d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = ours.oid
                                   AND d.deptype IN ('a', 'i')
           JOIN pg_class AS s ON s.oid = d.objid
     WHERE CASE s.relkind WHEN 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE') END
  )
  SELECT string_agg(DISTINCT wanted, ', ' ORDER BY wanted), min(name), count(DISTINCT name),
         EXISTS (SELECT 1 FROM ours WHERE NOT has_schema_privilege(schema, 'USAGE')),
         CAST(current_user AS text)
    FROM lacking
) AS found
""".strip(),
    parameters=("schema", "tables"),
    lists=frozenset(("tables",)),
)


def tables_of(steps: Sequence[Migration]) -> list[str]:
    """Return every table name in these steps, and the ledger of the steps, which is only read."""
    return sorted({"schema_migrations", *(name for step in steps for name in _NAMES.findall(step.sql))})


def refuse_without_rights(connection: Connection, schema: str, tables: Sequence[str]) -> None:
    """Refuse a user that may not read and write every existing one of these tables.

    Raises:
        StoreReadOnly: A right is missing.
    """
    connection.begin()
    found = connection.send(LACKING.text, (schema, tables))
    connection.wait()
    connection.undo()
    refuse_lacking(found.rows[0], schema)


def refuse_lacking(found: Row, schema: str) -> None:
    """Refuse the missing rights that `LACKING` found.

    Raises:
        StoreReadOnly: The user lacks a right; the remedy grants all that it needs.
    """
    rights, table, count, has_no_use, user = found
    if not (count or has_no_use):
        return
    place, whom = quoted(schema), quoted(user)
    given = [f"GRANT USAGE ON SCHEMA {place} TO {whom}"] if has_no_use else []
    missing = [f"USAGE on the schema {schema}"] if has_no_use else []
    if count:
        given += grants(place, whom)
        tables = f"{table} and {count - 1} more" if count > 1 else table
        missing.append(f"{rights} on {tables} of the schema {schema}")
    wanted = {*(rights.split(", ") if count else ()), *(("USAGE",) if has_no_use else ())}
    raise StoreReadOnly(
        f"the user {user} lacks {', and '.join(missing)}",
        remedy=f"let an administrator run {'; '.join(given)}",
        details={"lacking": sorted(wanted)},
    )
