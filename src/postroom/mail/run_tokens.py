"""Tokens of runs: each opens the server for one run of one agent, while the program of that run is at work.

They are kept in memory alone: what a server that was killed has given out opens nothing when it runs again.
"""

from postroom.contracts.errors import WrongToken
from postroom.contracts.tokens import SCOPES, Grant
from postroom.mail.context import token_hash

_SCOPES = frozenset(SCOPES) - {"admin"}


class RunTokens:
    """The tokens of the runs that are at work."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def issue(self, token: str, *, agent_id: int, agent: str, run_id: str) -> None:
        """Let a token act as an agent, and as nobody else, for one of its runs."""
        hashed = token_hash(token)
        self._grants[hashed] = Grant(
            token_id=hashed, name=f"run of {agent}", scopes=_SCOPES, agent_id=agent_id, run_id=run_id
        )

    def revoke(self, token: str) -> None:
        """End a token: from now on it opens nothing."""
        self._grants.pop(token_hash(token), None)

    def recognise(self, token: str) -> Grant:
        """Return what a token lets its holder do.

        Raises:
            WrongToken: its run has ended, or it was none.
        """
        grant = self._grants.get(token_hash(token))
        if grant is None:
            raise WrongToken(
                "the run of this token has ended",
                remedy="use the token of a current run: a run's token ends with the run",
            )
        return grant

    def holds(self, grant: Grant) -> bool:
        """Return whether the run of a grant is still at work."""
        return grant.token_id in self._grants
