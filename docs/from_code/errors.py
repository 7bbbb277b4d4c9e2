"""The page of the errors: the tree, and each failure's status, exit code and remedy."""

import inspect
from typing import Final

from from_code.markdown import table
from postroom.cli import exit_codes
from postroom.contracts import errors
from postroom.services.statuses import status_of

EDGE_CODES: Final = {
    "malformed_request": (400, "The path or a header cannot be read."),
    "foreign_origin": (403, "A page of another origin sent the request."),
    "not_found": (404, "There is nothing at this address."),
    "method_not_allowed": (405, "The address takes other methods; `Allow` names them."),
    "unknown_host": (421, "The `Host` header names no host that this server answers for."),
    "internal_error": (500, "The server failed on this call; the log has the cause under the request's id."),
}
"""Refusals that only the edges know: over HTTP all of them, as a tool's answer `internal_error`."""


def page() -> str:
    """Return the page."""
    tree = inspect.cleandoc(errors.__doc__ or "").split("\n\n")[1]
    rows = [
        (
            f"`{kind.code}`",
            f"`{kind.__name__}`",
            inspect.getdoc(kind),
            status_of(kind("")),
            exit_codes.exit_code(kind("")),
            "yes" if kind.retryable else "no",
            kind.default_remedy,
        )
        for kind in errors.all_errors()
    ]
    edges = [(f"`{code}`", status, words) for code, (status, words) in EDGE_CODES.items()]
    return f"""
# Errors

Every failure has a stable `code`, which is never reused, and says what was wrong (`message`), with what
(`value`), what to do (`remedy`), and whether the same call may succeed later (`retryable`). The branches tell
who must act.

```text
{inspect.cleandoc(tree)}
```

The same facts travel on every edge: as a tool result with `isError` and `structuredContent.error`, over HTTP
as problem JSON (RFC 9457), from a command as `{{"error": ...}}` with `--json` and an exit code. The remedy
below is the usual one; many refusals carry one of their own.

{table(("code", "class", "meaning", "HTTP", "exit", "retry", "usual remedy"), rows)}

## Of the edges alone

{table(("code", "HTTP", "meaning"), edges)}
"""
