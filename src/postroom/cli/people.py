"""`postroom people`: the people with an address `human:NAME`, and the chats for their messages."""

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
    said = [f"{show.line(found.get('address'))} gets messages {where}"]
    if found.get("reached") is False:
        said.append("that chat has no channel: add the channel to gateway.toml, or messages are lost")
    return "\n".join(said)


@shows(app, "list_people")
def _(found: dict[str, Any]) -> str:
    connected = {None: "-", True: "yes", False: "no"}
    rows = [
        (one["address"], one["chat"] or "-", connected[one["reached"]], str(one["unread"]))
        for one in show.items(found.get("people"))
    ]
    head = ("ADDRESS", "CHAT", "CONNECTED", "UNREAD")
    return show.table(head, rows, none="No people. Add a person with `postroom people add`.")


@shows(app, "remove_person")
def _(found: dict[str, Any], sent: dict[str, Any]) -> str:
    done = "Removed" if found.get("removed") else "Not listed:"
    said = [f"{done} {show.line(sent['name'])}."]
    if found.get("answers"):
        said.append(
            "a rule of gateway.toml still routes chats to this person; their senders now get an "
            "error: change the rule"
        )
    return "\n".join(said)
