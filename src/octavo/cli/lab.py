"""``octavo lab``: the simulator as a page, with no model."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("lab")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 is every interface.",
)
@click.option("--port", type=int, default=8001, show_default=True, help="Port; 0 lets the system choose.")
@click.option(
    "--recording",
    type=click.Path(path_type=Path),
    help="Open this run of a real server (octavo serve --record) and step through it.",
)
def command(host: str, port: int, recording: Path | None) -> None:
    """Try the article's experiment on a page, and take the guided walk: the real scheduler, no model."""
    # Not at the top: --help loads neither NumPy nor a web server.
    import uvicorn

    from octavo.dashboard.lab_app import LabServer, build_lab_app
    from octavo.dashboard.lab_routes import GIVEN, Lab
    from octavo.server.listening import bind

    lab = Lab(recording, niceness=0)
    listener = bind(host, port)
    shown, number = listener.getsockname()[:2]
    address = f"[{shown}]" if ":" in shown else shown
    place = f"#lab?recording={GIVEN}" if recording is not None else ""

    def on_ready() -> None:
        listener.listen()  # whoever comes now waits; the server begins to answer behind this call
        click.echo(f"The lab is at http://{address}:{number}/{place} (^C ends it)", err=True)

    config = uvicorn.Config(
        build_lab_app(lab, on_ready),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    LabServer(config, lab).run(sockets=[listener])
