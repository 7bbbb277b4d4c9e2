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
    "not_found": (404, "This address does not exist."),
    "method_not_allowed": (405, "The address has other methods, which `Allow` lists."),
    "unknown_host": (421, "The `Host` header names a host for which this server does not answer."),
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

Every failure has a stable `code`, which is never reused. It also has a `message`, the wrong `value`, a
`remedy`, and `retryable`: whether the same call may succeed later. Each branch of the tree names the one who
must act.

```text
{inspect.cleandoc(tree)}
```

Every protocol reports the same facts. A tool returns a result with `isError` and `structuredContent.error`.
HTTP returns problem JSON (RFC 9457). A command prints `{{"error": ...}}` with `--json`, and has an exit code.
The table shows the usual remedy; many errors have a more specific remedy.

{table(("code", "class", "meaning", "HTTP", "exit", "retry", "usual remedy"), rows)}

## Errors of HTTP only

{table(("code", "HTTP", "meaning"), edges)}
"""
