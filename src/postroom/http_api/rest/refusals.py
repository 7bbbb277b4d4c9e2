"""Which refusals a call of the mail room may meet, by status: for the document, and for who reads it."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from postroom.contracts import errors
from postroom.http_api.errors import STATUSES

MAIL: Final[tuple[type[errors.PostroomError], ...]] = (
    errors.InvalidArgument,
    errors.InvalidName,
    errors.InvalidPath,
    errors.InvalidPattern,
    errors.InvalidRecipients,
    errors.TooLarge,
    errors.UnknownProject,
    errors.UnknownAgent,
    errors.UnknownMessage,
    errors.UnknownThread,
    errors.UnknownReservation,
    errors.NameTaken,
    errors.StateError,
    errors.IllegalTransition,
    errors.IdempotencyConflict,
    errors.AgentRetired,
    errors.AlreadyRead,
    errors.NotHolder,
    errors.CursorAhead,
    errors.CursorExpired,
    errors.ContactRequired,
    errors.ContactBlocked,
    errors.TokenRequired,
    errors.WrongToken,
    errors.IdentityMismatch,
    errors.NotPermitted,
    errors.InsufficientScope,
    errors.InternalError,
    errors.StoreError,
    errors.StoreUnavailable,
    errors.StoreReadOnly,
    errors.StoreCorrupt,
    errors.StoreFull,
    errors.CommitUnknown,
)
"""What the mail room and its store may raise."""
DOOR: Final[Mapping[int, tuple[str, ...]]] = {
    400: ("malformed_request",),
    403: ("foreign_origin",),
    415: ("unsupported_media_type",),
    421: ("unknown_host",),
    500: ("internal_error",),
    503: ("server_unavailable",),
}
"""What is said outside of any operation, beside of tokens and sizes."""
ONLY_OF_CHANGES: Final = frozenset({415, 507})
ALWAYS: Final = frozenset({400, 401, 403, 413, 421, 500})
"""What may meet a call that asks for no mail."""


def codes_by_status() -> dict[int, tuple[str, ...]]:
    """Return the codes that may stand in a refusal of each status, in order."""
    found: defaultdict[int, set[str]] = defaultdict(set)
    for kind in MAIL:
        found[STATUSES[kind]].add(kind.code)
    for status, codes in DOOR.items():
        found[status].update(codes)
    return {status: tuple(sorted(found[status])) for status in sorted(found)}
