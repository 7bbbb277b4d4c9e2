"""What a person does where a remedy names a tool: remedies are written once, and agents read them too."""

import re
from typing import Final

COMMANDS: Final = {
    "acknowledge_message": "mail ack",
    "check_file_reservations": "reservations check",
    "ensure_project": "agents register",
    "fetch_events": "events",
    "fetch_inbox": "mail inbox",
    "fetch_inbox_events": "watch",
    "fetch_thread": "mail thread",
    "file_reservation_paths": "reservations reserve",
    "get_attachment": "mail save",
    "get_message": "mail read",
    "health_check": "status",
    "list_agents": "agents list",
    "list_file_reservations": "reservations list",
    "mark_message_read": "mail read",
    "register_agent": "agents register",
    "release_file_reservations": "reservations release",
    "renew_file_reservations": "reservations renew",
    "reply_message": "mail reply",
    "request_contact": "agents request-contact",
    "retire_agent": "agents retire",
    "rotate_agent_token": "agents token",
    "search_messages": "mail search",
    "send_message": "mail send",
    "start_session": "agents register",
    "summarize_thread": "mail thread",
    "unretire_agent": "agents unretire",
    "whois": "agents show",
}
"""What a person runs for a tool."""
FOR_AGENTS: Final = {
    "ask_person": "only agents ask people",
    "create_agent_identity": "a person chooses the name with `agents register`",
    "delivery_status": "a person sees the status on the message's page and with `agents show`",
    "force_release_file_reservation": "the blocked agent decides this, and gives a reason",
    "list_contacts": "agents decide about their own contacts",
    "recall_message": "the sender recalls the message",
    "respond_contact": "agents decide about their own contacts",
    "set_contact_policy": "agents decide about their own contacts",
    "show_project": "a person sees the same on the project's page",
}
"""Tools that no command stands for, and why."""
_TOOL: Final = re.compile(
    rf"(\bcall )?`?\b({'|'.join(sorted(COMMANDS | FOR_AGENTS, key=len, reverse=True))})\b`?"
)


def as_commands(remedy: str) -> str:
    """Return a remedy with commands in the place of tools; one without a command is an agent's."""
    return _TOOL.sub(_said, remedy)


def _said(met: re.Match[str]) -> str:
    called, tool = met.groups()
    if tool in COMMANDS:
        return f"{'run ' if called else ''}`postroom {COMMANDS[tool]}`"
    return f"have the agent call the tool `{tool}`" if called else f"the tool `{tool}`"
