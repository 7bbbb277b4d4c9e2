"""`postroom tasks`: the tasks of a project, which agents claim."""

from collections.abc import Mapping
from typing import Any

from postroom.cli import show
from postroom.cli.call import shows
from postroom.cli.help_text import command_group

app = command_group(
    "List, claim and finish the tasks of a project.",
    "tasks add 'Light the pier' --as Ada --check 'make test'",
    "tasks list",
    "tasks claim --as Ben",
    "tasks claim 12 --as Ben",
    "tasks done 12 --as Ben --epoch 1 --commit 4f2a --output '12 passed'",
    "tasks decide 12 no --by kim --why 'the lamp is dark'",
    "tasks decide 13 cancel --by kim --why 'the pier is gone'",
)


@shows(app, "list_tasks")
def _(found: dict[str, Any], sent: Mapping[str, Any]) -> str:
    listed = show.items(found.get("tasks"))
    if sent["task_id"] is not None:
        return "\n".join(map(_whole, listed))
    show.tell_more(found, "--after")
    rows = []
    for item in listed:
        if item["lease_ends_ts"]:
            note = f"until {item['lease_ends_ts']}"
        else:
            after = f"after {', '.join(map(str, item['depends_on']))}" if item["depends_on"] else ""
            by = f"by {item['changed_by']}" if item["state"] == "blocked" and item["changed_by"] else ""
            note = "; ".join(filter(None, (after, ": ".join(filter(None, (by, item["reason"]))))))
        who = item["holder"] or item["assignee"] or "anybody"
        rows.append((item["id"], item["state"], item["priority"], who, item["title"], note))
    return show.table(("ID", "STATE", "PRIORITY", "AGENT", "TITLE", "NOTE"), rows, none="No tasks.")


@shows(app, "claim_task")
def _(found: dict[str, Any], sent: Mapping[str, Any]) -> str:
    if found.get("task") is None:
        return f"Claimed nothing: {show.line(found['reason'])}."
    did = "Would claim" if sent["dry_run"] else "Claimed"
    return f"{did} this task.\n\n{_whole(show.fields(found['task']))}"


@shows(app, "add_task")
def _(found: dict[str, Any]) -> str:
    why = f"; {show.line(found['reason'])}" if found.get("reason") else ""
    return f"Added task {found['id']}: it is {found['state']}{why}."


@shows(app, "update_task")
def _(found: dict[str, Any]) -> str:
    return f"Task {found['id']} is {found['state']}."


@shows(app, "done_task")
def _(found: dict[str, Any]) -> str:
    task, ready = show.fields(found["task"]), found["ready"]
    freed = f" Ready now: {', '.join(map(str, ready))}." if ready else ""
    if "reason" in found:
        return f"Changed nothing: {show.line(found['reason'])}."
    return f"Task {task['id']} is {task['state']}.{freed}"


@shows(app, "decide_task")
def _(found: dict[str, Any]) -> str:
    return f"Task {found['task']} is {found['state']}."


def _whole(task: Mapping[str, Any]) -> str:
    facts = {
        "state": f"blocked by {task['changed_by']}" if task["state"] == "blocked" else task["state"],
        "priority": task["priority"],
        "for": task["assignee"] or "anybody",
        "holder": task["holder"],
        "epoch": task["epoch"] or "",
        "until": task["lease_ends_ts"],
        "files": ", ".join(task["paths"]),
        "after": ", ".join(map(str, task["depends_on"])),
        "check": task.get("acceptance"),
        "author": task["author"],
        "thread": task.get("thread_id"),
        "reason": task["reason"],
        "commit": task.get("commit"),
    }
    lines = [f"{task['id']}  {show.line(task['title'])}"]
    lines += [f"  {name + ':':<9} {show.line(value)}" for name, value in facts.items() if value]
    texts = [show.plain(task.get(name)) for name in ("text", "output", "message") if task.get(name)]
    return "\n\n".join(["\n".join(lines), *texts])
