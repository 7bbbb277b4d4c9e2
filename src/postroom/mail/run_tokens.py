"""Tokens of runs: each gives one run of one agent access to the server while its program is active.

They are kept in memory only: the tokens of a killed server are invalid when it runs again.
"""

from postroom.contracts.errors import WrongToken
from postroom.contracts.tokens import SCOPES, Grant
from postroom.mail.context import token_hash

_SCOPES = frozenset(SCOPES) - {"admin"}


class RunTokens:
    """The tokens of active runs."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def issue(self, token: str, *, agent_id: int, agent: str, run_id: str) -> None:
        """Allow a token to act as an agent, and only as this agent, for one of its runs."""
        hashed = token_hash(token)
        self._grants[hashed] = Grant(
            token_id=hashed, name=f"run of {agent}", scopes=_SCOPES, agent_id=agent_id, run_id=run_id
        )

    def revoke(self, token: str) -> None:
        """Invalidate a token."""
        self._grants.pop(token_hash(token), None)

    def recognise(self, token: str) -> Grant:
        """Return the rights of a token.

        Raises:
            WrongToken: Its run has ended, or the token is unknown.
        """
        grant = self._grants.get(token_hash(token))
        if grant is None:
            raise WrongToken(
                "the run of this token has ended",
                remedy="use the token of a current run: a run's token ends with the run",
            )
        return grant

    def holds(self, grant: Grant) -> bool:
        """Return whether the run of a grant is still active."""
        return grant.token_id in self._grants
