"""The answer to a refused request."""


class Refused(Exception):
    """A request that gets nothing but a refusal. The text is for who sent it and quotes no secret."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        """The field that is wrong."""
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
