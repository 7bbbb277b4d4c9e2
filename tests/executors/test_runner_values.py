"""Valid and refused runners: refused by name with the remedy, and equal after a round trip."""

import json
from datetime import timedelta
from typing import Any

import pytest

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.runners import PromptWay, Recipe, Runner, RunnerKind

GOOD: dict[str, Any] = {"argv": ["agent", "-q"], "cwd": "/work"}


def test_a_runner_has_defaults_and_a_plain_form() -> None:
    runner = Runner.from_dict(GOOD)
    assert runner == Runner(argv=("agent", "-q"), cwd="/work")
    assert runner.to_dict() == {
        **{"kind": "command", "recipe": "shell", "argv": ["agent", "-q"], "prompt": "stdin", "cwd": "/work"},
        **{"env": {}, "pass_env": [], "timeout": 1800.0, "idle_timeout": None, "max_output_bytes": 1 << 20},
        **{"resume": False, "session_per": "thread"},
    }


def test_every_field_comes_back_from_its_plain_form() -> None:
    runner = Runner(
        kind=RunnerKind.COMMAND,
        recipe=Recipe.CODEX,
        argv=("codex", "exec", "{prompt_file}"),
        prompt=PromptWay.FILE,
        cwd="/größer",
        env={"A": "ü\n=", "API_KEY": "secret"},
        pass_env=("TOKEN",),
        timeout=timedelta(milliseconds=1500),
        idle_timeout=timedelta(seconds=2),
        max_output_bytes=1,
        resume=True,
    )
    assert Runner.from_dict(json.loads(json.dumps(runner.to_dict()))) == runner
    assert "secret" not in repr(runner)


def test_its_environment_is_its_own() -> None:
    given = {"A": "1"}
    runner = Runner(argv=("x",), cwd="/", env=given)
    given["A"] = "2"
    runner.to_dict()["env"]["A"] = "3"
    assert runner.env == {"A": "1"}


def test_a_recipe_that_knows_its_command_does_without() -> None:
    assert all(Runner(recipe=one, cwd="/").argv == () for one in Recipe if one is not Recipe.SHELL)


def test_what_cannot_be_run_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for changes, words in [
        ({"recipe": "emacs"}, "recipe is invalid: 'emacs' is unknown"),
        *(({"recipe": None}, "recipe"), ({"kind": "http"}, "kind"), ({"prompt": "telepathy"}, "prompt")),
        *(({"prompt": ["stdin"]}, "prompt"), ({"argv": []}, "it is missing")),
        *(({"argv": [""]}, "but is empty"), ({"argv": [" ", "x"]}, "but is empty")),
        ({"argv": "agent"}, "must be a list of strings"),
        *(({"argv": ["agent", 1]}, "must be a list of strings"), ({"argv": ["agent", "a\0b"]}, "zero byte")),
        ({"argv": ["agent", "\ud800"]}, "unpaired surrogate"),
        ({"argv": ["sh", "-c", "say {prompt}"], "prompt": "argument"}, "is part of a longer argument"),
        ({"argv": ["say", "{prompt}"]}, "requires the prompt 'argument'"),
        ({"argv": ["say", "{prompt_file}"]}, "require each other"),
        *(({"prompt": "file"}, "require each other"), ({"resume": True}, "does not support sessions")),
        ({"resume": True, "recipe": "cline"}, "does not support sessions"),
        ({"kind": "acp", "recipe": "cline", "argv": []}, "no command that supports ACP"),
        ({"resume": "yes", "recipe": "claude"}, "must be true or false"),
        *(({"cwd": "work"}, "must be an absolute path"), ({"cwd": ""}, "must be an absolute path")),
        *(({"cwd": "/a\0"}, "must be an absolute path"), ({"cwd": None}, "must be an absolute path")),
        *(({"env": {"A": 1}}, "env"), ({"env": {"A": "x\0"}}, "env")),
        ({"env": {"": "x"}}, "not a valid environment variable name"),
        ({"env": {"A=B": "x"}}, "not a valid environment variable name"),
        *(({"env": {"POSTROOM_RUN": "x"}}, "the server sets"), ({"env": ["A"]}, "must be a table")),
        ({"pass_env": ["POSTROOM_DISPATCH"]}, "the server sets"),
        ({"pass_env": ["POSTROOM_DISPATCH"]}, "the server sets"),
        ({"pass_env": ["A=B"]}, "not a valid environment variable name"),
        *(({"pass_env": "HOME"}, "must be a list of strings"), ({"timeout": 0}, "timeout")),
        *(({"timeout": -1}, "timeout"), ({"timeout": None}, "timeout")),
        ({"timeout": "1"}, "must be a number of seconds"),
        ({"timeout": True}, "must be a number of seconds"),
        ({"timeout": float("nan")}, "must be a number of seconds"),
        ({"timeout": 1e300}, "must be a number of seconds"),
        *(({"timeout": 8 * 24 * 3600}, "at most 7 days"), ({"idle_timeout": 0}, "idle_timeout")),
        ({"max_output_bytes": 0}, "max_output_bytes"),
        ({"max_output_bytes": (16 << 20) + 1}, "max_output_bytes"),
        *(({"max_output_bytes": True}, "max_output_bytes"), ({"max_output_bytes": 1.5}, "max_output_bytes")),
        ({"colour": "red"}, "colour is invalid: unknown field"),
    ]:
        with subtests.test(changes=changes, words=words), pytest.raises(InvalidRunner, match=words):
            Runner.from_dict({**GOOD, **changes})


def test_what_is_no_table_or_has_no_folder_is_refused(subtests: pytest.Subtests) -> None:
    for plain in [None, [], "x", {"argv": ["x"]}]:
        with subtests.test(plain=plain), pytest.raises(InvalidRunner):
            Runner.from_dict(plain)


def test_a_refusal_never_shows_the_content_of_a_variable() -> None:
    with pytest.raises(InvalidRunner) as refused:
        Runner.from_dict({**GOOD, "env": {"API_KEY": "the-secret\0"}})
    assert "the-secret" not in str(refused.value.as_dict())
