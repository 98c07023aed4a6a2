"""Errors as HTTP answers: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.core.errors import OctavoError

BAD_REQUEST, UNAUTHORIZED, NOT_FOUND, TOO_LARGE, INTERNAL, UNAVAILABLE, TIMEOUT = (
    400,
    401,
    404,
    413,
    500,
    503,
    504,
)
TYPES = {
    BAD_REQUEST: "BadRequestError",
    UNAUTHORIZED: "AuthenticationError",
    NOT_FOUND: "NotFoundError",
    405: "MethodNotAllowedError",
    TOO_LARGE: "RequestTooLargeError",
    INTERNAL: "InternalServerError",
    UNAVAILABLE: "ServiceUnavailableError",
    TIMEOUT: "TimeoutError",
}


class ApiError(Exception):
    """An answer that is no success. ``param``: field or flag at fault; ``retry_after_s``: the wait to advise."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "BadRequestError")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}

    def response(self) -> Response:
        headers = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        if self.status == UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return json_response(self.body, status=self.status, headers=headers)


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(BAD_REQUEST, message, param=param)


def from_mistake(error: OctavoError) -> ApiError:
    """The user's mistake, found by any layer."""
    return bad_request(error.message, error.param)


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


async def on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def on_mistake(request: Request, error: Exception) -> Response:
    assert isinstance(error, OctavoError)
    return from_mistake(error).response()


async def on_http_error(request: Request, error: Exception) -> Response:
    """Unknown routes and wrong methods, as the router reports them."""
    status = getattr(error, "status_code", INTERNAL)
    route = f"{request.method} {request.url.path}"
    message = {
        NOT_FOUND: f"there is no {route}",
        405: f"{route} is not allowed; use another method",
    }.get(status, str(getattr(error, "detail", error)))
    return ApiError(status, message).response()


async def on_bug(request: Request, error: Exception) -> Response:
    """Ours; the log has the traceback, the client learns no internals."""
    return ApiError(
        INTERNAL, f"internal error ({type(error).__name__}); the server's log says more"
    ).response()
