"""Finds the command that adds an optional extra of postroom to this installation."""

import json
import sys
from importlib import metadata
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """Return an instruction to add an extra to this installation of postroom, for the remedy of an error."""
    try:
        text = metadata.distribution("postroom").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # the modules were copied without their metadata
        text = None
    source = json.loads(text or "{}")
    url = source.get("url", "")
    if source.get("dir_info", {}).get("editable"):
        return f"run `make extra NAMES={extra}` in {unquote(urlsplit(url).path)}"
    if kind := source.get("vcs_info", {}).get("vcs"):
        url = f"{kind}+{url}"
    wanted = f"'postroom[{extra}]{f' @ {url}' if url else ''}'"
    if find_spec("pip") is None:  # as in environments that uv creates
        return f"run `uv pip install --python {sys.executable} {wanted}`"
    return f"run `{sys.executable} -m pip install {wanted}`"
