"""Try the files of a release: `python tests/try_package.py DIST`, the folder with the sdist and the wheel.

The wheel is installed next to an application that has its own folders `gateway` and `mcp_agent_mail`; both must work.
Then each extra is installed in a separate environment. Prints a line for each step; exits with 1 at the first failure.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

MODULES = {
    "postgres": ["postroom.stores.postgres.engine"],
    "openai": ["postroom.runtime.openai_endpoint"],
    "telegram": ["postroom.gateway.platforms.telegram_api"],
    "slack": ["websockets", "postroom.gateway.platforms.slack_library"],
    "discord": ["discord.gateway", "postroom.gateway.platforms.discord_library"],
    "matrix": ["httpx2", "postroom.gateway.platforms.matrix"],
    "otel": ["postroom.app.otel"],
}
"""The modules that each extra must make importable."""
APPLICATION = """\
import asyncio
import gateway
import mcp_agent_mail
from postroom import Mailbox


async def work(run):
    return f"{gateway.NAME} and {mcp_agent_mail.NAME}: {run.text}"


async def main():
    async with Mailbox.open("sqlite:///runs.db", work) as mailbox:
        handle = await mailbox.enqueue("chat-1", "hello")
        print(await handle.result(timeout=30))


asyncio.run(main())
"""


def clean() -> dict[str, str]:
    """Return the environment of this process without settings of Python and of postroom."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "POSTROOM"))}


def run(*command: str | Path, cwd: Path, settings: Mapping[str, str] | None = None) -> str:
    """Run a command, and return its output.

    Raises:
        SystemExit: It failed.
    """
    environment = {**clean(), **(settings or {})}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        sys.exit(f"FAILED {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(is_met: bool, what: str) -> None:
    """Print a step that is met.

    Raises:
        SystemExit: It is not met.
    """
    if not is_met:
        sys.exit(f"FAILED {what}")
    print(f"ok     {what}", flush=True)


def environment_with(folder: Path, requirement: str) -> Path:
    """Make an environment, install a requirement in it, and return its folder of commands."""
    run(sys.executable, "-m", "venv", folder, cwd=folder.parent)
    commands = folder / "bin"
    quiet = ("--quiet", "--disable-pip-version-check")
    run(commands / "python", "-m", "pip", "install", *quiet, requirement, cwd=folder.parent)
    run(commands / "python", "-m", "pip", "check", cwd=folder.parent)
    return commands


def check_files(sdist: Path, wheel: Path) -> None:
    """Check what the two files contain, and the page that an index shows."""
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        about = next(name for name in names if name.endswith(".dist-info/METADATA"))
        page = files.read(about).decode()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    expect(tops == {"postroom"}, f"the wheel has one top-level package ({', '.join(sorted(tops))})")
    expect("postroom/py.typed" in names, "the wheel has type information")
    expect("](docs/" not in page and "](CHANGELOG.md" not in page, "the links of its page are absolute")
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    expect(
        {"LICENSE", "README.md", "CHANGELOG.md"} <= members, "the sdist has the licence, README and changes"
    )


def check_beside(top: Path, wheel: Path) -> None:
    """Install the wheel, and run an application with folders of the same names, and the command."""
    commands = environment_with(top / "beside", str(wheel))
    application = top / "application"
    for name in ("gateway", "mcp_agent_mail"):
        (application / name).mkdir(parents=True)
        (application / name / "__init__.py").write_text(f'NAME = "its own {name}"\n')
    (application / "main.py").write_text(APPLICATION)
    said = run(commands / "python", "main.py", cwd=application).strip()
    expect(said == "its own gateway and its own mcp_agent_mail: hello", f"the application runs: {said}")
    expect(said in run(commands / "python", "main.py", cwd=application), "and once more on its database")
    version = run(commands / "postroom", "--version", cwd=application).split()[1]
    expect(
        wheel.name.startswith(f"postroom-{version}-"), f"the command runs in that folder: version {version}"
    )
    check_server(commands, application)


def check_server(commands: Path, application: Path) -> None:
    """Start the server in the application's folder, register an agent, and stop the server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {"POSTROOM_DATA_DIR": str(application / "data"), "POSTROOM_PORT": port}
    started = subprocess.Popen(
        [commands / "postroom", "up"],
        cwd=application,
        env={**clean(), **settings},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        expect(any("Ctrl-C" in line for line in started.stdout), "the server starts in that folder")
        run(commands / "postroom", "agents", "register", "Ada", cwd=application, settings=settings)
        found = run(commands / "postroom", "agents", "list", cwd=application, settings=settings)
        expect("Ada" in found, "an agent is registered")
    finally:
        started.send_signal(signal.SIGINT)
        code = started.wait(timeout=60)
    expect(code in (0, 130), f"the server stops: exit code {code}")


def check_extras(top: Path, wheel: Path, extras: set[str]) -> None:
    """Install each extra, and import the modules that need it."""
    expect(extras - {"all"} == set(MODULES), f"each extra has modules to try ({', '.join(sorted(extras))})")
    every = {"all": [module for modules in MODULES.values() for module in modules]}
    for extra, modules in (MODULES | every).items():
        commands = environment_with(top / extra, f"postroom[{extra}] @ {wheel.as_uri()}")
        run(commands / "python", "-c", f"import {', '.join(modules)}", cwd=top)
        count = len(json.loads(run(commands / "python", "-m", "pip", "list", "--format", "json", cwd=top)))
        expect(True, f"extra {extra}: {count} packages")


def main(dist: Path) -> None:
    """Try the files of a folder."""
    (sdist,), (wheel,) = dist.glob("postroom-*.tar.gz"), dist.glob("postroom-*.whl")
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    check_files(sdist, wheel.resolve())
    with tempfile.TemporaryDirectory() as top:
        check_beside(Path(top), wheel.resolve())
        check_extras(Path(top), wheel.resolve(), set(project["optional-dependencies"]))
    print("every step passed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
