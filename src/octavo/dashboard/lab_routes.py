"""The lab and the walk over HTTP, for ``octavo lab`` and, mounted in the same way, for ``octavo serve``.

    GET    /lab/settings                       controls with bounds and defaults, models
    POST   /lab/answers                        {"settings", "page"}: a JSON line a policy, earlier lines of fewer steps
    POST   /lab/sessions                       {"settings"} or {"recording"}: a run to watch, with its first frames
    GET    /lab/sessions/{session}/frames      ?steps=N&whole=BOOL: so many steps on, and the frames after them
    DELETE /lab/sessions/{session}
    POST   /lab/recordings                     a recording as the body: its name, to open it by
    GET    /walk/stops

A mistake is answered 400 with field and bound, too much at once 429; nothing here touches the engine.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from octavo.core.errors import OctavoError
from octavo.dashboard.lab_answers import Answers
from octavo.dashboard.lab_errors import LabError
from octavo.dashboard.lab_processes import BEHIND_AN_ENGINE, Processes
from octavo.dashboard.lab_session import STEPS_MAX, check_recording, sent_recording
from octavo.dashboard.lab_settings import described, settings_of
from octavo.dashboard.walk import stops

BODY_BYTES_MAX = 1 << 16
"""Of a question; recordings may be longer."""
RECORDING_BYTES_MAX = 64 << 20
RECORDINGS_MAX = 4
"""Uploaded recordings that are kept; the oldest goes first."""
GIVEN = "given"
"""Name of the recording that the command line gave."""

Handler = Callable[[Request], Awaitable[Response]]


class Lab:
    """State behind the routes. ``close`` it before the event loop ends."""

    def __init__(self, recording: Path | None = None, niceness: int = BEHIND_AN_ENGINE) -> None:
        """``recording``: one that may be opened by the name ``given``. Raises ConfigError if it is none.
        ``niceness``: of the processes that simulate."""
        if recording is not None:
            check_recording(recording, "--recording")
        self.processes = Processes(niceness)
        self._answers = Answers(self.processes)
        self._recording = recording
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._uploaded: OrderedDict[str, Path] = OrderedDict()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/lab/settings", guarded(self.settings), methods=["GET"]),
            Route("/lab/answers", guarded(self.answers), methods=["POST"]),
            Route("/lab/sessions", guarded(self.open), methods=["POST"]),
            Route("/lab/sessions/{session}", guarded(self.close_session), methods=["DELETE"]),
            Route("/lab/sessions/{session}/frames", guarded(self.frames), methods=["GET"]),
            Route("/lab/recordings", guarded(self.upload), methods=["POST"]),
            Route("/walk/stops", guarded(self.walk), methods=["GET"]),
        ]

    async def close(self) -> None:
        await self.processes.close()
        if self._folder is not None:
            self._folder.cleanup()

    # ------------------------------------------------------------------ handlers

    async def settings(self, http: Request) -> Response:
        return answer({**described(), "recording": None if self._recording is None else GIVEN})

    async def answers(self, http: Request) -> Response:
        body = await read(http)
        settings = settings_of(mapping(body, "settings"))
        lines = self._answers.ask(settings, str(body.get("page", ""))[:64])

        async def encoded() -> AsyncIterator[bytes]:
            async with aclosing(lines):
                try:
                    async for line in lines:
                        yield json.dumps(line).encode() + b"\n"
                except LabError as error:  # the status has been sent, so the line tells
                    yield json.dumps(error.body).encode() + b"\n"

        return StreamingResponse(encoded(), media_type="application/x-ndjson")

    async def open(self, http: Request) -> Response:
        body = await read(http)
        message: dict[str, Any] = {"do": "open", "session": secrets.token_hex(8)}
        if body.get("recording") is not None:
            message["recording"] = str(self._path(str(body["recording"])))
        else:
            message["settings"] = settings_of(mapping(body, "settings")).as_dict()
        found = await self.processes.watching.one(message)
        return answer({"session": message["session"], **found})

    async def frames(self, http: Request) -> Response:
        message = {
            "do": "advance",
            "session": http.path_params["session"],
            "steps": whole_number(http, "steps", 1, 0, STEPS_MAX),
            "whole": bool(whole_number(http, "whole", 0, 0, 1)),
        }
        return answer(await self.processes.watching.one(message))

    async def close_session(self, http: Request) -> Response:
        return answer(
            await self.processes.watching.one({"do": "close", "session": http.path_params["session"]})
        )

    async def upload(self, http: Request) -> Response:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="octavo-lab-")
        name = secrets.token_hex(8)
        path = Path(self._folder.name) / name
        try:
            with path.open("wb") as file:
                async for part in http.stream():
                    if file.tell() + len(part) > RECORDING_BYTES_MAX:
                        raise LabError(
                            413,
                            f"the recording has more than {RECORDING_BYTES_MAX:,} bytes, the most that can be sent;"
                            " open it with octavo lab --recording",
                            param="recording",
                        )
                    file.write(part)
            with sent_recording(path):
                check_recording(path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._uploaded[name] = path
        while len(self._uploaded) > RECORDINGS_MAX:
            self._uploaded.popitem(last=False)[1].unlink(missing_ok=True)
        return answer({"recording": name})

    def _path(self, name: str) -> Path:
        path = self._recording if name == GIVEN else self._uploaded.get(name)
        if path is None:
            raise LabError(404, "there is no such recording here any more; send it again", param="recording")
        return path

    async def walk(self, http: Request) -> Response:
        return answer(stops())


def guarded(handler: Handler) -> Handler:
    """The handler, with mistakes as answers: the application around it need not know them."""

    async def wrapped(http: Request) -> Response:
        try:
            return await handler(http)
        except LabError as error:
            return answer(error.body, error.status)
        except OctavoError as error:
            mistake = LabError(400, error.message, param=error.param)
            return answer(mistake.body, mistake.status)
        except ClientDisconnect:
            return Response(status_code=499)

    return wrapped


def answer(value: Any, status: int = 200) -> Response:
    data = json.dumps(value, separators=(",", ":"))
    return Response(data, status, {"cache-control": "no-store"}, media_type="application/json")


async def read(http: Request) -> dict[str, Any]:
    """The body as a JSON object. Raises LabError."""
    data = bytearray()
    async for part in http.stream():
        data += part
        if len(data) > BODY_BYTES_MAX:
            raise LabError(
                413, f"the body has more than {BODY_BYTES_MAX:,} bytes, the most that a question may have"
            )
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise LabError(400, f"the body is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise LabError(400, "the body is not a JSON object")
    return value


def mapping(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise LabError(400, f"{name} is not a JSON object", param=name)
    return value


def whole_number(http: Request, name: str, default: int, least: int, most: int) -> int:
    """A number from the query. Raises LabError."""
    text = http.query_params.get(name, str(default))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    if number is None or not least <= number <= most:
        raise LabError(
            400, f"{name} is {text[:100]!r}; it must be a whole number from {least} to {most}", param=name
        )
    return number
