"""Channels of other packages: found by their entry point, checked before they are used, installed for real."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from postroom.app.config import Settings
from postroom.app.gateway_config import load_gateway
from postroom.app.serve import Site
from postroom.app.wiring import Application, Declared
from postroom.contracts.errors import ConfigError
from postroom.gateway.platforms import load_adapter_class
from postroom.gateway.session import Platform, SessionSource
from postroom.testing import ManualClock

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "zulip_channel"
AGENT = '[agent]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n'

Installed = Callable[..., None]


def wheel_of(project: Path, folder: Path) -> Path:
    """Return a wheel of a project with one module, as a build backend makes it."""
    told = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    name, version = told["project"]["name"].replace("-", "_"), told["project"]["version"]
    groups = told["project"]["entry-points"].items()
    entries = "".join(
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in groups
    )
    info, made = f"{name}-{version}.dist-info", folder / f"{name}-{version}-py3-none-any.whl"
    files = {
        f"{name}.py": (project / f"{name}.py").read_text(encoding="utf-8"),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {told['project']['name']}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entries,
    }
    with zipfile.ZipFile(made, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD")))
    return made


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Install a plug-in with one module into this process, as the files of a package lie on the disk."""

    def install(module: str, *, text: str = "", target: str = "Adapter", platform: str = "zulip") -> None:
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[postroom.channels]\n{platform} = {module}:{target}\n")
        if text:
            (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)

    return install


WORKING = """
from postroom.gateway.platforms.base import BasePlatformAdapter, ChannelCapabilities, Platform, PlatformConfig

class Options(PlatformConfig, frozen=True, kw_only=True):
    site: str

class Adapter(BasePlatformAdapter):
    platform = Platform("zulip")
    options = Options
    capabilities = ChannelCapabilities(limit=100)
"""


def loaded(folder: Path, text: str):
    (folder / "gateway.toml").write_text(AGENT + text)
    return load_gateway(Settings(data_dir=folder), environment={"ZULIP_KEY": "key"})


def test_a_plug_in_is_a_channel_with_settings_of_its_own(installed: Installed, tmp_path: Path) -> None:
    installed("working_channel", text=WORKING)
    told = loaded(tmp_path, '[platforms.zulip]\nsite = "https://chat.test"\ntoken_env = "ZULIP_KEY"\n')
    options = told.gateway.platforms[Platform("zulip")]
    assert (options.site, options.token) == ("https://chat.test", "key")
    with pytest.raises(ConfigError, match="no setting is called 'sit'") as refused:
        loaded(tmp_path, '[platforms.zulip]\nsit = "https://chat.test"\n')
    assert refused.value.remedy == "did you mean site?"


def test_a_platform_without_its_plug_in_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no setting is called 'zulip'"):
        loaded(tmp_path, '[platforms.zulip]\nsite = "https://chat.test"\n')
    with pytest.raises(ConfigError, match="no plug-in for the platform zulip is installed") as refused:
        load_adapter_class(Platform("zulip"))
    assert "install the plug-in" in (refused.value.remedy or "")


@pytest.mark.parametrize(
    ("name", "text", "target", "why"),
    [
        ("absent_channel", "", "Adapter", "cannot be imported: No module named 'absent_channel'"),
        ("nameless_channel", "x = 1", "Adapter", "cannot be imported: .*Adapter"),
        ("other_channel", "class Adapter: pass", "Adapter", "is not a subclass of BasePlatformAdapter"),
        ("valued_channel", "Adapter = 7", "Adapter", "is not a subclass of BasePlatformAdapter"),
        (
            "wrong_channel",
            WORKING.replace('"zulip"', '"rocket"'),
            "Adapter",
            "is an adapter for another platform, rocket",
        ),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_refused_by_name(
    installed: Installed, name: str, text: str, target: str, why: str
) -> None:
    installed(name, text=text, target=target)
    with pytest.raises(
        ConfigError, match=f"the plug-in for the platform zulip is not usable: .* {why}"
    ) as refused:
        load_adapter_class(Platform("zulip"))
    assert refused.value.remedy == f"correct or upgrade the package {name}, or remove [platforms.zulip]"


def test_a_plug_in_replaces_no_platform_of_postroom(installed: Installed) -> None:
    installed("stolen_channel", text=WORKING, platform="telegram")
    assert load_adapter_class(Platform.TELEGRAM).__name__ == "TelegramAdapter"


def test_a_stored_place_of_a_plug_in_is_read_after_its_removal() -> None:
    source = SessionSource.from_dict({"platform": "zulip", "chat_id": "7"})
    assert source.platform is Platform("zulip")
    assert source.to_dict()["platform"] == "zulip"
    for name in ("", "Zulip", "zu lip", "7", "a" * 33, 7):
        with pytest.raises(ValueError, match="is not a valid Platform"):
            Platform(name)


CALLED = (
    WORKING
    + """
    async def connect(self, *, is_reconnect=False):
        raise NotImplementedError

    async def disconnect(self):
        pass

    async def send(self, chat_id, content, reply_to=None, metadata=None):
        raise NotImplementedError

    def routes(self):
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route

        async def called(request):
            return PlainTextResponse("from the adapter")

        return (Route("/zulip/{name}", called, methods=["POST"]), *self.more(Route, called))

    def more(self, Route, called):
        return ()
"""
)
STEALING = (
    CALLED
    + """
    at_root = True

    def more(self, Route, called):
        return (Route("/p", called, methods=["GET"]), Route("/p/{slug}", called, methods=["GET"]))
"""
)


@pytest.mark.parametrize(("text", "path"), [(CALLED, "/channels/zulip/x"), (STEALING, "/zulip/x")])
async def test_a_route_of_a_plug_in_answers_its_platform_and_opens_no_address_of_postroom(
    installed: Installed, tmp_path: Path, clock: ManualClock, text: str, path: str
) -> None:
    installed(f"called_channel_{len(text)}", text=text)  # a module is imported once

    def opened() -> Application:
        told = loaded(tmp_path, '[platforms.zulip]\nsite = "https://chat.test"\ntoken_env = "ZULIP_KEY"\n')
        settings = Settings(data_dir=tmp_path, archive_enabled=False)
        return Application.open(settings, clock=clock, declared=Declared(chats=told))

    application = await asyncio.to_thread(opened)
    try:
        site = Site(application, "prs_" + "s" * 43)
        transport = httpx2.ASGITransport(app=site.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765") as client:
            answer = await client.post(path)
            assert (answer.status_code, answer.text) == (200, "from the adapter")
            for ours in ("/p", "/p/harbour"):
                refused = await client.get(ours)
                assert refused.status_code in (303, 401, 403), refused.text
    finally:
        await asyncio.to_thread(application.close)


@pytest.mark.long
def test_the_example_is_installed_and_keeps_every_promise_of_a_channel(tmp_path: Path) -> None:
    where, data = tmp_path / "site", tmp_path / "data"
    wheel = wheel_of(EXAMPLE, tmp_path)
    pip = (
        ["uv", "pip", "install", "--python", sys.executable]
        if shutil.which("uv")
        else [sys.executable, "-m", "pip", "install"]
    )
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", "--target", where, wheel], check=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")},
        "PYTHONPATH": str(where),
        "PYTHONDONTWRITEBYTECODE": "1",
        "POSTROOM_DATA_DIR": str(data),
        "ZULIP_KEY": "key",
    }

    def run(*words: str, cwd: Path) -> str:
        done = subprocess.run(
            [sys.executable, *words], env=environment, cwd=cwd, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    data.mkdir()
    table = (
        '[platforms.zulip]\nsite = "https://chat.test"\nemail = "bot@chat.test"\ntoken_env = "ZULIP_KEY"\n'
    )
    (data / "gateway.toml").write_text(AGENT + table)
    assert "\n  zulip:\n    enabled: yes\n" in run(
        "-m", "postroom", "gateway", "config", "check", cwd=tmp_path
    )
    told = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", cwd=EXAMPLE)
    assert re.search(r"\b2\d passed, 1 skipped", told), told
