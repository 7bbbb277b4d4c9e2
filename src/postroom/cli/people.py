"""`postroom people`: the people with an address `human:NAME`, and the chats that get their messages."""

from typing import Any

from postroom.cli import show
from postroom.cli.call import shows
from postroom.cli.help_text import command_group

app = command_group(
    "Manage the people whom agents may write to.",
    "people add Kim",
    "people add Kim --chat telegram/123456",
    "people list",
)


@shows(app, "add_person")
def _(found: dict[str, Any]) -> str:
    where = f"in {show.line(found['chat'])}" if found.get("chat") else "on the pages only"
    lines = [f"{show.line(found.get('address'))} gets messages {where}"]
    if found.get("reached") is False:
        lines.append(
            "no channel serves that chat: add the channel to gateway.toml, or messages to this "
            "person are lost"
        )
    return "\n".join(lines)


@shows(app, "list_people")
def _(found: dict[str, Any]) -> str:
    connected = {None: "-", True: "yes", False: "no"}
    rows = [
        (item["address"], item["chat"] or "-", connected[item["reached"]], str(item["unread"]))
        for item in show.items(found.get("people"))
    ]
    head = ("ADDRESS", "CHAT", "CONNECTED", "UNREAD")
    return show.table(head, rows, none="No people. Add a person with `postroom people add`.")


@shows(app, "remove_person")
def _(found: dict[str, Any], sent: dict[str, Any]) -> str:
    done = "Removed" if found.get("removed") else "Not listed:"
    lines = [f"{done} {show.line(sent['name'])}."]
    if found.get("answers"):
        lines.append(
            "a rule in gateway.toml still routes chats to this person, and their senders now get an "
            "error: change the rule"
        )
    return "\n".join(lines)
