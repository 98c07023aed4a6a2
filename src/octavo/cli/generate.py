"""``octavo generate``: answers on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from octavo.cli.options import engine_flags, engine_options
from octavo.core.beam_params import BeamParams
from octavo.core.errors import ConfigError, OctavoError
from octavo.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.core.request import Request
    from octavo.llm.completions import Completion
    from octavo.llm.outputs import CompletionOutput, RequestOutput
    from octavo.llm.session import Session


@click.command("generate")
@click.argument("prompts", nargs=-1, metavar="[PROMPT]...")
@click.option(
    "--prompt-file",
    type=click.Path(path_type=Path),
    help="More prompts, one a line (- is standard input); a .jsonl line is a string or an object with a prompt.",
)
@click.option(
    "--n",
    type=int,
    default=1,
    show_default=True,
    help="Answers to each prompt, which is computed once; answer i has seed + i.",
)
@click.option(
    "--beam-width",
    type=int,
    help="Search for the likeliest answers with so many beams instead of sampling, and tell the --n best.",
)
@click.option(
    "--length-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Of a beam search: scores are log-probabilities over the length to this power.",
)
@click.option(
    "--early-stopping",
    type=click.Choice(["true", "false", "never"]),
    default="false",
    show_default=True,
    help="Of a beam search: end at the first --beam-width ends; when no beam is better now; when none can become so.",
)
@click.option(
    "--beam-groups",
    type=int,
    default=1,
    show_default=True,
    help="Of a beam search: groups of beams that avoid each other's tokens.",
)
@click.option(
    "--diversity-penalty",
    type=float,
    default=0.0,
    show_default=True,
    help="Of such groups: taken off a token for each earlier group's beam that has it in this step.",
)
@click.option("--max-tokens", type=int, help="Most tokens to generate. Default: until the model ends.")
@click.option("--min-tokens", type=int, default=0, show_default=True, help="Fewest tokens to generate.")
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
@click.option(
    "--min-p",
    type=float,
    default=0.0,
    show_default=True,
    help="Drop tokens less likely than this share of the likeliest.",
)
@click.option(
    "--presence-penalty",
    type=float,
    default=0.0,
    show_default=True,
    help="Subtracted from logits of generated tokens.",
)
@click.option(
    "--frequency-penalty", type=float, default=0.0, show_default=True, help="Subtracted once per occurrence."
)
@click.option(
    "--repetition-penalty",
    type=float,
    default=1.0,
    show_default=True,
    help="Divides the logits of tokens seen before.",
)
@click.option("--stop", multiple=True, help="A string that ends the answer; may be given several times.")
@click.option("--ignore-eos", is_flag=True, help="Go on to --max-tokens whatever the model says.")
@click.option("--raw", is_flag=True, help="Complete the prompt as it is, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line instead of text.")
@click.option("--verbose", is_flag=True, help="A line for every admission and end too.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Write every step's decisions to this file (JSON lines; gzip if it ends in .gz), to be replayed or simulated.",
)
@engine_flags
def command(
    prompts: tuple[str, ...],
    prompt_file: Path | None,
    raw: bool,
    as_json: bool,
    verbose: bool,
    record: Path | None,
    **flags: Any,
) -> None:
    """Complete prompts, or answer them as chat messages."""
    # Not at the top: --help loads neither NumPy nor the native part.
    from octavo.llm.build import build_session
    from octavo.telemetry.recording import open_for_writing
    from octavo.telemetry.sinks import LineSink

    sampling = _sampling(flags)
    texts = [*prompts, *_read_prompts(prompt_file)]
    if not texts:
        raise click.UsageError("no prompt: give one as an argument or in --prompt-file")
    options = engine_options(**flags)
    with nullcontext() if record is None else open_for_writing(record) as file:
        lines = LineSink(_to_stderr, verbose=verbose)
        session = build_session(options, lines=lines, record=file)
        requests = _prepare(session, texts, sampling, raw)
        answers = [session.add_choices(request) for request in requests]
        try:
            if as_json or len(texts) > 1 or len(answers[0]) > 1 or sampling.beam is not None:
                outputs = _print_as_they_end(session, requests, answers, texts, as_json)
            else:
                outputs = _stream(session, answers[0][0], texts[0])
        finally:
            session.abort([one for choices in answers for one in choices if not one.finished])
            lines.flush(session.engine.clock.now())
        session.park()
    _closing_line(outputs)


def _to_stderr(line: str) -> None:
    click.echo(line, err=True)


def _sampling(flags: dict[str, Any]) -> SamplingParams:
    """Takes the sampling flags out of ``flags``; ``seed`` stays, as the engine derives each request's own."""
    names = (
        "n", "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "presence_penalty",
        "frequency_penalty", "repetition_penalty", "stop", "ignore_eos",
    )  # fmt: skip
    return SamplingParams(seed=flags["seed"], beam=_beam(flags), **{name: flags.pop(name) for name in names})


def _beam(flags: dict[str, Any]) -> BeamParams | None:
    width = flags.pop("beam_width")
    settings = {
        "length_penalty": flags.pop("length_penalty"),
        "early_stopping": {"true": True, "false": False}.get(
            flags["early_stopping"], flags["early_stopping"]
        ),
        "groups": flags.pop("beam_groups"),
        "diversity_penalty": flags.pop("diversity_penalty"),
    }
    del flags["early_stopping"]
    if width is not None:
        return BeamParams(width=width, **settings)
    for name, value in settings.items():
        if value != getattr(BeamParams(), name):
            flag = "--beam-groups" if name == "groups" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} needs --beam-width: it is a setting of beam search", param=flag)
    return None


def _read_prompts(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = (sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read prompts from {path}: {error}", param="--prompt-file") from error
    prompts = [
        _json_prompt(line, path, number) if path.suffix == ".jsonl" else line
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise ConfigError(f"{path} holds no prompt", param="--prompt-file")
    return prompts


def _json_prompt(line: str, path: Path, number: int) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path}, line {number}: not JSON ({error})", param="--prompt-file") from error
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str):
        raise ConfigError(
            f"{path}, line {number}: neither a JSON string nor an object with a string prompt",
            param="--prompt-file",
        )
    return prompt


def _prepare(session: Session, texts: list[str], sampling: SamplingParams, raw: bool) -> list[Request]:
    """All or nothing: with several prompts, an error says which one is at fault."""
    requests = []
    for number, text in enumerate(texts, start=1):
        try:
            requests.append(session.prepare(text, sampling, raw=raw))
        except OctavoError as error:
            if len(texts) > 1:
                error.message = f"prompt {number}: {error.message}"
            raise
    return requests


def _stream(session: Session, completion: Completion, text: str) -> list[RequestOutput]:
    for piece in session.stream(completion):
        click.echo(piece, nl=False)
    click.echo()
    return [session.output(completion, text)]


def _print_as_they_end(
    session: Session,
    requests: list[Request],
    answers: list[list[Completion]],
    texts: list[str],
    as_json: bool,
) -> list[RequestOutput]:
    """In the order of the prompts, each as soon as it and all before it have ended."""
    outputs = []
    for request, completions, text in zip(requests, answers, texts, strict=True):
        session.run(completions)
        output = session.outputs(request.request_id, completions, text)
        outputs.append(output)
        if as_json:
            click.echo(json.dumps(json_record(output), ensure_ascii=False))
            continue
        for answer in output.outputs:
            number = f" ({answer.index + 1} of {len(output.outputs)})" if len(output.outputs) > 1 else ""
            click.echo(f"--- {text}{number}", err=True)
            click.echo(answer.text)
    return outputs


def _choice(answer: CompletionOutput) -> dict[str, object]:
    told: dict[str, object] = {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
    }
    if answer.beam_score is not None:
        told |= {"logprob": answer.cumulative_logprob, "score": answer.beam_score}
    return told


def json_record(output: RequestOutput) -> dict[str, object]:
    """One line of ``--json``: of several answers a list of choices."""
    choices: list[dict[str, object]] = [_choice(one) for one in output.outputs]
    told: dict[str, object] = choices[0]
    if len(choices) > 1:
        told = {"choices": [{"index": index, **choice} for index, choice in enumerate(choices)]}
    metrics = output.metrics
    return {
        **told,
        "prompt_tokens": len(output.prompt_token_ids),
        "completion_tokens": sum(len(one.token_ids) for one in output.outputs),
        "cached_tokens": output.num_cached_tokens,
        "ttft_s": round(metrics.ttft_s, 6),
        "tokens_per_s": round(metrics.tokens_per_s, 3),
        "blocks_used": metrics.blocks_used,
        "blocks_total": metrics.blocks_total,
        "preemptions": metrics.preemptions,
    }


def _closing_line(outputs: list[RequestOutput]) -> None:
    tokens = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    first = outputs[0].metrics
    if len(outputs) == 1:
        _to_stderr(
            f"{tokens} tokens, {first.tokens_per_s:.1f} tokens/s, {first.blocks_used} of {first.blocks_total} blocks, "
            f"first token after {first.ttft_s * 1000:.0f} ms"
        )
        return
    seconds = max(output.metrics.latency_s for output in outputs)
    _to_stderr(
        f"{len(outputs)} answers, {tokens} tokens, {tokens / seconds if seconds else 0:.1f} tokens/s together, "
        f"{sum(output.metrics.preemptions for output in outputs)} preemptions, pool of {first.blocks_total} blocks, "
        f"first token after {min(output.metrics.ttft_s for output in outputs) * 1000:.0f} ms"
    )
