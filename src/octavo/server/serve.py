"""``serve``: socket, engine thread, HTTP server and signals, from start to exit code.

The first SIGTERM or SIGINT drains: new requests are turned away, running ones may end until ``shutdown_timeout_s``,
then they are aborted (their clients get ``finish_reason`` abort). A second one ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import uvicorn

from octavo.llm.session import Session
from octavo.memory.runs import mean_run_tokens
from octavo.server.app import Api, build_app
from octavo.server.engine_thread import EngineThread
from octavo.server.settings import ServerOptions
from octavo.telemetry.log_stats import StatsLine
from octavo.telemetry.metrics import Metrics
from octavo.telemetry.sinks import FanOut, LineSink
from octavo.telemetry.workload import WorkloadLine

log = logging.getLogger(__name__)

DEATH_GRACE_S = 2.0
"""How long /health says 503 before a server whose engine died ends."""
ABORT_GRACE_S = 5.0
"""How long aborted answers may take to reach their clients at the end."""
LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def serve(session: Session, listener: socket.socket, options: ServerOptions, lines: LineSink) -> int:
    """Serve until a signal or the engine's death; returns the exit code. ``lines`` is a sink of the session."""
    metrics = make_metrics(session, options)
    # Where tenants are apart, the counts of the metrics must not say what another one has sent, either.
    session.engine.scheduler.allocator.lookups.across_salts = options.cache_isolation == "none"
    sinks = [session.engine.sink, metrics]
    if options.log_stats:
        scheduler = session.engine.scheduler
        sinks.append(WorkloadLine(lines.say, scheduler.allocator.num_blocks, scheduler.config.max_num_seqs))
    session.engine.sink = FanOut(sinks)
    # The engine's thread must get the interpreter soon after a step, however busy the loop is.
    sys.setswitchinterval(0.001)
    gc.collect()
    gc.freeze()  # the model's objects live as long as the process: no collection need look at them
    return _Serving(session, metrics, listener, options, lines).run()


def make_metrics(session: Session, options: ServerOptions) -> Metrics:
    scheduler = session.engine.scheduler
    allocator = scheduler.allocator
    names = options.served_model_names or (session.spec.name,)
    return Metrics(
        prefix=options.metrics_prefix,
        model_name=names[0],
        max_num_seqs=scheduler.config.max_num_seqs,
        num_blocks=allocator.num_blocks,
        block_size=allocator.block_size,
        caching=allocator.caching,
        cache_config={
            "block_size": str(allocator.block_size),
            "num_gpu_blocks": str(allocator.num_blocks),
            "cache_dtype": session.spec.kv_dtype,
            "enable_prefix_caching": str(allocator.caching),
            "allocator": allocator.name,
        },
        shared_blocks=lambda: max(0, allocator.table.entries - allocator.state().live),
        run_tokens=lambda: mean_run_tokens(allocator.table, allocator.block_size),
        lookups=allocator.lookups.totals,
        offload=allocator.offload,
    )


def seconds_since_start() -> float:
    """Of this process. Linux counts from the boot, in hundredths; psutil makes wall time of that with a boot time told
    in whole seconds, and a start looked up to a second longer or shorter."""
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks = int(after_name[19])  # field 22: start time
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - psutil.Process().create_time()


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers; says when it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Serving:
    """One run of the server."""

    def __init__(
        self,
        session: Session,
        metrics: Metrics,
        listener: socket.socket,
        options: ServerOptions,
        lines: LineSink,
    ) -> None:
        self._session = session
        self._metrics = metrics
        self._listener = listener
        self._options = options
        self._lines = lines
        self._say = lines.say
        self._exit_code = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> int:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(self._main())

    async def _main(self) -> int:
        loop = asyncio.get_running_loop()
        self._engine = EngineThread(self._session, loop, self._metrics, self._tell_held)
        self._api = Api(self._session, self._engine, self._metrics, self._options, self._say)
        config = uvicorn.Config(
            build_app(self._api, self._options),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(ABORT_GRACE_S),
            backlog=2048,
        )
        self._http = _HttpServer(config, self._on_ready)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        self._engine.start()
        self._spawn(self._watch_engine())
        if self._options.log_stats:
            self._spawn(self._tell_stats())
        await self._http.serve(sockets=[self._listener])
        await self._api.lab.close()
        for task in self._tasks:
            task.cancel()
        if self._engine.failure is None:
            await self._engine.stop()
            totals = self._metrics.totals
            ended = sum(totals.finished.values())
            self._say(f"Stopped after {_counted(ended)} and {totals.generation_tokens:,} generated tokens")
        return self._exit_code

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)

    def _on_ready(self) -> None:
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        seconds = seconds_since_start()
        name = (self._options.served_model_names or (self._session.spec.name,))[0]
        if self._options.host in LOCAL_HOSTS:
            self._say("Only this machine can connect; --host 0.0.0.0 listens on every interface")
        elif not self._options.api_keys:
            self._say("Everyone who can reach this port may use it; --api-key asks for a key")
        self._say(f"Ready in {seconds:.2f} s: {name} on http://{shown}:{port}")

    # ------------------------------------------------------------------ while serving

    def _tell_held(self) -> None:
        self._lines.flush(self._session.engine.clock.now())

    async def _tell_stats(self) -> None:
        clock = self._session.engine.clock
        stats = StatsLine(self._metrics, clock.now())
        while True:
            await asyncio.sleep(self._options.log_stats_interval_s)
            line = stats.line(clock.now())
            if line is not None:
                self._say(line)

    async def _watch_engine(self) -> None:
        """A dead engine ends the process, after everyone was told why."""
        await self._engine.died.wait()
        failure = self._engine.failure
        log.critical("The engine has died, the server ends: %r", failure, exc_info=failure)
        self._exit_code = 1
        self._api.feed.close()
        await asyncio.sleep(DEATH_GRACE_S)
        self._http.should_exit = True

    # ------------------------------------------------------------------ ending

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._api.draining:
            self._say(f"{name} again: ending at once")
            time.sleep(0.05)  # for the line to be written
            os._exit(128 + number)
        self._api.draining = True
        count = self._engine.num_unfinished
        if count:
            self._say(
                f"{name}: {_counted(count)} may end within {self._options.shutdown_timeout_s:g} s (--shutdown-timeout);"
                " a second signal ends at once"
            )
        else:
            self._say(f"{name}: no request is left to wait for")
        self._spawn(self._drain())

    async def _drain(self) -> None:
        if not await self._settled(self._options.shutdown_timeout_s):
            self._say(f"Aborting {_counted(self._engine.num_unfinished)}")
            self._engine.end_all()
            await self._settled(ABORT_GRACE_S)
        self._api.feed.close()
        self._http.should_exit = True

    async def _settled(self, seconds: float) -> bool:
        """Whether every request ended within that time."""
        deadline = time.monotonic() + seconds
        while self._engine.num_unfinished and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return not self._engine.num_unfinished


def _counted(requests: int) -> str:
    return "1 request" if requests == 1 else f"{requests:,} requests"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
