"""The answers of the fake server to commands; `@SENT` in `unit/cli_transcripts.txt` is `SENT` here."""

from typing import Any

AT = "2026-11-21T09:00:00.000Z"
FILE = {"name": "a.txt", "media_type": "text/plain", "size": 3, "sha256": "x", "preview_sha256": None}
MESSAGE: dict[str, Any] = {
    **{"id": 7, "thread_id": "t-1", "subject": "Hello", "from": "Ada", "to": ["Bo"], "cc": []},
    **{"importance": "normal", "ack_required": True, "topic": "", "created_ts": AT, "reply_to": None},
    **{"recalled_at": None, "attachments": [FILE], "body_md": "First line\nSecond"},
}
INBOX = {**MESSAGE, "seq": 1, "kind": "to", "read_at": None, "acked_at": None}
SENT = {"count": 1, "deliveries": [{"project": "p", "recipients": ["Bo"], "payload": MESSAGE}], "skipped": []}
AGENT = {
    **{"id": 1, "name": "Ada", "program": "cli", "model": "m", "task_description": "t"},
    **{"contact_policy": "open", "created_at": AT, "last_active_at": AT, "retired_at": None},
}
HELD = {
    **{"id": 3, "path": "src/**", "agent": "Bo", "exclusive": True, "reason": "edit", "created_ts": AT},
    **{"expires_ts": "2026-11-21T10:00:00.000Z", "released_ts": None, "release_reason": ""},
}
RELEASED = {**HELD, "released_ts": "2026-11-21T09:30:00.000Z", "release_reason": "released"}
TASK: dict[str, Any] = {
    **{"id": 12, "title": "Light the pier", "state": "claimed", "priority": "high", "assignee": ""},
    **{"holder": "Bo", "epoch": 2, "lease_ends_ts": "2026-11-21T10:00:00.000Z", "paths": ["piers/**"]},
    **{
        "depends_on": [],
        "reason": "",
        "author": "Ada",
        "changed_ts": AT,
        "changed_by": "Bo",
        "text": "Red.",
        "acceptance": "make",
    },
    **{"thread_id": "task-12", "commit": "", "output": "", "message": ""},
}
TASKS = [
    TASK,
    {**TASK, "id": 13, "state": "waiting", "holder": None, "lease_ends_ts": None, "depends_on": [12, 3]},
    {**TASK, "id": 14, "state": "blocked", "holder": None, "lease_ends_ts": None, "reason": "no lamp"},
]
CONFLICTS = [{"path": "src/a.py", "holders": [HELD]}]
HIT = {name: MESSAGE[name] for name in ("id", "thread_id", "subject", "from", "importance", "topic")}
HITS = {"hits": [{**HIT, "created_ts": AT, "snippet": "First"}], "next": None, "query": "first"}
SUMMARY = {
    **{"thread_id": "t-1", "subject": "Hello", "messages": 2, "left_out": 0, "first_ts": AT, "last_ts": AT},
    "participants": [{"name": "Ada", "messages": 2}],
    "open_questions": [{"message_id": 7, "asked_by": "Ada", "text": "Why?"}],
    "unacknowledged": [{"message_id": 7, "subject": "Hello", "waiting_for": ["Bo"]}],
    "reservations": [HELD],
}
ACK = {"message_id": 7, "acknowledged": True, "acknowledged_at": "now", "read": True, "read_at": "now"}
MARK = {"message_id": 7, "read": True, "read_at": "now"}
STATE = {
    **{"state": "connected", "since": "09:30", "inbound_at": "10:00", "outbound_at": None},
    **{"error_code": None, "error": None},
}
MESSAGES = {"accepted": 3, "finished": 1, "queued": 1, "running": 1, "rejected": 0, "adds_up": True}
HEALTH = {
    **{"state": "running", "channels": {"web": STATE}, "messages": MESSAGES},
    **{"dispatches": {}, "undelivered": 2},
}
ADA = {"platform": "telegram", "user_id": "77", "role": "member", "name": "Ada\x1b[2J", "from": "paired"}
BEN = {"platform": "telegram", "user_id": "78", "name": None, "expires_at": "11:00"}
DEAD = {
    **{"outbox_id": "o-1", "target": "telegram/1", "chat": "telegram/77", "who": "Ada on telegram"},
    **{"created_at": "09:00", "error": "forbidden: blocked"},
}
REFUSED = {"platform": "telegram", "state": "failed", "error": "the token is\x1b refused"}
RUN: dict[str, Any] = {
    **{"run_id": "01a2179b-122e-77e7-8278-538c606a46d9", "project": "home-somebody-with-a-long-name-harbour"},
    **{"agent": "Ada", "state": "at work", "why": "", "until": None, "created_at": "2026-11-26T09:00:00Z"},
    **{"started_at": "2026-11-26T09:00:00Z", "finished_at": None, "output_is_cut": False},
}
THREE = [{**HELD, "id": number, "agent": f"A{number}"} for number in (1, 2, 3)]
TOKENS = [
    {
        **{"name": "ci", "id": "a" * 12, "scopes": ["run"], "project": None, "state": state},
        **{"expires_at": until, "revoked_at": revoked, "last_used_at": used},
    }
    for state, until, revoked, used in (
        ("valid", None, None, "2026-11-21"),
        ("valid", "2026-12-01", None, None),
        ("replaced", "2026-11-30", None, None),
        ("expired", "2026-11-20", None, None),
        ("revoked", "2026-12-01", "2026-11-22", None),
    )
]
