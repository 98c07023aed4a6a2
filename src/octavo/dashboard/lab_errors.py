"""``LabError``: an answer of the lab that is no success, in the form that the server's own errors have."""

from __future__ import annotations

from typing import Any

TYPES = {400: "BadRequestError", 404: "NotFoundError", 413: "RequestTooLargeError", 429: "RateLimitError"}


class LabError(Exception):
    """``status``: HTTP's. ``param``: the field at fault."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "InternalServerError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}
