"""The text of a summary of a project's events, for terminals, chats and mail."""

from collections.abc import Mapping
from typing import Any

from postroom.contracts.quoting import one_line


def summary_lines(found: Mapping[str, Any], mark: str = "  ") -> list[str]:
    """Return the lines of a summary, as `catch_up` returns it; each entry of a list begins with `mark`."""
    runs, spent, threads = found["runs"], found["spent"], found["threads"]
    lines = [f"Since {found['since']}: {found['events']} events."]
    if found["skipped"]:
        lines.append(f"{found['skipped']} older events are not part of this summary.")
    if ran := [f"{number} {state}" for state, number in runs.items() if number]:
        usage = (
            f" {spent['tokens']:,} tokens, {spent['cost_micros'] / 1e6:.2f} USD."
            if any(spent.values())
            else ""
        )
        lines.append(f"Runs: {', '.join(ran)}.{usage}")
    if tasks := [f"{number} {kind[5:]}" for kind, number in found["counts"].items() if kind[:5] == "task."]:
        lines.append(f"Tasks: {', '.join(tasks)}.")
    if noted := found["counts"].get("note.added"):
        lines.append(f"Notes: {noted} added.")
    for state, key, about in (("failed", "failed", "run_id"), ("asks", "questions", "question_id")):
        lines += [f"{mark}{state:8} {one[about]}  {one['agent'] or '-'}" for one in found[key]]
    lines += [f"{mark}reserved {one_line(one['path'])}  {one['agent'] or '-'}" for one in found["reserved"]]
    if threads:
        lines.append(f"Threads with new messages: {found['threads_in_all']}.")
    for one in threads:
        about = f"{one['messages']}  {one_line(one['subject'])}  ({', '.join(one['senders'])})"
        lines.append(f"{mark}{one['thread_id']}  {about}")
    return lines
