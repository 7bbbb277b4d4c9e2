"""One word for each idea: the words that grew before the standard terms are in no name and in no prose.

Looked at are names in `src` (a name is split into its words), docstrings, comments, statements and pages. A word that is
also plain English is searched in class names only (`CLASSES`). Exceptions from the search: `one`, `told`, `line`, `turn` and
`place` outside of class names, which have uses that are right.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from postroom.stores.sqlite.connection import connect
from postroom.stores.sqlite.migrate import migrate

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

WORDS = {
    "bell": "change notification",
    "bells": "change notification",
    "boxes": "delivery state",
    "carrier": "outbox",
    "carriers": "outbox",
    "desk": "context of an operation",
    "desks": "context of an operation",
    "doors": "constructor parameters",
    "errand": "pending request",
    "handing": "deliver",
    "handling": "run of mail",
    "handlings": "runs of mail",
    "house": "application, server",
    "houses": "applications, servers",
    "journal": "event log, intake log",
    "journals": "event logs",
    "letter": "message",
    "letters": "messages",
    "mailroom": "run queue",
    "pen": "writer of standard input",
    "sitting": "attempt, run",
    "sittings": "attempts, runs",
    "spots": "paths",
    "surroundings": "environment, context",
    "taking": "run input",
    "tellings": "events",
    "tray": "dead-letter queue",
    "trays": "dead-letter queues",
    "workroom": "page context",
    "workshop": "process runner",
}
"""Retired words, and their replacements."""
IN_NAMES_ALONE = {"handing", "handling", "handlings", "taking", "doors", "boxes", "pen"}
"""Those that prose may use in their plain sense."""
CLASSES = {
    "begun": "RunInput",
    "bookkeeping": "RunCompletion",
    "ended": "RunCompletion",
    "examination": "CheckResult",
    "lane": "StatementBatcher",
    "mark": "AppliedEdit",
    "pauses": "QuestionTimeouts",
    "saying": "OutgoingMessage",
    "scene": "SetupScope",
    "standing": "status",
    "telling": "EventRecorder",
    "want": "ConfigEdit",
}
"""Plain words that are gone as names of classes."""
ENDS_OF_CLASSES = {
    "operator": "a service",
    "place": "one name each: Session, ChatAddress, ...",
    "strategy": "the one enum of policies when busy",
    "turns": "MailRunExecutor",
    "wish": "Submission",
}
"""Words with which no class name may end."""

IN_TABLES = {
    "guesses": "failures",
    "injected": "delivered",
    "lane": "kind",
    "line": "inbound message",
    "lines": "inbound messages",
    "patience": "timeout",
    "settled": "indexed",
    "told": "notified",
}
"""Plain words that are gone as names of tables and columns."""

EXCEPTIONS = {
    r"dead[-_ ]?letters?": "the field's word for work that was given up",
    r"letters?,? (?:and|or|but) digits?|letters?, digits?|digits? (?:and|or) letters?": "of the alphabet",
    r"(?:lower|upper)-case letters?|(?:capital|small|drive|latin|twelve|first|four|two) letters?": "of the alphabet",
    r"letter by letter|to the letter|(?:with|begins with) a letter|id_letters": "of the alphabet",
    r"called a letter|an earlier version named (?:it|them) `?letters?`?|`letter\.\w+`": "names of an earlier version, explained",
    r"signal[-_ ]handling|error[-_ ]handling|handling of (?:signals|errors)": "what every program has",
    r"journal_mode|rollback journal|wal journal|'?journal'? of sqlite|-journal": "SQLite's own",
}
"""Allowed uses, with the reason; removed from a text before the search."""

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_EXCEPTIONS = re.compile("|".join(EXCEPTIONS), re.IGNORECASE)
_COMMENT = re.compile(r"#.*")
_CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_SAID = set(WORDS) - IN_NAMES_ALONE


def words_of(text: str) -> set[str]:
    """Return the words of a name or a text, those of the exceptions left out."""
    return {part.lower() for part in _PARTS.findall(_EXCEPTIONS.sub(" ", text))}


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name


def prose(text: str, tree: ast.AST) -> Iterator[str]:
    """Yield comments, and the strings that stand alone, such as docstrings."""
    yield from _COMMENT.findall(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


def retired_in_module(text: str) -> set[str]:
    found = {f"class {name}" for name in _CLASS.findall(text) if is_retired_class(name)}
    if not WORDS.keys().isdisjoint(part.lower() for part in _PARTS.findall(text)):  # to read it takes long
        tree = ast.parse(text)
        found |= words_of(" ".join(names(tree))) & set(WORDS)
        found |= words_of("\n".join(prose(text, tree))) & _SAID
    return found


def is_retired_class(name: str) -> bool:
    parts = [part.lower() for part in _PARTS.findall(name)]
    return "".join(parts) in CLASSES or (bool(parts) and parts[-1] in ENDS_OF_CLASSES)


def retired_in_text(text: str) -> set[str]:
    return words_of(text) & _SAID


def found() -> dict[str, set[str]]:
    """Return the remaining uses: by folder of the source, and by page."""
    words: dict[str, set[str]] = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        words[path.parent.relative_to(SOURCE).as_posix()] |= retired_in_module(
            path.read_text(encoding="utf-8")
        )
    for path in SOURCE.rglob("*.sql"):
        if "migrations" not in path.parts:  # they tell of tables as they were
            words[path.parent.relative_to(SOURCE).as_posix()] |= retired_in_text(
                path.read_text(encoding="utf-8")
            )
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        page = _CODE.sub(" ", path.read_text(encoding="utf-8"))  # names in it are looked at where they are
        words[path.relative_to(ROOT).as_posix()] |= retired_in_text(page)
    return {where: those for where, those in sorted(words.items()) if those}


def test_retired_words_are_in_no_name_and_no_prose() -> None:
    told = {where: {one: WORDS.get(one, "") for one in sorted(those)} for where, those in found().items()}
    assert told == {}, "a word that is gone; docs/architecture.md and the table above have the one to use"


def test_no_table_and_no_column_has_a_retired_word(tmp_path: Path) -> None:
    """Both engines have the same ones: `tests/migrations/test_engines_agree.py`."""
    with closing(connect(tmp_path / "postroom.db")) as connection:
        migrate(connection, tmp_path / "postroom.db", now=1)
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = {
            f"{table}.{row[1]}"
            for table in tables
            for row in connection.execute(f'PRAGMA table_info ("{table}")')
        }
    assert len(columns) > 200
    assert {name for name in columns if words_of(name) & {*WORDS, *IN_TABLES}} == set()


def test_the_look_sees_words_and_passes_over_exceptions() -> None:
    assert retired_in_module("def read_letters(houseRules): ...") == {"letters", "house"}
    assert retired_in_module('"""A letter."""\n# the bell\nclass RunPlace: ...') == {
        "letter",
        "bell",
        "class RunPlace",
    }
    assert retired_in_module("def dead_letters(): 'letters, digits and dots'") == set()
    assert retired_in_text("A dead letter; signal handling. The tray.") == {"tray"}
