"""``octavo chat``: a conversation whose earlier turns stay in the pool, so that each turn prefills only what is new."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import engine_flags, engine_options
from octavo.core.errors import RequestError
from octavo.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.llm.session import Session


@click.command("chat")
@click.option("--system", help="A system message.")
@click.option("--max-tokens", type=int, help="Most tokens of an answer. Default: until the model ends.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option(
    "--top-k", type=int, default=0, show_default=True, help="Keep the k most likely tokens; 0 keeps all."
)
@click.option(
    "--top-p",
    type=float,
    default=1.0,
    show_default=True,
    help="Keep the most likely tokens up to this probability.",
)
@engine_flags
def command(
    system: str | None, max_tokens: int | None, temperature: float, top_k: int, top_p: float, **flags: Any
) -> None:
    """Chat with a model. A line is a message; an empty line or end of input leaves."""
    # Not at the top: --help loads neither NumPy nor the native part.
    from octavo.llm.build import build_session
    from octavo.telemetry.sinks import LineSink

    sampling = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=max_tokens, seed=flags["seed"]
    )
    lines = LineSink(lambda line: click.echo(line, err=True))
    session = build_session(engine_options(**flags), lines=lines)
    messages = [{"role": "system", "content": system}] if system else []
    while (line := _read_line()) is not None:
        messages.append({"role": "user", "content": line})
        try:
            messages.append({"role": "assistant", "content": answer(session, messages, sampling)})
            lines.flush(session.engine.clock.now())
        except RequestError as error:
            click.echo(f"octavo: {error.message}", err=True)
            messages.pop()
    session.park()


def _read_line() -> str | None:
    if sys.stdin.isatty():
        click.echo("> ", nl=False, err=True)
    return sys.stdin.readline().strip() or None


def answer(session: Session, messages: list[dict[str, str]], sampling: SamplingParams) -> str:
    """Stream one answer; Ctrl-C ends the answer, not the conversation. Returns its text."""
    completion = session.add(session.prepare(session.encode_chat(messages), sampling))
    try:
        for piece in session.stream(completion):
            click.echo(piece, nl=False)
    except KeyboardInterrupt:
        session.abort([completion])
    click.echo()
    output = session.output(completion, None)
    metrics, prompt_tokens = output.metrics, len(output.prompt_token_ids)
    click.echo(
        f"[{prompt_tokens} prompt tokens, {output.num_cached_tokens} of them cached, "
        f"{prompt_tokens - output.num_cached_tokens} prefilled; {len(completion.token_ids)} tokens, "
        f"{metrics.tokens_per_s:.1f} tokens/s, {metrics.blocks_used} of {metrics.blocks_total} blocks, "
        f"first token after {metrics.ttft_s * 1000:.0f} ms]",
        err=True,
    )
    return completion.text
