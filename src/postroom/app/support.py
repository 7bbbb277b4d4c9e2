"""The files of a support bundle, which contain schemas, counts, states and codes.

Only selected fields are included, so no field can contain texts by people, names, paths or tokens. Settings
are included only if they are numbers or words from fixed lists. Of a log line, only the time, level, event
and code are included.
"""

import hashlib
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from importlib import metadata
from pathlib import Path, PurePath
from typing import Final

from postroom.app.check_results import CheckResult
from postroom.app.config import Settings, explain
from postroom.contracts.errors import InvalidRunner, all_errors
from postroom.contracts.messages import Json
from postroom.contracts.runners import AnyRunner, HttpRunner, ModelRunner, Runner, read_runner
from postroom.mail.operations import OPERATIONS
from postroom.stores.outline import Outline
from postroom.stores.sqlite import sqlite_release
from postroom.version import __version__

LOG_LINES: Final = 1_000
_LOG_BYTES: Final = 2 << 20
_WORDS: Final = frozenset({"profile", "identity", "log_level", "log_format"})
"""The settings whose values are words from fixed lists."""
_LIBRARIES: Final = ("mcp", "msgspec", "prometheus-client", "pydantic", "starlette", "uvicorn")
_ID: Final = re.compile(r"([a-z]{1,8}_)?[0-9a-f-]{32,36}")
_CONSOLE: Final = re.compile(
    r"(\d{4}-\d\d-\d\dT[\d:.]{8,15}Z) \[(\w{4,8}) *\] ([a-z_]+(?:\.[a-z_]+)+)"
    r" +\[postroom\.[\w.]+\](?: *$| +\w+=)"
)
_CODE: Final = re.compile(r"\bcode=([a-z_]{3,40})(?=\s|$)")
_EVENT: Final = re.compile(r"[a-z_]+(\.[a-z_]+)+")
_INSTANT: Final = re.compile(r"[0-9T:.Z-]{20,30}")
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_CODES: Final = tuple(kind.code for kind in all_errors())
"""The only words that are taken from a log line, besides its event."""


def common_documents(settings: Settings) -> dict[str, str]:
    """Return the files of a support bundle with versions, settings and the log.

    Blocks.
    """
    release, is_safe = sqlite_release()
    versions = {
        "postroom": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "sqlite": release,
        "sqlite_is_safe": is_safe,
        "libraries": {name: metadata.version(name) for name in _LIBRARIES},
    }
    shown = []
    for line in explain(settings):
        is_plain = line.name in _WORDS or isinstance(getattr(settings, line.name), bool | int | timedelta)
        origin = "file" if line.origin.startswith("file ") else line.origin  # without the file's path
        shown.append({"name": line.name, "value": line.value if is_plain else "(hidden)", "from": origin})
    return {
        "versions.json": as_json(versions),
        "settings.json": as_json(shown),
        "log.txt": _log(settings.data_dir / "server.log"),
    }


def outline_documents(outline: Outline) -> dict[str, str]:
    """Return the files of a support bundle that describe the database, keyed by file name."""
    steps = [{"step": number, "name": name, "applied_at": at} for number, name, at in outline.steps]
    queue = [
        {**row, "dispatch_id": _id(row["dispatch_id"]), "run_id": _id(row["run_id"])} for row in outline.queue
    ]
    return {
        "schema.sql": outline.schema,
        "schema.json": as_json(steps),
        "counts.json": as_json(outline.rows),
        "queue.json": as_json({"states": outline.states, "runs": queue}),
    }


def told_findings(findings: Iterable[CheckResult]) -> list[dict[str, object]]:
    """Return the parts, states and facts of check results without their descriptions."""
    return [{"part": result.part, "state": result.state, **result.facts} for result in findings]


def told_runners(kept: Sequence[str]) -> list[dict[str, object]]:
    """Return the kinds and time limits of runners without names and commands."""
    told: list[dict[str, object]] = []
    for value in kept:
        try:
            runner = read_runner(value)
        except InvalidRunner as error:
            told.append({"error": error.code})
            continue
        timeout_s = runner.timeout.total_seconds()
        told.append({"kind": runner.kind.value, "timeout_s": timeout_s, **_facts(runner)})
    return told


def as_json(found: object) -> str:
    """Return a value as indented JSON text."""
    return json.dumps(found, indent=1) + "\n"


def _facts(runner: AnyRunner) -> dict[str, object]:
    match runner:
        case ModelRunner():
            return {
                "has_key": runner.api_key_env is not None,
                "instructions": len(runner.instructions),
                "max_steps": runner.max_steps,
                "tools": [tool for tool in runner.tools if tool in OPERATIONS],
            }
        case HttpRunner():
            return {"allow_plain": runner.allow_plain}
        case Runner():
            # Show the name of the program only if it cannot be a text by a person.
            name = PurePath(runner.argv[0]).name if runner.argv else runner.recipe.value
            program = name if re.fullmatch(r"[A-Za-z0-9._+-]{1,40}", name) else "(hidden)"
            idle_timeout = runner.idle_timeout
            return {
                "recipe": runner.recipe.value,
                "program": program,
                "words": len(runner.argv),
                "prompt": runner.prompt.value,
                "env": sorted(runner.env),
                "pass_env": sorted(runner.pass_env),
                "idle_timeout_s": None if idle_timeout is None else idle_timeout.total_seconds(),
                "max_output_bytes": runner.max_output_bytes,
                "resume": runner.resume,
                "session_per": runner.session_per.value,
                "is_placed": bool(runner.runs_on),
                "runs_at_once": runner.runs_at_once,
            }


def _id(value: object) -> str:
    text = str(value)
    return text if _ID.fullmatch(text) else f"id-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _log(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - _LOG_BYTES))
            lines = opened.read(_LOG_BYTES).decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return (
            "no log file: the server writes its log to standard error, which the process that started "
            "the server stores\n"
        )
    except OSError as error:
        return f"the log file cannot be read: {type(error).__name__}\n"
    redacted = [value for line in lines[-LOG_LINES:] if (value := _redact_line(line))]
    return "".join(f"{line}\n" for line in redacted)


def _redact_line(line: str) -> str | None:
    if not line.startswith("{"):
        match = _CONSOLE.match(line)
        if match is None:
            return None
        word = next((code for code in _CODE.findall(line) if code in _CODES), None)
        return " ".join([match[1], match[2], match[3], *([f"code={word}"] if word else [])])
    try:
        event: Json = json.loads(line)
    except ValueError:
        return None
    if not isinstance(event, Mapping) or not _fits(_EVENT, event.get("event")):
        return None
    if not str(event.get("logger")).startswith("postroom."):  # an event of a library may contain any text
        return None
    level = event.get("level") if event.get("level") in _LEVELS else "?"
    instant = event.get("timestamp") if _fits(_INSTANT, event.get("timestamp")) else "?"
    code = [f"code={event['code']}"] if event.get("code") in _CODES else []
    return " ".join([str(instant), str(level), str(event["event"]), *code])


def _fits(form: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None
