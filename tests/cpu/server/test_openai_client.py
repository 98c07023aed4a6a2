"""The openai package, as its users call it, against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

openai = pytest.importorskip("openai")

from server_process import ServerProcess  # noqa: E402

MESSAGES = [{"role": "user", "content": "a b c"}]
LONG = {"ignore_eos": True}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}, "celsius": {"type": "boolean"}},
            "required": ["city", "celsius"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_and_its_stream_say_the_same(client: Any) -> None:
    ask = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "seed": 7, "temperature": 0.8}
    whole = client.chat.completions.create(**ask, extra_body=LONG)
    assert whole.object == "chat.completion"
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 12
    assert whole.usage.prompt_tokens_details.cached_tokens is not None
    stream = client.chat.completions.create(
        **ask, stream=True, stream_options={"include_usage": True}, extra_body=LONG
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens >= 0


def test_a_completion_and_its_stream_say_the_same(client: Any) -> None:
    ask = {"model": "tiny", "prompt": "a b c", "max_tokens": 9, "temperature": 0}
    whole = client.completions.create(**ask, logprobs=2, extra_body=LONG)
    assert whole.object == "text_completion"
    logprobs = whole.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 9
    assert all(len(top) >= 1 and max(top.values()) <= 0 for top in logprobs.top_logprobs)
    chunks = list(client.completions.create(**ask, stream=True, extra_body=LONG))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert len(chunks) == 9, "a chunk a token"


def test_choices_are_those_of_seeds_in_a_row(client: Any) -> None:
    ask = {"model": "tiny", "prompt": "a b", "max_tokens": 8}
    three = client.completions.create(**ask, n=3, seed=40, extra_body=LONG)
    alone = [
        client.completions.create(**ask, seed=seed, extra_body=LONG).choices[0].text for seed in (40, 41, 42)
    ]
    assert [choice.text for choice in three.choices] == alone
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert three.usage.completion_tokens == 24
    assert three.usage.prompt_tokens == 3, "a prompt counts once, however many answers it gets"


def test_streams_of_several_choices_are_told_apart(client: Any) -> None:
    ask = {"model": "tiny", "prompt": ["a b", "c"], "max_tokens": 5, "temperature": 0}
    whole = client.completions.create(**ask, extra_body=LONG)
    texts = ["", ""]
    for chunk in client.completions.create(**ask, stream=True, extra_body=LONG):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_a_stream_of_n_choices_shares_the_prompt(client: Any, server: ServerProcess) -> None:
    forked = server.metric("prompt_tokens_total")
    ask = {"model": "tiny", "prompt": "a b c d", "max_tokens": 6, "seed": 3}
    whole = client.completions.create(**ask, n=4, extra_body=LONG)
    texts = [""] * 4
    usage = None
    stream = client.completions.create(
        **ask, n=4, stream=True, stream_options={"include_usage": True}, extra_body=LONG
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert usage is not None and usage.completion_tokens == 24
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert server.metric("prompt_tokens_total") - forked == 2 * usage.prompt_tokens, (
        "one prefill for all choices"
    )


def test_the_metric_counts_blocks_that_choices_share(client: Any, server: ServerProcess) -> None:
    ask = {"model": "tiny", "prompt": "a b c d " * 20, "max_tokens": 400, "n": 5, "stream": True}
    saved = []
    with client.completions.create(**ask, extra_body=LONG) as stream:
        for number, _ in enumerate(stream):
            if number in (20, 60, 100):
                saved.append(server.metric("kv_shared_blocks_saved"))
            if number > 100:
                break
    assert max(saved) >= 4, "each full block of the prompt has five entries and is one block"
    server.wait_until_idle()
    assert server.metric("kv_shared_blocks_saved") == 0


def test_best_of_tells_the_likeliest_of_those_that_n_tells(client: Any) -> None:
    ask = {"model": "tiny", "prompt": "a b c d", "max_tokens": 6, "seed": 3, "temperature": 1.5}
    every = client.completions.create(**ask, n=5, logprobs=0, extra_body=LONG)
    ranked = sorted(every.choices, key=lambda choice: -sum(choice.logprobs.token_logprobs))
    best = client.completions.create(**ask, n=2, best_of=5, extra_body=LONG)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.choices[0].logprobs is None, "nobody asked"
    assert best.usage.completion_tokens == 30, "all that were generated"


def test_chats_have_several_choices_too(client: Any) -> None:
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 5, "seed": 1}
    whole = client.chat.completions.create(**ask, n=3, extra_body=LONG)
    assert len({choice.message.content for choice in whole.choices}) == 3
    texts = [""] * 3
    for chunk in client.chat.completions.create(**ask, n=3, stream=True, extra_body=LONG):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_a_beam_search_finds_likelier_answers_than_greedy_decoding(client: Any) -> None:
    ask = {"model": "tiny", "prompt": "a b c d", "max_tokens": 8}
    greedy = client.completions.create(**ask, temperature=0, logprobs=0, extra_body=LONG)
    search = {**LONG, "use_beam_search": True, "best_of": 6}
    beams = client.completions.create(**ask, n=3, extra_body=search)
    assert [choice.index for choice in beams.choices] == [0, 1, 2]
    assert len({choice.text for choice in beams.choices}) == 3
    assert [choice.finish_reason for choice in beams.choices] == ["length"] * 3
    assert beams.usage.completion_tokens == 24 and beams.usage.prompt_tokens == greedy.usage.prompt_tokens
    one = client.completions.create(**ask, n=1, extra_body={**search, "best_of": 1})
    assert one.choices[0].text == greedy.choices[0].text, "one beam is greedy decoding"
    with_ids = client.completions.create(**ask, extra_body={**search, "return_token_ids": True}).choices[0]
    assert with_ids.text == beams.choices[0].text
    ids = with_ids.model_extra["prompt_token_ids"] + with_ids.model_extra["token_ids"]
    told = {**ask, "prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}
    again = client.completions.create(**told).choices[0].logprobs.token_logprobs
    assert sum(again[-8:]) > sum(greedy.choices[0].logprobs.token_logprobs) - 1e-3


def test_diverse_groups_differ_in_a_chat(client: Any) -> None:
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "n": 4}
    search = {**LONG, "use_beam_search": True, "num_beam_groups": 4, "diversity_penalty": 100.0}
    answers = client.chat.completions.create(**ask, extra_body={**search, "return_token_ids": True})
    firsts = [choice.model_extra["token_ids"][0] for choice in answers.choices]
    assert len(set(firsts)) == 4, "a strong penalty leaves no token to two groups"


def test_many_asynchronous_clients_get_their_own_answers(server: ServerProcess) -> None:
    async def ask(client: Any, number: int) -> str:
        pieces = []
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": f"a{number}"}],
            max_tokens=20,
            seed=number,
            stream=True,
            extra_body=LONG,
        )
        async for chunk in stream:
            pieces += [choice.delta.content or "" for choice in chunk.choices]
        return "".join(pieces)

    async def together() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            at_once = await asyncio.gather(*(ask(client, number) for number in range(12)))
            return list(at_once), [await ask(client, number) for number in range(12)]

    at_once, alone = asyncio.run(together())
    assert at_once == alone


def test_json_schema(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "nice": {"type": "boolean"}},
        "required": ["colour", "nice"],
        "additionalProperties": False,
    }
    for seed in range(3):
        answer = client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=400,
            seed=seed,
            response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
        )
        assert answer.choices[0].finish_reason == "stop"
        value = json.loads(answer.choices[0].message.content)
        assert set(value) == {"colour", "nice"}
        assert value["colour"] in ("red", "blue")
        assert isinstance(value["nice"], bool)


@pytest.mark.parametrize(
    "outputs",
    [{"choice": ["yes", "no"]}, {"regex": "yes|no"}, {"grammar": 'start: "yes" | "no"'}],
    ids=lambda outputs: next(iter(outputs)),
)
def test_structured_outputs(client: Any, outputs: dict[str, Any]) -> None:
    answer = client.completions.create(
        model="tiny", prompt="a b", max_tokens=8, seed=3, extra_body={"structured_outputs": outputs}
    )
    assert answer.choices[0].text in ("yes", "no")
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_forced_tool_call(client: Any, choice: Any) -> None:
    ask = {
        "model": "tiny", "messages": MESSAGES, "tools": [WEATHER], "tool_choice": choice, "max_tokens": 600,
        "seed": 11, "parallel_tool_calls": False,
    }  # fmt: skip
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].finish_reason == "tool_calls"
    (call,) = whole.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Paris", "Oslo")
    assert isinstance(arguments["celsius"], bool)
    assert whole.choices[0].message.content is None
    chunks = list(client.chat.completions.create(**ask, stream=True))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    (told,) = [call for delta in deltas for call in delta.tool_calls or ()]
    assert json.loads(told.function.arguments) == arguments
    assert not "".join(delta.content or "" for delta in deltas).strip()


def test_tools_that_need_not_be_called(client: Any) -> None:
    ask = {"model": "tiny", "messages": MESSAGES, "max_tokens": 5, "seed": 1}
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(**ask, tools=[WEATHER], tool_choice=choice, extra_body=LONG)
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].message.content


def test_a_conversation_with_a_call_in_it(client: Any) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
    }
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "cold"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, tools=[WEATHER])
    assert answer.usage.completion_tokens <= 4


def test_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert model.max_model_len == 2048
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_mistakes_are_the_clients_exceptions(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="maximum context length") as found:
        client.completions.create(model="tiny", prompt="a", max_tokens=5000)
    assert found.value.param == "input_tokens"
    with pytest.raises(openai.NotFoundError, match="other"):
        client.completions.create(model="other", prompt="a")


def test_an_answer_whose_constraint_gave_up_is_no_answer(client: Any) -> None:
    """The grammar is taken, and after its second token there is more to follow than may be looked at."""
    outputs = {"grammar": 'start: "zz" | "xx" ' + " ".join(['"a"?'] * 3000)}
    ask = {"model": "tiny", "prompt": "a", "max_tokens": 9, "logit_bias": {"120": 50}}
    ask["extra_body"] = {"structured_outputs": outputs}
    whole = client.completions.create(**ask)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("xx", "error")
    chunks = list(client.completions.create(**ask, stream=True))
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "error"
