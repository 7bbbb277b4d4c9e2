"""`postroom` of one of three releases that follow one another, run as a separate process.

    python release_process.py <release> <place> <words of the command line>

Each is the code of today with a schema, and a statement, of its own: there is no release before to be had.

| release | adds to the schema                            | writes with each message |
|---------|-----------------------------------------------|--------------------------|
| 0       | the column `release`                          | `release`                |
| 1       | the column `mood`                             | `mood`                   |
| 2       | nothing: takes `release` away, after 1's step | `mood`                   |
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

from postroom.stores import migrations, sql_transaction
from postroom.stores.migrations import Migration, newest_of, shipped_migrations

NEWEST = newest_of(shipped_migrations("postgres"))
WRITES = ("release", "mood", "mood")
"""By release: the column that its messages have a value in."""
STEPS = tuple(
    Migration(version=NEWEST + 1 + number, name=f"of_release_{number}", sql=text)
    for number, text in enumerate(
        (
            "ALTER TABLE messages ADD COLUMN release text NOT NULL DEFAULT 'unknown';",
            "ALTER TABLE messages ADD COLUMN mood text NOT NULL DEFAULT 'unknown';\n"
            "CREATE INDEX messages_mood ON messages (mood);",
            f"-- after: {NEWEST + 2:04}\n\nALTER TABLE messages DROP COLUMN release;",
        )
    )
)


def become(release: int, place: str) -> None:
    """Change the store to that of a release, before any other import. `place` stands in what it writes."""
    assert "postroom.stores.postgres.schema" not in sys.modules
    shipped = migrations.shipped_migrations

    def of_release(engine: str) -> Sequence[Migration]:
        return [*shipped(engine), *(STEPS[: release + 1] if engine == "postgres" else ())]

    vars(migrations)["shipped_migrations"] = of_release
    found = sql_transaction.statements("postgres")
    insert = found["mail.insert_message"]
    text = insert.text.replace("(id, ", f"(id, {WRITES[release]}, ").replace(
        "($1, ", f"($1, '{release} at {place}', "
    )
    assert text.count(WRITES[release]) == text.count(f"'{release} at {place}'") == 1
    found["mail.insert_message"] = replace(insert, text=text)


if __name__ == "__main__":
    become(int(sys.argv.pop(1)), sys.argv.pop(1))
    from postroom.cli.main import main

    sys.exit(main())
