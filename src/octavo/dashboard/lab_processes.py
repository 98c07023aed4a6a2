"""``Processes``: the lab's workers, seen from the server. The event loop sends and receives; it never computes.

Simulations run in processes of their own at low priority, because a thread would share the interpreter with the engine.
None starts before the lab is first asked something.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from octavo.dashboard.lab_errors import LabError

ANSWERING = 3
"""Workers for answers: one a policy, however few the cores. With fewer the third policy's first answer, which comes
after a tenth of a second, would wait for another one's whole run. Behind an engine there is one, so that the lab never
takes more than a core."""
BEHIND_AN_ENGINE = 19
"""Niceness beside a server that serves: the lab gets what the engine leaves."""
WAITING_MAX = 48
"""Answers that wait for a worker; beyond it the lab says that it is busy."""


class WorkerProcess:
    """One process, started with the first message and again after it has died."""

    def __init__(self, niceness: int) -> None:
        self._niceness = niceness
        self._process: asyncio.subprocess.Process | None = None
        self._answers: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def ask(self, message: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """What the worker answers: ``{"part": ...}`` any number of times, then ``{"done": ...}``. Raises LabError.

        When the caller stops listening the job is cancelled, and the worker is free once this generator is closed.
        """
        await self._start()
        number = next(self._numbers)
        answers = self._answers[number] = asyncio.Queue()
        ended = False
        try:
            self._send({"id": number, **message})
            while not ended:
                answer = await answers.get()
                ended = "part" not in answer
                if "error" in answer:
                    error = answer["error"]
                    raise LabError(error["status"], error["message"], param=error["param"])
                if ended and answer["done"] is None:  # nobody here cancelled it: the worker's input has ended
                    raise LabError(503, "the lab is ending; ask again once it is back")
                yield answer
        finally:
            if not ended:
                self._send({"cancel": number})
                while "part" in await asyncio.shield(answers.get()):
                    pass
            del self._answers[number]

    async def one(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to a message that has one."""
        async for answer in self.ask(message):
            if "done" in answer:
                found: dict[str, Any] = answer["done"]
                return found
        raise AssertionError("a worker's last answer is done or an error")

    async def _start(self) -> None:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            # One thread each: these are many small arrays, and the cores belong to the engine.
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "octavo.dashboard.lab_worker",
                str(self._niceness),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
                start_new_session=True,  # ^C in the terminal is the server's; the worker ends when its input does
            )
            self._reader = asyncio.create_task(self._read(self._process))

    def _send(self, message: dict[str, Any]) -> None:
        process = self._process
        assert process is not None and process.stdin is not None
        data = json.dumps(message, separators=(",", ":")).encode()
        with suppress(OSError, RuntimeError):  # it has died, which the reader tells
            process.stdin.write(len(data).to_bytes(4) + data)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while True:
                size = int.from_bytes(await process.stdout.readexactly(4))
                answer = json.loads(await process.stdout.readexactly(size))
                if (queue := self._answers.get(answer["id"])) is not None:
                    queue.put_nowait(answer)
        except asyncio.IncompleteReadError:
            await process.wait()
            error = {"status": 500, "message": "a process of the lab has died; try again", "param": None}
            for queue in self._answers.values():
                queue.put_nowait({"error": error})

    async def close(self) -> None:
        """End the process."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 2.0)
        except TimeoutError:
            process.kill()
            await process.wait()
        if self._reader is not None:
            await self._reader


class Processes:
    """One worker for all that is watched, which keeps its runs, and a few for answers."""

    def __init__(self, niceness: int = BEHIND_AN_ENGINE) -> None:
        self.watching = WorkerProcess(niceness)
        self._answering = [WorkerProcess(niceness) for _ in range(1 if niceness > 0 else ANSWERING)]
        self._idle: asyncio.LifoQueue[WorkerProcess] = asyncio.LifoQueue()
        for worker in reversed(self._answering):
            self._idle.put_nowait(worker)
        self._waiting = 0

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[WorkerProcess]:
        """A worker to oneself. Raises LabError if too many wait for one."""
        if self._waiting >= WAITING_MAX:
            raise LabError(
                429,
                f"{WAITING_MAX} runs wait for a process of the lab, the most at once; try again later",
            )
        self._waiting += 1
        try:
            worker = await self._idle.get()
        finally:
            self._waiting -= 1
        try:
            yield worker
        finally:
            self._idle.put_nowait(worker)

    async def warm_up(self) -> None:
        """Start the workers for answers, so that the first one need not wait for them."""
        await asyncio.gather(*(worker._start() for worker in self._answering))

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in (self.watching, *self._answering)))
