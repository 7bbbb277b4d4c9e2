"""The answer of a run is stored once, in the row of the run.

The message, the events and the dispatch with the same answer are stored without its text. Their column
`answer_of` names the run, and each read takes the text from the row of that run:

    runs.body holds the text ◀─ answer_of ─ message, events, dispatch

Rows refer only to a run that has ended, because its answer never changes. Rows of older releases hold the
text themselves.
"""

from collections.abc import Mapping
from typing import NamedTuple

from postroom.contracts.messages import ContentBlock, Json, Message, Role
from postroom.contracts.records import replace
from postroom.contracts.runs import RunRecord, RunStatus


class Answer(NamedTuple):
    """The answer of a run that has ended."""

    run_id: str
    text: str

    @classmethod
    def of(cls, run: RunRecord | None) -> "Answer | None":
        """Return the answer that rows can refer to; None if the run has not ended or has no answer."""
        if run is None or run.status is not RunStatus.DONE or not run.final_output:
            return None
        return cls(run.run_id, run.final_output)

    def is_told_by(self, message: Message) -> bool:
        """Return whether a message consists of this answer only."""
        return message.role is Role.ASSISTANT and message.content == (ContentBlock(text=self.text),)

    def taken_out(self, payload: Mapping[str, Json]) -> dict[str, Json] | None:
        """Return the payload of an event without this answer; None if the payload does not contain it."""
        if payload.get("text") == self.text:
            return {**payload, "text": None}
        result = payload.get("result")
        if isinstance(result, Mapping) and result.get("response") == self.text:
            return {**payload, "result": {**result, "response": None}}
        return None


def message_with(message: Message, text: str) -> Message:
    """Return a message with the answer that was omitted in its row."""
    return replace(message, content=(ContentBlock(text=text),))


def payload_with(payload: Mapping[str, Json], text: str) -> dict[str, Json]:
    """Return a payload of `Answer.taken_out` with the answer."""
    if "text" in payload:
        return {**payload, "text": text}
    return {**payload, "result": {**payload["result"], "response": text}}
