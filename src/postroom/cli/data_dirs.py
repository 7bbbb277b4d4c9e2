"""Groups whose commands all take `--data-dir`: written once, and given to whoever looks for the server."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer
from typing_extensions import override

from postroom.cli.client import looking_in
from postroom.cli.options import DataDir

F = TypeVar("F", bound=Callable[..., Any])


class DataDirCommands(typer.Typer):
    """The commands of an operator, who may have several servers; each of them takes `--data-dir`."""

    @override
    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """Register a command with that option; the function itself does without."""
        register = super().command(name, **options)

        def registered(function: F) -> F:
            register(_with_data_dir(function))
            return function

        return registered


def _with_data_dir(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(*, data_dir: Path | None = None, **given: Any) -> Any:
        with looking_in(data_dir):
            return function(**given)

    told = inspect.signature(function)
    own = inspect.Parameter("data_dir", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=DataDir)
    every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in told.parameters.values()]
    place = next((at for at, one in enumerate(every) if one.name == "as_json"), len(every))
    every.insert(place, own)
    command.__signature__ = told.replace(parameters=every)  # type: ignore[attr-defined]  # what typer reads
    command.__annotations__ = {**function.__annotations__, "data_dir": DataDir}
    return command
