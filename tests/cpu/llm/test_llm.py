"""The offline API on a tiny random model: shapes of answers, stop strings, errors that leave nothing behind."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tiny_models
from octavo import LLM, SamplingParams
from octavo.core.errors import ConfigError, ContextLengthError, ModelError, RequestError
from octavo.core.plan import StepPlan
from octavo.memory.audit import audit

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write_llama(tmp_path_factory.mktemp("tiny"), max_model_len=256)


@pytest.fixture
def llm(folder: Path) -> LLM:
    return LLM(str(folder), num_blocks=40, seed=1)


def nothing_leaks(llm: LLM) -> None:
    llm.session.engine.drain()
    scheduler = llm.session.engine.scheduler
    audit(scheduler.allocator, {})
    assert scheduler.pool_state.live == 0
    assert not scheduler.has_unfinished


def test_answers_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["a b c", "c", "b a b a b a"]
    together = llm.generate(prompts, GREEDY, use_tqdm=False)
    assert [output.prompt for output in together] == prompts
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = llm.generate(prompt, GREEDY, use_tqdm=False)
        assert alone.outputs[0].token_ids == output.outputs[0].token_ids
        assert len(output.outputs[0].token_ids) == 12
        assert output.outputs[0].finish_reason == "length"
    nothing_leaks(llm)


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    one, two = llm.generate(
        [[5, 6, 7], [5, 6, 7]],
        [GREEDY, SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)],
        use_tqdm=False,
    )
    assert one.prompt is None
    assert one.prompt_token_ids == [5, 6, 7]
    assert one.outputs[0].token_ids[:3] == two.outputs[0].token_ids


def test_blocks_used_counts_written_slots(llm: LLM) -> None:
    # 30 prompt + 3 output tokens, the last of which is never computed: 32 slots, 2 blocks of 16.
    (output,) = llm.generate(
        [[*range(5, 35)]], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True), use_tqdm=False
    )
    assert output.metrics.blocks_used == 2
    assert output.metrics.blocks_total == 40
    assert output.metrics.ttft_s > 0


def test_a_stop_string_ends_the_answer_before_itself(llm: LLM) -> None:
    (free,) = llm.generate("a b c", GREEDY, use_tqdm=False)
    text = free.outputs[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    (stopped,) = llm.generate(
        "a b c", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=(stop,)), use_tqdm=False
    )
    assert stopped.outputs[0].finish_reason == "stop"
    assert stopped.outputs[0].text == text[: text.index(stop)]
    assert len(stopped.outputs[0].token_ids) < 12
    nothing_leaks(llm)


def test_a_stop_token_ends_the_answer_and_shows_no_text(llm: LLM) -> None:
    (free,) = llm.generate("a b c", GREEDY, use_tqdm=False)
    ids = free.outputs[0].token_ids
    token = ids[4]
    (stopped,) = llm.generate(
        "a b c",
        SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=(token,)),
        use_tqdm=False,
    )
    assert stopped.outputs[0].finish_reason == "stop"
    assert stopped.outputs[0].token_ids == ids[: ids.index(token) + 1]


def test_logprobs_and_prompt_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=3, prompt_logprobs=2)
    (output,) = llm.generate([[5, 6, 7, 8, 9]], params, use_tqdm=False)
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    assert [one.token_id for one in logprobs] == output.outputs[0].token_ids
    assert all(one.rank == 1 and len(one.top_ids) == 3 and one.logprob <= 0 for one in logprobs)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [one.token_id for one in output.prompt_logprobs[1:] if one is not None] == [6, 7, 8, 9]


def test_prompt_logprobs_do_not_depend_on_chunks(folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, prompt_logprobs=0)
    prompt = [5 + i % 50 for i in range(60)]
    found = []
    for budget in (2048, 7):
        chunked = LLM(str(folder), num_blocks=40, max_num_batched_tokens=budget)
        chunked.generate(
            [prompt], GREEDY, use_tqdm=False
        )  # warms the prefix cache, which must not be used below
        (output,) = chunked.generate([prompt], params, use_tqdm=False)
        assert output.prompt_logprobs is not None
        assert output.num_cached_tokens == 0
        found.append([(one.token_id, one.logprob) for one in output.prompt_logprobs if one is not None])
    assert len(found[0]) == 59
    assert found[0] == found[1]


def test_a_second_turn_finds_the_first_in_the_pool(llm: LLM) -> None:
    prompt = [5 + i % 60 for i in range(40)]
    (first,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    turn = [*prompt, *first.outputs[0].token_ids, 9, 9, 9]
    (second,) = llm.generate([turn], GREEDY, use_tqdm=False)
    assert (
        second.num_cached_tokens == (40 + 12 - 1) // 16 * 16
    )  # its generated tokens too, but for the last block
    nothing_leaks(llm)


def test_streaming_yields_the_whole_text_and_closing_frees(llm: LLM) -> None:
    (whole,) = llm.generate("a b c", GREEDY, use_tqdm=False)
    assert "".join(llm.stream("a b c", GREEDY)) == whole.outputs[0].text
    stream = llm.stream("a b c", GREEDY)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    nothing_leaks(llm)


def test_seeds_are_drawn_from_the_engines_seed(folder: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    answers = [
        [
            output.outputs[0].token_ids
            for output in LLM(str(folder), num_blocks=40, seed=seed).generate(
                ["a", "a"], params, use_tqdm=False
            )
        ]
        for seed in (3, 3, 4)
    ]
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]
    assert answers[0][0] != answers[0][1]


def test_a_prompt_that_can_never_fit_is_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(ContextLengthError, match=r"maximum context length is 256 tokens.*300"):
        llm.generate([[5, 6], [7] * 300], GREEDY, use_tqdm=False)
    nothing_leaks(llm)


def test_a_pool_smaller_than_the_model_is_the_limit(folder: Path) -> None:
    small = LLM(str(folder), num_blocks=4)
    with pytest.raises(ContextLengthError, match=r"maximum context length is 64 tokens") as caught:
        small.generate([[7] * 70], GREEDY, use_tqdm=False)
    assert "--kv-cache-memory-bytes" in str(caught.value)
    (capped,) = small.generate([[7] * 60], SamplingParams(temperature=0, ignore_eos=True), use_tqdm=False)
    assert len(capped.outputs[0].token_ids) == 4  # max_tokens was not named: capped, not refused
    nothing_leaks(small)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [("", "empty"), ([], "at least 1"), ([5, 100_000], "100000"), ([-1], "-1")],
)
def test_bad_prompts(llm: LLM, prompt: str | list[int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate([prompt], GREEDY, use_tqdm=False)
    nothing_leaks(llm)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"block_size": 12}, "--block-size"),
        ({"num_blocks": 0}, "--num-gpu-blocks-override"),
        ({"kv_cache_memory_bytes": 1}, "--kv-cache-memory-bytes"),
        ({"max_model_len": 100_000}, "--max-model-len"),
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"threads": 0}, "--threads"),
        ({"dtype": "f64"}, "--dtype"),
        ({"path": "sse1"}, "--cpu-path"),
        ({"memory_share": 1.5}, "--gpu-memory-utilization"),
    ],
    ids=lambda value: str(value),
)
def test_bad_settings_name_their_flag(folder: Path, options: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(str(folder), **options)
    assert caught.value.param == flag


def test_a_missing_model_is_named() -> None:
    with pytest.raises(ModelError, match="no-such-folder"):
        LLM("/no-such-folder")


@pytest.mark.parametrize("field", ["logit_bias", "stop_token_ids"])
def test_token_ids_outside_the_vocabulary_are_refused_at_the_door(llm: LLM, field: str) -> None:
    value = {5_000: 1.0} if field == "logit_bias" else (5_000,)
    with pytest.raises(RequestError, match=r"5000|5,000") as caught:
        llm.generate([[5, 6]], SamplingParams(temperature=0, **{field: value}), use_tqdm=False)
    assert caught.value.param == field
    nothing_leaks(llm)


def test_an_abort_in_the_middle_frees_everything(llm: LLM) -> None:
    session = llm.session
    completions = [session.add(session.prepare([5 + i] * 20, GREEDY)) for i in range(5)]
    for _ in range(3):
        session.step()
    session.abort(completions[:3])
    assert [one.finish_reason.name for one in completions[:3]] == ["ABORT"] * 3
    nothing_leaks(llm)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """A test run in the background inherits an ignored SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_waits_for_the_step_and_frees_everything(llm: LLM) -> None:
    executor = llm.session.engine.executor
    submit, steps = executor.submit, 0

    def interrupt_in_the_third(plan: StepPlan) -> object:
        nonlocal steps
        steps += 1
        if steps == 3:
            signal.raise_signal(signal.SIGINT)
        return submit(plan)

    executor.submit = interrupt_in_the_third  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)
    nothing_leaks(llm)
    (whole,) = llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)
    assert len(whole.outputs[0].token_ids) == 12


def in_each_step(llm: LLM, act: Callable[[], object]) -> None:
    executor = llm.session.engine.executor
    submit = executor.submit

    def submit_too(plan: StepPlan) -> object:
        act()
        return submit(plan)

    executor.submit = submit_too  # type: ignore[method-assign]


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_goes_to_the_callers_latest_handler(llm: LLM) -> None:
    session = llm.session
    completion = session.add(session.prepare([5, 6, 7], GREEDY))
    in_each_step(llm, lambda: signal.raise_signal(signal.SIGINT))
    heard: list[tuple[str, int]] = []
    for name in ("first", "second"):

        def handler(number: int, frame: object, name: str = name) -> None:
            heard.append((name, len(completion.token_ids)))

        signal.signal(signal.SIGINT, handler)
        session.step()
        assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    session.step()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert heard == [("first", 1), ("second", 2)], "each after its step"
    session.abort([completion])
    nothing_leaks(llm)


@pytest.mark.usefixtures("ctrl_c")
def test_steps_of_another_thread_hold_nothing_back(llm: LLM) -> None:
    session = llm.session
    completion = session.add(session.prepare([5, 6, 7], GREEDY))
    handler, seen = signal.getsignal(signal.SIGINT), []
    in_each_step(llm, lambda: seen.append(signal.getsignal(signal.SIGINT)))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(session.run, [completion]).result()
    assert len(seen) == 12 and set(seen) == {handler}
    nothing_leaks(llm)
