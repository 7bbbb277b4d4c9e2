"""`postroom support-bundle`: a file to share with other people, without messages, names or secrets."""

import io
import os
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from postroom.app import places
from postroom.cli import show
from postroom.cli.call import call
from postroom.cli.options import AsJson, DataDir
from postroom.contracts.clock import SystemClock
from postroom.contracts.errors import InvalidPath, PostroomError, ServerUnavailable

app = typer.Typer(rich_markup_mode=None)


@app.command("support-bundle")
def support_bundle(
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="The new file to write. It must not exist."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Collect diagnostics for a support request: versions, states, counts. No messages, names or secrets.

    The bundle contains less if no server runs.
    """
    now = SystemClock().now()
    moment = datetime.fromtimestamp(now / 1000, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    target = places.absolute(str(output or f"postroom-support-{moment}.tar.gz"), places.environment())
    if target.exists():
        raise _there_already(target)
    with show.progress(as_json=as_json):
        try:
            answer = call("collect_support_bundle", data_dir=data_dir)
        except ServerUnavailable as error:
            # the server is on another machine, so this machine has no files to read
            if places.environment().get("POSTROOM_URL"):
                raise
            from postroom.app.offline import support_offline

            files, is_running = support_offline(error, data_dir=data_dir, now=now), False
        else:
            listed = answer.get("files")
            if not isinstance(listed, Mapping):
                raise PostroomError("the server's answer contains no files", remedy="run `postroom status`")
            files, is_running = {Path(str(name)).name: str(text) for name, text in listed.items()}, True
    # Write the bundle completely or not at all, so that only this user can read it.
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as bundle:
        for name, text in sorted(files.items()):
            content = text.encode("utf-8", "replace")
            about = tarfile.TarInfo(f"postroom-support/{name}")  # so that the file names no user
            about.size, about.mtime, about.mode = len(content), now // 1000, 0o600
            bundle.addfile(about, io.BytesIO(content))
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise _there_already(target) from error
    except OSError as error:
        raise _write_error(target, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(packed.getvalue())
    except OSError as error:
        target.unlink(missing_ok=True)
        raise _write_error(target, error) from error
    fields: dict[str, object] = {"path": str(target), "server": is_running, "files": sorted(files)}
    show.answer(
        fields, as_json=as_json, text=lambda: f"Wrote {show.line(target)}. Read it before you share it."
    )


def _there_already(target: Path) -> InvalidPath:
    return InvalidPath(
        f"{target} exists already", value=str(target), remedy="use another file name with --output"
    )


def _write_error(target: Path, error: OSError) -> InvalidPath:
    return InvalidPath(
        f"{target} cannot be written: {error.strerror}",
        value=str(target),
        remedy="use another file name with --output",
    )
