"""Several answers to a prompt through ``LLM`` and the session: sampled, searched for, aborted, scored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tiny_models
from octavo.core.beam_params import BeamParams
from octavo.core.errors import ContextLengthError, RequestError
from octavo.core.plan import FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.llm.llm import LLM

PROMPT = list(range(10, 45))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tiny_models.write_llama(tmp_path_factory.mktemp("tiny"), max_model_len=256)
    yield LLM(str(folder), dtype="f32", num_blocks=60, max_num_seqs=8, seed=1, threads=2)


def nothing_leaks(llm: LLM) -> None:
    llm.session.engine.drain()
    assert llm.session.engine.scheduler.pool_state.live == 0
    assert not llm.session.board.completions and not llm.session.engine.has_unfinished


def test_n_answers_are_those_of_seeds_in_a_row(llm: LLM) -> None:
    sampling = SamplingParams(n=4, seed=20, max_tokens=9, ignore_eos=True, logprobs=0)
    (several,) = llm.generate([PROMPT], sampling, use_tqdm=False)
    assert [answer.index for answer in several.outputs] == [0, 1, 2, 3]
    for i, answer in enumerate(several.outputs):
        alone = SamplingParams(seed=20 + i, max_tokens=9, ignore_eos=True)
        assert llm.generate([PROMPT], alone, use_tqdm=False)[0].outputs[0].token_ids == answer.token_ids
        assert answer.logprobs is not None
        assert answer.cumulative_logprob == sum(one.logprob for one in answer.logprobs)
    # 35 tokens: 2 blocks shared, and of each answer's 43 tokens the third one.
    assert several.metrics.blocks_used == 2 + 4
    nothing_leaks(llm)


def test_prompt_logprobs_are_computed_once_and_told_with_every_answer(llm: LLM) -> None:
    sampling = SamplingParams(n=3, seed=1, max_tokens=2, prompt_logprobs=1, ignore_eos=True)
    request = llm.session.prepare(PROMPT, sampling)
    answers = llm.session.add_choices(request)
    llm.session.run(answers)
    for answer in answers:
        assert [one.token_id for one in answer.prompt_logprobs] == PROMPT[1:]
    nothing_leaks(llm)


def test_one_beam_is_greedy_decoding(llm: LLM) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    search = SamplingParams(beam=BeamParams(width=1), max_tokens=12, ignore_eos=True)
    first, second = (llm.generate([PROMPT], one, use_tqdm=False)[0].outputs[0] for one in (greedy, search))
    assert first.token_ids == second.token_ids and first.text == second.text
    nothing_leaks(llm)


def test_beams_come_best_first_with_their_scores(llm: LLM) -> None:
    beam = BeamParams(width=4, length_penalty=2.0)
    sampling = SamplingParams(beam=beam, n=3, max_tokens=10, ignore_eos=True)
    (found,) = llm.generate([PROMPT], sampling, use_tqdm=False)
    scores = [answer.beam_score for answer in found.outputs]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)  # type: ignore[type-var]
    for answer in found.outputs:
        assert answer.finish_reason == "length" and len(answer.token_ids) == 10
        assert answer.beam_score == pytest.approx(answer.cumulative_logprob / 10**2)
    assert found.finished and 2 + 4 >= found.metrics.blocks_used > 3
    nothing_leaks(llm)


def test_stop_tokens_end_beams_and_min_tokens_delays_them(llm: LLM) -> None:
    search = SamplingParams(beam=BeamParams(width=3), n=3, max_tokens=10, ignore_eos=True)
    (free,) = llm.generate([PROMPT], search, use_tqdm=False)
    stop = free.outputs[0].token_ids[2]
    ending = SamplingParams(
        beam=BeamParams(width=3, early_stopping=True),
        n=3,
        max_tokens=10,
        stop_token_ids=(stop,),
        ignore_eos=True,
    )
    (found,) = llm.generate([PROMPT], ending, use_tqdm=False)
    ended = [answer for answer in found.outputs if answer.finish_reason == "stop"]
    assert ended and all(answer.token_ids.index(stop) == len(answer.token_ids) - 1 for answer in ended)
    late = SamplingParams(
        beam=BeamParams(width=3, early_stopping=True), n=3, max_tokens=10, min_tokens=8, stop_token_ids=(stop,),
        ignore_eos=True,
    )  # fmt: skip
    (found,) = llm.generate([PROMPT], late, use_tqdm=False)
    assert all(len(answer.token_ids) >= 8 for answer in found.outputs)
    nothing_leaks(llm)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_search_ends_when_one_of_its_answers_is_aborted(llm: LLM, steps: int) -> None:
    search = SamplingParams(beam=BeamParams(width=4), n=2, max_tokens=30, ignore_eos=True)
    answers = llm.session.add_choices(llm.session.prepare(PROMPT, search))
    for _ in range(steps):
        llm.session.step()
    llm.session.abort(answers[:1])
    assert [answer.finish_reason for answer in answers] == [FinishReason.ABORT] * 2
    nothing_leaks(llm)


def test_what_can_never_run_is_refused_with_the_flag(llm: LLM) -> None:
    for sampling, what in (
        (SamplingParams(n=9), "--max-num-seqs"),
        (SamplingParams(beam=BeamParams(width=9)), "--max-num-seqs"),
    ):
        with pytest.raises(RequestError, match=what):
            llm.generate([PROMPT], sampling, use_tqdm=False)
    with pytest.raises(ContextLengthError, match="for each of 8 beams") as caught:
        llm.generate([PROMPT], SamplingParams(beam=BeamParams(width=8), max_tokens=200), use_tqdm=False)
    assert caught.value.param == "--kv-cache-memory-bytes"
    for sampling in (SamplingParams(n=2), SamplingParams(beam=BeamParams(width=2))):
        with pytest.raises(RequestError, match="a stream is of one sampled answer"):
            next(llm.stream(PROMPT, sampling))
    with pytest.raises(RequestError, match="beam width"):
        SamplingParams(beam=BeamParams(width=2), n=3)
    nothing_leaks(llm)


def test_a_search_needs_blocks_that_can_be_shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tiny_models.write_llama(tmp_path_factory.mktemp("tiny"), max_model_len=128)
    llm = LLM(str(folder), num_blocks=40, allocator="reserved", enable_prefix_caching=False, threads=1)
    with pytest.raises(RequestError, match="--allocator paged"):
        llm.generate([PROMPT], SamplingParams(beam=BeamParams(width=2)), use_tqdm=False)
    sampling = SamplingParams(n=2, seed=3, max_tokens=4, ignore_eos=True)
    (several,) = llm.generate([PROMPT], sampling, use_tqdm=False)
    assert len({tuple(answer.token_ids) for answer in several.outputs}) == 2
