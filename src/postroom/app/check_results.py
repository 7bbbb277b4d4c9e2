"""What an examination found: one look at one part, with what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from postroom.contracts.errors import PostroomError
from postroom.http_api.operations import CheckState


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One look at one part. What could not be seen is `unknown`, never `ok`."""

    part: str
    """One of a fixed list of words, so that it names nobody."""
    state: CheckState
    detail: str
    remedy: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Numbers, codes and words of fixed lists; no paths and no names, for these may be shown to others."""
    about: str = ""
    """Which of several: a project, an agent. Never leaves the installation by itself."""

    def as_dict(self) -> dict[str, object]:
        """Return it as plain JSON data, for the operator."""
        name = f"{self.part} {self.about}" if self.about else self.part
        return {"name": name, "state": self.state, "detail": self.detail, "remedy": self.remedy}


def backed_up_elsewhere() -> CheckResult:
    """Return what is said of the backups of a database that this program does not back up."""
    detail = "PostgreSQL is backed up by its own tools"
    return CheckResult(
        part="backups", state="unknown", detail=detail, remedy="see that pg_dump runs on a timer"
    )


def broken(part: str, error: PostroomError, *, about: str = "") -> CheckResult:
    """Return what an error says of a part."""
    return CheckResult(
        part=part,
        state="failed",
        detail=error.message,
        remedy=error.remedy,
        about=about,
        facts={"code": error.code},
    )


def span(milliseconds: int) -> str:
    """Return a length of time in the largest unit that it has two of, as people tell it."""
    seconds = max(milliseconds, 0) // 1000
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"
