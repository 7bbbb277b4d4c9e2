"""Agents in the configuration file: their values, and the words that refuse a wrong one."""

from datetime import timedelta
from pathlib import Path

import pytest

from postroom.app.agents_config import load_agents
from postroom.app.config import load_settings
from postroom.contracts.errors import ConfigError
from postroom.contracts.runners import Recipe
from table_rows import each_row

GOOD = """
port = 8999

[[agents]]
name = "Ada"
project = "/projects/shop"
recipe = "claude"
resume = true
timeout = "45m"
task = "mends things"

[[agents]]
name = "Bo"
project = "yard"
argv = ["python3", "bo.py"]
idle_timeout = 90
env = { COLOUR = "red" }
"""


def environment(tmp_path: Path, text: str) -> dict[str, str]:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return {"POSTROOM_CONFIG": str(file), "HOME": str(tmp_path)}


def test_agents_are_read_with_their_projects_and_runners(tmp_path: Path) -> None:
    given = environment(tmp_path, GOOD)
    ada, bo = load_agents(given)
    assert (ada.name, ada.project, ada.task) == ("Ada", "/projects/shop", "mends things")
    assert (ada.runner.recipe, ada.runner.resume, ada.runner.cwd) == (Recipe.CLAUDE, True, "/projects/shop")
    assert ada.runner.timeout == timedelta(minutes=45)
    assert (bo.project, bo.runner.cwd) == (str(tmp_path / "yard"), str(tmp_path / "yard"))
    assert (bo.runner.argv, bo.runner.idle_timeout) == (("python3", "bo.py"), timedelta(seconds=90))
    assert load_settings(environment=given).port == 8999


def test_without_a_file_or_without_agents_there_are_none(tmp_path: Path) -> None:
    assert load_agents({"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}) == ()
    assert load_agents(environment(tmp_path, "port = 1\n")) == ()


@each_row(
    "text, words",
    [
        ("agents = 3", "not a list of tables"),
        ("[[agents]]\nproject = '/a'", "number 1: name is missing"),
        ("[[agents]]\nname = 5\nproject = '/a'", "number 1: name is '5'"),
        ("[[agents]]\nname = ' '\nproject = '/a'", "number 1: name is ' '"),
        ('[[agents]]\nname = "A\\u0000"\nproject = "/a"', "number 1: name contains control characters"),
        ('[[agents]]\nname = "Ada"\nproject = "/a\\u0000"', "Ada: project contains control characters"),
        ("[[agents]]\nname = 'A da'\nproject = '/a'", "'A da' is not a valid name for an agent"),
        ("[[agents]]\nname = 'Ada'\nproject = 7", "Ada: project is '7'"),
        ("[[agents]]\nname = 'Ada'", "Ada: project is missing"),
        ("[[agents]]\nname = 'Ada'\nproject = '/a'", "Ada: the runner's argv is invalid"),
        ("[[agents]]\nname = 'Ada'\nproject = '/a'\nargv = ['x']\nrecepie = 'y'", "unknown field"),
        ("[[agents]]\nname = 'Ada'\nproject = '/a'\nargv = ['x']\ntimeout = '5'", "duration"),
        ("[[agents]]\nname = 'Ada'\nproject = '/a'\nargv = ['x']\ntimeout = true", "time"),
        *(
            (f"[[agents]]\nname = 'Ada'\nproject = '/a'\nargv = ['x']\ntimeout = {long}", "at most 7 days")
            for long in ("'5000d'", "1e300", "inf", "9" * 400)
        ),
        ("[[agents]]\nname = 'Ada'\nproject = '/a'\nargv = ['x']\ntimeout = nan", "a number of seconds"),
        ("[[agents]]\nname = 'Ada'\nproject = '/a'\nargv = ['x']\ntimeout = '9999999999h'", "at most 36500d"),
        ("[[agents]]\nname = 'Ada'\nproject = '/a'\nargv = ['x']\ntask = 1", "not text"),
        (2 * "[[agents]]\nname = 'Ada'\nproject = '/a'\nargv = ['x']\n", "declared twice"),
    ],
)
def test_a_wrong_agent_is_refused_and_named(tmp_path: Path, text: str, words: str) -> None:
    given = environment(tmp_path, text)
    with pytest.raises(ConfigError, match=r"config\.toml") as caught:
        load_agents(given)
    assert words in caught.value.message
    assert caught.value.remedy
