"""The state of backups, in words for an examination."""

from postroom.app.backups import BackupState
from postroom.app.check_results import CheckResult, span
from postroom.contracts.errors import StoreReadOnly
from postroom.http_api.readiness import CheckState


def told_of_backups(found: BackupState) -> CheckResult:
    """Return the result of checking the backups."""
    state, detail, remedy = _backups_in_words(found)
    facts = {
        "interval_ms": found.interval_ms,
        "age_ms": found.age_ms,
        "tries_failed": found.tries,
        "code": None if found.failure is None else found.failure.code,
    }
    return CheckResult(part="backups", state=state, detail=detail, remedy=remedy, facts=facts)


def _backups_in_words(found: BackupState) -> tuple[CheckState, str, str]:
    """Return the state, its description, and its remedy."""
    newest = "there is no backup"
    if found.newest is not None and found.age_ms is not None:
        newest = f"the newest backup, {found.newest.path.name}, is {span(found.age_ms)} old"
    if found.failure is not None:
        tries = f"the last {found.tries} attempts failed: " if found.tries else ""
        seen = "" if isinstance(found.failure, StoreReadOnly) and not found.newest else f"; {newest}"
        detail = f"{tries}{found.failure.message}{seen}"
        return "failed", detail, found.failure.remedy
    if found.damaged:
        detail = f"{len(found.damaged)} backups are damaged: {', '.join(found.damaged[:5])}; {newest}"
        return (
            "failed",
            detail,
            "run `postroom backup` for an intact backup; `postroom backup list --check` shows the "
            "damage of the others, and `postroom backup prune` removes them",
        )
    if found.is_overdue:
        return "failed", newest, "read in the log why no backup was made, or run `postroom backup`"
    if not found.interval_ms:
        remedy = "set backup_interval, or let your own timer run `postroom backup`"
        return "unknown", f"automatic backups are disabled; {newest}", remedy
    if found.newest is None:
        detail = f"{newest} yet; the server makes the first backup 1 minute after its start"
        return "unknown", detail, "wait, or run `postroom backup`"
    return "ok", newest, ""
