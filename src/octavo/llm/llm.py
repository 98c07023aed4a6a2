"""``LLM``: batch generation from Python, in the shape that users of vLLM know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from tqdm import tqdm

from octavo.core.errors import RequestError
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.llm.build import build_session
from octavo.llm.completions import Completion
from octavo.llm.options import EngineOptions
from octavo.llm.outputs import RequestOutput
from octavo.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Messages = Sequence[dict[str, str]]


class LLM:
    """A model and a paged engine in this process.

    ``model`` is a Hugging Face folder, a GGUF file or a hub name; None is the embedded SmolLM2-135M-Instruct. Keywords
    are the fields of ``EngineOptions``. Raises ModelError or ConfigError.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self.session = build_session(EngineOptions(model=model, **options))

    def close(self) -> None:
        """Leave what is cached to the next process; with ``kv_offload_path`` alone there is something to do."""
        self.session.park()

    def get_tokenizer(self) -> Tokenizer:
        return self.session.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete every prompt (text as it is, or token ids), all in one batch; answers in the order of the prompts.

        Raises RequestError, before anything runs, if one of them can never be served.
        """
        many = _as_list(prompts)
        requests = [
            self.session.prepare(prompt, params)
            for prompt, params in zip(many, _one_each(sampling_params, len(many)), strict=True)
        ]
        texts = [prompt if isinstance(prompt, str) else None for prompt in many]
        return self._run(requests, texts, use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, through the model's chat template."""
        conversations = _conversations(messages)
        requests = [
            self.session.prepare(self.session.encode_chat(conversation), params)
            for conversation, params in zip(
                conversations, _one_each(sampling_params, len(conversations)), strict=True
            )
        ]
        return self._run(requests, [None] * len(requests), use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """The answer's text, piece by piece. Closing the iterator aborts the request and frees its blocks."""
        request = self.session.prepare(prompt, sampling_params or SamplingParams())
        if request.choices() != (request,):
            what = "n" if request.sampling.beam is None else "beam"
            raise RequestError(f"{what} is set, but a stream is of one sampled answer", param=what)
        completion = self.session.add(request)
        try:
            yield from self.session.stream(completion)
        finally:
            if not completion.finished:
                self.session.abort([completion])

    def _run(self, requests: list[Request], texts: list[str | None], use_tqdm: bool) -> list[RequestOutput]:
        answers = [self.session.add_choices(request) for request in requests]
        completions = [one for choices in answers for one in choices]
        try:
            with tqdm(total=len(completions), desc="Answers", disable=not use_tqdm) as bar:
                self._advance(completions, bar)
        except BaseException:
            self.session.abort([one for one in completions if not one.finished])
            raise
        return [
            self.session.outputs(request.request_id, choices, text)
            for request, choices, text in zip(requests, answers, texts, strict=True)
        ]

    def _advance(self, completions: list[Completion], bar: tqdm[Any]) -> None:
        remaining = len(completions)
        while remaining:
            changed = self.session.step()
            assert changed is not None, "an admitted request ends in tokens or an error"
            ended = sum(one.finished for one in changed)
            remaining -= ended
            if ended:
                bar.update(ended)
                bar.set_postfix_str(f"{sum(len(one.token_ids) for one in completions)} tokens")


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [cast("Prompt", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _conversations(messages: Messages | Sequence[Messages]) -> list[Messages]:
    if messages and isinstance(messages[0], dict):
        return [cast("Messages", messages)]
    return list(cast("Sequence[Messages]", messages))


def _one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"{len(params)} sampling parameters for {count} prompts", param="sampling_params")
    return list(params)
