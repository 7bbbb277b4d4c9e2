"""The permitted values of mail fields, in a separate module so that the command line loads quickly."""

from typing import Literal

Importance = Literal["low", "normal", "high", "urgent"]
RecipientKind = Literal["to", "cc", "bcc"]
ContactPolicy = Literal["open", "same_owner", "approval", "closed"]
ContactStatus = Literal["pending", "approved", "blocked"]
SearchOrder = Literal["newest", "best"]
ThreadsSeen = Literal["any", "unread", "unacknowledged"]
