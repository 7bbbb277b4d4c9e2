"""Tools: their descriptions for the model, the validation of arguments, and tools made from functions."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from postroom.contracts.agent_events import EventSink, RunIdentity, ToolCallStreamDelta
from postroom.contracts.dispatch import Claim
from postroom.contracts.files import RunFiles
from postroom.contracts.messages import Json
from postroom.contracts.tools import Suspension, ToolCallResume, ToolDescriptor, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The context of a tool call, which the tool gets in addition to the arguments.

    `decision` is the decision that was made while this call was suspended, or None if it was never suspended.
    If the call must be made again, the decision is never a denial.
    """

    identity: RunIdentity
    call_id: str
    tool_name: str
    sink: EventSink
    decision: ToolCallResume | None = None
    claim: Claim | None = None
    """The claim of the run's execution, which changes by the tool must present."""
    files: RunFiles | None = None
    """Accepts files for the run's chat, or None if the chat accepts no files."""

    async def show(self, delta: str) -> None:
        """Show output to people, but not to the model, while the tool works."""
        await self.sink.emit(ToolCallStreamDelta(id=self.call_id, name=self.tool_name, delta=delta))


class Tool(Protocol):
    """A tool that the model can call."""

    @property
    def descriptor(self) -> ToolDescriptor:
        """The description of the tool for the model."""
        ...

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Execute the call; the arguments have been validated against the schema in the descriptor.

        If the tool raises an exception, the model reads it as the failure of the call. After a crash, the
        same call may be executed again, and the tool must ensure that the repetition has no second effect. At
        its time limit, a call is cancelled.
        """
        ...


class FunctionTool:
    """A tool that calls an async function with the arguments by name."""

    def __init__(
        self,
        function: Callable[..., Awaitable[Json]],
        descriptor: ToolDescriptor,
        *,
        needs_approval: bool = False,
    ) -> None:
        self._function = function
        self.descriptor = descriptor
        self._needs_approval = needs_approval
        self._takes_context = "context" in inspect.signature(function).parameters

    async def execute(self, arguments: dict[str, Json], context: ToolContext) -> ToolResult:
        """Call the function; if it needs an approval that was not given yet, ask for the approval."""
        name = self.descriptor.name
        if self._needs_approval and context.decision is None:
            question = Suspension(
                id=f"ask_{context.call_id}",
                action="approve",
                message=f"May {name} be called?",
                parameters=arguments,
            )
            return ToolResult.suspended(name, question)
        extra = {"context": context} if self._takes_context else {}
        answer = await self._function(**{**arguments, **extra})
        return answer if isinstance(answer, ToolResult) else ToolResult.success(name, answer)


def function_tool(
    parameters: dict[str, Json] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    needs_approval: bool = False,
) -> Callable[[Callable[..., Awaitable[Json]]], FunctionTool]:
    """Decorate an async function to make it a tool; `parameters` is the JSON schema of its arguments.

    By default, the tool has the name of the function, and its docstring as the description. A parameter with
    the name `context` gets the `ToolContext`. The function returns plain JSON data or a `ToolResult`. With
    `needs_approval`, a person must approve each call.
    """

    def made(function: Callable[..., Awaitable[Json]]) -> FunctionTool:
        own = getattr(function, "__name__", "tool")
        chosen = name or own
        descriptor = ToolDescriptor(
            id=chosen,
            name=chosen,
            description=inspect.getdoc(function) or "" if description is None else description,
            parameters=parameters or {"type": "object", "properties": {}},
        )
        return FunctionTool(function, descriptor, needs_approval=needs_approval)

    return made


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int,),
}


def find_violation(value: Json, schema: Json, *, where: str = "arguments") -> str | None:
    """Return how a value violates a schema, as a sentence for the model, or None if it fits.

    The function checks type, enum, const, anyOf, required, properties, additionalProperties and items. The
    tool itself must check all other keywords.
    """
    if not isinstance(schema, dict):
        return None
    type_name = schema.get("type")
    kinds = [type_name] if isinstance(type_name, str) else type_name
    if not isinstance(kinds, list) or any(_is(value, kind) for kind in kinds):
        problem_of_kind = None
    else:
        problem_of_kind = f"{where} must be of type {' or '.join(map(str, kinds))}"
    problem = problem_of_kind or _problem_of_choice(value, schema, where)
    if problem is None and isinstance(value, dict):
        problem = _problem_of_object(value, schema, where)
    if problem is None and isinstance(value, list) and "items" in schema:
        problems = (
            find_violation(item, schema["items"], where=f"{where}[{at}]") for at, item in enumerate(value)
        )
        problem = next((problem for problem in problems if problem), None)
    return problem


def _is(value: Json, kind: str) -> bool:
    if kind in ("number", "integer") and isinstance(value, bool):
        return False
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _problem_of_choice(value: Json, schema: dict[str, Any], where: str) -> str | None:
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    # Compare two values as JSON does, where true is not equal to 1.
    if isinstance(allowed, list) and not any(
        (bool(value == choice) and isinstance(value, bool) == isinstance(choice, bool)) for choice in allowed
    ):
        return f"{where} must be one of {allowed!r}"
    choices = schema.get("anyOf")
    if isinstance(choices, list) and all(find_violation(value, choice, where=where) for choice in choices):
        return f"{where} matches none of the allowed forms"
    return None


def _problem_of_object(value: dict[str, Any], schema: dict[str, Any], where: str) -> str | None:
    properties = schema.get("properties") or {}
    missing = [name for name in schema.get("required") or () if name not in value]
    if missing:
        return f"{where} must have {', '.join(missing)}"
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name not in properties and others is False:
            return f"{where} must not have {name!r}; it may have: {', '.join(properties) or 'nothing'}"
        problem = find_violation(item, properties.get(name, others), where=f"{where}.{name}")
        if problem:
            return problem
    return None
