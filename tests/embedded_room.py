"""What tests of the library share: how they open it, and a run that answers at once."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from postroom.dispatch.config import MailboxConfig
from postroom.embedded.mailbox import Mailbox
from postroom.embedded.running import Run

Open = Callable[..., AbstractAsyncContextManager[Mailbox]]
SOON = MailboxConfig(default_retry_delay_ms=0, drain_grace=timedelta(seconds=5))


async def echo(run: Run) -> str:
    """Say what was said."""
    return f"you said {run.text}"
