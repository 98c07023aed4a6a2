"""``octavo serve``: OpenAI's API over HTTP."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import click

from octavo.cli.options import ByteSize, Flags, engine_flags, engine_options, with_flags
from octavo.core.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    from octavo.llm.options import EngineOptions
    from octavo.server.logs import Logs
    from octavo.server.settings import ServerOptions

SERVER_FLAGS: Flags = (
    click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        help="Address to listen on; 0.0.0.0 is every interface.",
    ),
    click.option("--port", type=int, default=8000, show_default=True, help="Port; 0 lets the system choose."),
    click.option(
        "--served-model-name",
        "served_model_names",
        multiple=True,
        help="A name that requests may use for the model; may be given several times. Default: the model's own.",
    ),
    click.option(
        "--api-key",
        "api_keys",
        multiple=True,
        help="A key that clients must send (Authorization: Bearer KEY); may be given several times.",
    ),
    click.option(
        "--cache-isolation",
        type=click.Choice(["none", "api-key"]),
        default="none",
        show_default=True,
        help="Who finds whose cached blocks: everyone everyone's, or each API key its own alone.",
    ),
    click.option(
        "--allow-origin",
        "allow_origins",
        multiple=True,
        help="An origin that browsers may call from (CORS); * is every one. Default: none.",
    ),
    click.option(
        "--max-num-queued-reqs",
        type=int,
        default=1024,
        show_default=True,
        help="Most requests that wait; more are answered 503 with Retry-After.",
    ),
    click.option(
        "--max-tokens-cap", type=int, help="Most output tokens of any request, whatever it asks for."
    ),
    click.option(
        "--request-timeout", "request_timeout_s", type=float, help="Seconds after which a request is ended."
    ),
    click.option(
        "--shutdown-timeout",
        "shutdown_timeout_s",
        type=float,
        default=30.0,
        show_default=True,
        help="Seconds that running requests get after the first SIGTERM.",
    ),
    click.option(
        "--max-body-bytes", type=ByteSize(), default="16MiB", show_default=True, help="Largest request body."
    ),
    click.option(
        "--metrics-prefix",
        default="octavo",
        show_default=True,
        help="Prefix of the metrics; vllm makes existing dashboards work.",
    ),
    click.option(
        "--thrash-preemptions",
        type=int,
        default=32,
        show_default=True,
        help="Preemptions within --thrash-window steps at which admission pauses.",
    ),
    click.option(
        "--thrash-window",
        type=int,
        default=64,
        show_default=True,
        help="Steps without a preemption after which admission goes on.",
    ),
    click.option("--disable-log-stats", is_flag=True, help="No periodic line, and none about the workload."),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Lines on standard error as text, or a JSON object each.",
    ),
    click.option(
        "--record",
        type=click.Path(path_type=Path),
        help="Write the run to this file, to be replayed by octavo simulate; .gz compresses it.",
    ),
)
"""How requests come in and what is told about them."""


def server_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds these flags; the command receives them as keywords."""
    return with_flags(command, SERVER_FLAGS)


@click.command("serve")
@click.argument("model_argument", metavar="[MODEL]", required=False)
@click.option("--verbose", is_flag=True, help="A line for every admission and end too.")
@server_flags
@engine_flags
def command(model_argument: str | None, verbose: bool, **flags: Any) -> None:
    """Serve a model over HTTP, as OpenAI's API does."""
    # Not at the top: --help loads neither NumPy nor a web server.
    from octavo.server.logs import Logs

    if model_argument and flags["model"]:
        raise ConfigError(f"two models: {model_argument} and --model {flags['model']}", param="--model")
    flags["model"] = model_argument or flags["model"]
    form, record = flags.pop("log_format"), flags.pop("record")
    with Logs(form) as logs:
        try:
            options = server_options(flags)
            code = _serve(engine_options(**flags), options, logs, record, verbose)
        except OctavoError as error:
            if form == "text":
                raise  # one plain line, as every command has it
            logs.mistake(error.line)
            code = 2
        except Exception as error:
            if form == "text":
                raise
            logs.bug(error)
            code = 1
    if logs.stuck:
        os._exit(code)
    if code:
        sys.exit(code)


def _serve(
    engine: EngineOptions,
    options: ServerOptions,
    logs: Logs,
    record: Path | None,
    verbose: bool,
) -> int:
    from octavo.server.listening import bind

    listener = bind(options.host, options.port)  # first: what follows takes seconds

    from octavo.llm.build import build_session
    from octavo.server.recording import RecordingFile
    from octavo.telemetry.sinks import LineSink

    with (
        _importing("octavo.server.serve"),
        RecordingFile(record, logs.say) if record else nullcontext() as file,
    ):
        lines = LineSink(logs.say, verbose=verbose)
        session = build_session(engine, lines=lines, record=cast("TextIO | None", file))
        from octavo.server.serve import serve  # waits for the thread that imports it

        return serve(session, listener, options, lines)


@contextmanager
def _importing(module: str) -> Iterator[None]:
    """Import a module beside what is done meanwhile: reading the weights leaves the interpreter free for much of its
    time, enough to load the web server in. The thread is waited for in every case: an interpreter that ends under an
    import complains of it."""
    thread = threading.Thread(target=import_module, args=(module,))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def server_options(flags: dict[str, Any]) -> ServerOptions:
    """Takes the server's flags out of ``flags``. VLLM_API_KEY and OCTAVO_API_KEY are honoured where no key is given."""
    from octavo.server.settings import ServerOptions

    names = (
        *(
            "host",
            "port",
            "served_model_names",
            "api_keys",
            "cache_isolation",
            "allow_origins",
            "max_num_queued_reqs",
            "max_tokens_cap",
        ),
        *("request_timeout_s", "shutdown_timeout_s", "max_body_bytes", "metrics_prefix"),
    )
    values = {name: flags.pop(name) for name in names}
    if not values["api_keys"]:
        values["api_keys"] = tuple(
            key for name in ("OCTAVO_API_KEY", "VLLM_API_KEY") if (key := os.environ.get(name))
        )
    return ServerOptions(log_stats=not flags.pop("disable_log_stats"), **values)
