"""Runners: refused by name with the remedy, and the same again from their plain form."""

import json
from datetime import timedelta
from typing import Any

import pytest

from postroom.contracts.errors import InvalidRunner
from postroom.contracts.runners import (
    AnyRunner,
    HttpRunner,
    ModelRunner,
    PromptWay,
    Recipe,
    Runner,
    RunnerKind,
    read_runner,
    runner_of,
    written_runner,
)
from table_rows import each_row

MODEL: dict[str, Any] = {"kind": "model", "base_url": "http://127.0.0.1:11434/v1", "model": "qwen3"}
HTTP: dict[str, Any] = {"kind": "http", "url": "https://agents.example/run", "secret_env": "BO_SECRET"}
PROGRAM: dict[str, Any] = {"argv": ["agent", "-q"], "cwd": "/work"}


@each_row(
    "runner",
    [
        ModelRunner(
            base_url="https://models.example/v1",
            model="m",
            api_key_env="KEY",
            instructions="Be kind.\n",
            max_steps=3,
            timeout=timedelta(milliseconds=1500),
            tools=("whois",),
        ),
        HttpRunner(url="http://10.0.0.5/run", secret_env="S", timeout=timedelta(seconds=5), allow_plain=True),
        HttpRunner(url="https://a/run", secret_file="/etc/bo", callback_base="https://post.example"),
        Runner(
            kind=RunnerKind.COMMAND,
            recipe=Recipe.CODEX,
            argv=("codex", "exec", "{prompt_file}"),
            prompt=PromptWay.FILE,
            cwd="/größer",
            env={"A": "ü\n=", "API_KEY": "s3cr3t"},
            pass_env=("TOKEN",),
            timeout=timedelta(milliseconds=1500),
            idle_timeout=timedelta(seconds=2),
            max_output_bytes=1,
            resume=True,
        ),
        Runner(argv=("x",), cwd="/work", kind=RunnerKind.ACP),
    ],
)
def test_every_kind_is_kept_and_read_back_as_it_was(runner: AnyRunner) -> None:
    assert read_runner(written_runner(runner)) == runner
    assert runner_of(json.loads(json.dumps(runner.to_dict()))) == runner
    assert "s3cr3t" not in repr(runner)


def test_a_runner_has_defaults_and_a_plain_form() -> None:
    runner = runner_of(PROGRAM)
    assert runner == Runner(argv=("agent", "-q"), cwd="/work")
    assert runner.to_dict() == {
        **{"kind": "command", "recipe": "shell", "argv": ["agent", "-q"], "prompt": "stdin", "cwd": "/work"},
        **{"env": {}, "pass_env": [], "timeout": 1800.0, "idle_timeout": None, "max_output_bytes": 1 << 20},
        **{"resume": False, "session_per": "thread"},
    }


def test_its_environment_is_its_own() -> None:
    given = {"A": "1"}
    runner = Runner(argv=("x",), cwd="/", env=given)
    given["A"] = "2"
    runner.to_dict()["env"]["A"] = "3"
    assert runner.env == {"A": "1"}


def test_a_recipe_that_knows_its_command_does_without() -> None:
    assert all(Runner(recipe=one, cwd="/").argv == () for one in Recipe if one is not Recipe.SHELL)


def test_only_a_program_works_in_its_project() -> None:
    assert runner_of({"argv": ["x"]}, home="/work") == Runner(argv=("x",), cwd="/work")
    assert runner_of(MODEL, home="/work") == runner_of(MODEL)


OF_PROGRAMS: list[tuple[dict[str, Any], str]] = [
    ({"recipe": "emacs"}, "recipe is invalid: 'emacs' is unknown"),
    *(({"recipe": None}, "recipe"), ({"prompt": "telepathy"}, "prompt")),
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
    ({"pass_env": ["A=B"]}, "not a valid environment variable name"),
    *(({"pass_env": "HOME"}, "must be a list of strings"), ({"timeout": 0}, "timeout")),
    *(({"timeout": -1}, "timeout"), ({"timeout": None}, "timeout")),
    ({"timeout": "1"}, "must be a number of seconds"),
    ({"timeout": True}, "must be a number of seconds"),
    ({"timeout": float("nan")}, "must be a number of seconds"),
    ({"timeout": 1e300}, "at most 7 days"),
    *(({"timeout": 8 * 24 * 3600}, "at most 7 days"), ({"idle_timeout": 0}, "idle_timeout")),
    ({"max_output_bytes": 0}, "max_output_bytes"),
    ({"max_output_bytes": (16 << 20) + 1}, "max_output_bytes"),
    *(({"max_output_bytes": True}, "max_output_bytes"), ({"max_output_bytes": 1.5}, "max_output_bytes")),
    ({"colour": "red"}, "colour is invalid: unknown field"),
]


@each_row(
    "plain, words",
    [
        ({"kind": "telepathy"}, "kind is invalid: 'telepathy' is unknown"),
        ({"kind": None}, "kind"),
        *(([], "it must be a table of fields"), (None, "table"), ("x", "table"), ({"argv": ["x"]}, "cwd")),
        ({"kind": "model"}, "base_url is invalid: the URL of the endpoint is missing"),
        ({"kind": "model", "base_url": "http://a/v1"}, "model is invalid: the name of the model is missing"),
        (MODEL | {"argv": ["x"]}, "argv is invalid: unknown field"),
        (MODEL | {"base_url": "ftp://a"}, "base_url is invalid"),
        (MODEL | {"base_url": "http://a/v1?key=1"}, "base_url is invalid: the URL must not have a query"),
        (MODEL | {"base_url": "http://[::1"}, "base_url is invalid"),
        (MODEL | {"base_url": 1}, "base_url is invalid"),
        (MODEL | {"model": " "}, "model is invalid"),
        (MODEL | {"model": 5}, "model is invalid"),
        (MODEL | {"api_key_env": "A=B"}, "api_key_env is invalid"),
        (MODEL | {"api_key_env": 5}, "api_key_env is invalid"),
        (MODEL | {"instructions": None}, "instructions is invalid"),
        (MODEL | {"instructions": "x" * 100_001}, "exceed 100000"),
        (MODEL | {"max_steps": 0}, "max_steps is invalid: it must be an integer from 1 to 1000"),
        (MODEL | {"max_steps": True}, "max_steps is invalid"),
        (MODEL | {"timeout": "30m"}, "timeout is invalid"),
        (MODEL | {"timeout": 8 * 86400}, "timeout is invalid"),
        (MODEL | {"tools": "whois"}, "tools is invalid: it must be a list of strings"),
        (MODEL | {"tools": ["Whois!"]}, "tools is invalid"),
        (MODEL | {"tools": ["whois", "whois"]}, "listed twice"),
        (MODEL | {"cwd": "/work"}, "cwd is invalid"),
        ({"kind": "http"}, "url is invalid: the URL of the other server is missing"),
        ({"kind": "http", "url": "https://a/"}, "secret_env is invalid"),
        (HTTP | {"url": "http://agents.example/run"}, "plain http is allowed only to this machine"),
        (HTTP | {"url": "http://127.0.0.1.example/run"}, "plain http is allowed only to this machine"),
        (HTTP | {"url": "https://a/#b"}, "url is invalid"),
        (HTTP | {"url": "https://a b/"}, "url is invalid"),
        (HTTP | {"url": "https:///run"}, "url is invalid"),
        (HTTP | {"secret_env": ""}, "secret_env is invalid"),
        (HTTP | {"secret_env": 5}, "secret_env is invalid"),
        (HTTP | {"secret_file": "/etc/bo"}, "secret_env is invalid: secret_env and secret_file are both set"),
        (
            HTTP | {"secret_env": None, "secret_file": "bo"},
            "secret_file is invalid: secret_file must be an absolute path",
        ),
        (HTTP | {"secret_env": None, "secret_file": 5}, "secret_file is invalid"),
        (HTTP | {"allow_plain": "yes"}, "allow_plain is invalid"),
        (HTTP | {"timeout": 0}, "timeout is invalid"),
        (HTTP | {"callback_base": "post.example"}, "callback_base is invalid"),
        (HTTP | {"callback_base": "https://post.example/?a"}, "callback_base is invalid"),
        (HTTP | {"callback_base": "http://post.example"}, "plain http is allowed only to this machine"),
        *((PROGRAM | changes, words) for changes, words in OF_PROGRAMS),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(plain: Any, words: str) -> None:
    with pytest.raises(InvalidRunner) as caught:
        runner_of(plain)
    assert words in caught.value.message


@each_row(
    "changes, address, base",
    [
        ({}, "http://127.0.0.1:8765", None),
        ({}, "http://0.0.0.0:8765", None),
        ({}, "http://[::1]:8765", None),
        ({}, "http://10.0.0.5:8765", "http://10.0.0.5:8765"),
        ({"url": "http://localhost:9/run"}, "http://127.0.0.1:8765", "http://127.0.0.1:8765"),
        ({"callback_base": "https://post.example/"}, "http://127.0.0.1:8765", "https://post.example"),
    ],
)
def test_another_machine_is_given_no_address_that_leads_to_itself(
    changes: dict[str, Any], address: str, base: str | None
) -> None:
    runner = runner_of(HTTP | changes)
    assert isinstance(runner, HttpRunner)
    assert runner.callback(address) == base


@each_row(
    "plain",
    [
        MODEL | {"base_url": "https://me:hunter2@models.example/v1"},
        MODEL | {"base_url": "https://models.example/v1?key=hunter2"},
        HTTP | {"url": "https://me:hunter2@agents.example/"},
        HTTP | {"url": "http://agents.example/?token=hunter2"},
        PROGRAM | {"env": {"API_KEY": "hunter2\0"}},
    ],
)
def test_a_refusal_shows_no_secret(plain: dict[str, Any]) -> None:
    with pytest.raises(InvalidRunner) as caught:
        runner_of(plain)
    assert "hunter2" not in json.dumps(caught.value.as_dict())
