"""The files of `deploy/`: read by a parser, because the test machines have no container engine; Caddy is run in e2e."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from postroom.app.config import SETTINGS, Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE: Any = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
NAMES = {f"POSTROOM_{name.upper()}" for name in SETTINGS}
"""The settings that a server reads from its environment."""
SERVERS = ("one", "two")


def test_only_the_proxy_can_be_reached_and_servers_write_to_their_volume_alone() -> None:
    services = COMPOSE["services"]
    assert [name for name, one in services.items() if "ports" in one] == ["caddy"]
    for name in SERVERS:
        server = services[name]
        assert server["read_only"]
        assert server["cap_drop"] == ["ALL"]
        written = [volume for volume in server["volumes"] if not volume.endswith(":ro")]
        assert written == [f"{name}:/data", "archive:/archive"]
    mounted = {volume.partition(":")[0] for one in services.values() for volume in one["volumes"]}
    assert {name for name in mounted if not name.startswith(".")} == set(COMPOSE["volumes"])


def test_every_variable_is_a_setting() -> None:
    in_image = set(re.findall(r"\b(POSTROOM_\w+)=", DOCKERFILE))
    in_unit = set(re.findall(r"\b(POSTROOM_\w+)=", (DEPLOY / "postroom.service").read_text()))
    in_compose = {name for one in SERVERS for name in COMPOSE["services"][one]["environment"]}
    assert in_image
    assert in_unit
    assert in_compose
    assert in_image | in_unit | in_compose <= NAMES


def test_the_proxy_sends_to_every_server_at_the_port_of_the_image() -> None:
    [port] = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    assert int(port) == Settings().port
    addresses = COMPOSE["services"]["caddy"]["environment"]["SERVERS"]
    assert addresses.split() == [f"{name}:{port}" for name in SERVERS]


def test_the_image_copies_what_there_is_and_runs_as_nobody_special() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
    assert re.findall(r"^USER (\S+)$", last, re.MULTILINE) == ["postroom"]
    assert COMPOSE["services"]["one"]["build"]["dockerfile"] == "deploy/Dockerfile"


def test_the_image_takes_the_driver_from_the_lock_of_the_tests() -> None:
    [program] = re.findall(r"awk '(.+)' requirements-dev.lock", DOCKERFILE)
    done = subprocess.run(
        ["awk", program, "requirements-dev.lock"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pinned = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    assert [line.partition("==")[0] for line in pinned] == ["psycopg", "psycopg-binary"]
    assert done.stdout.count("--hash=") >= len(pinned)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "postroom.service"
    here = (DEPLOY / "postroom.service").read_text().replace("/opt/postroom/bin/postroom", "/bin/true")
    unit.write_text(here)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
