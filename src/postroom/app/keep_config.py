"""The rules of the configuration file for the retention of messages: `[[keep]]`."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final

from postroom.app.config import tables_of
from postroom.app.tables import read_table
from postroom.contracts.errors import ConfigError
from postroom.contracts.records import Meta
from postroom.contracts.retention import KeepRule
from postroom.contracts.tables import Table

TABLE: Final = "keep"
_Text = Annotated[str, Meta(pattern=r"\S", extra={"write": "a text that is not empty"})]


class KeepTable(Table, frozen=True, kw_only=True):
    """One rule: its messages, and how long they are kept."""

    project: _Text | None = None
    topic: _Text | None = None
    thread: _Text | None = None
    days: Annotated[int, Meta(ge=1, le=36_500)] | None = None
    unread_stays: bool | None = None
    hold: bool = False

    def __post_init__(self) -> None:
        if self.hold and (self.days is not None or self.unread_stays is not None):
            raise ConfigError(
                "hold keeps the held messages for ever, and days or unread_stays is set too",
                value="hold",
                remedy="leave out days and unread_stays, or leave out hold",
            )
        if not self.hold and self.days is None:
            raise ConfigError(
                "days is missing", value="days", remedy="write days = 90 for 90 days, or hold = true"
            )

    def rule(self) -> KeepRule:
        """Return the rule that the table describes."""
        return KeepRule(
            project=self.project,
            topic=self.topic,
            thread=self.thread,
            keep=None if self.days is None else timedelta(days=self.days),
            unread_stays=self.unread_stays is not False,
        )


def load_keep_rules(environment: Mapping[str, str]) -> tuple[KeepRule, ...]:
    """Return the rules of the configuration file, in order; none without a file.

    Raises:
        ConfigError: A rule is invalid.
    """
    tables = tables_of(environment, TABLE)
    return tuple(read_table(place, told, KeepTable, environment).rule() for place, told in tables)
