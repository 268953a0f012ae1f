"""Chats and completions as the `openai` package asks for them."""

import asyncio
from typing import Any

import openai
import pytest

from tokenix.syscalls.inproc import Syscalls
from tokenix.tests.gateway.house import HELLO, MODEL, Gateway


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"model": MODEL, "messages": HELLO, "max_tokens": 8, "temperature": 0, **fields}
    return client.chat.completions.create(**fields)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"model": MODEL, "prompt": "1, 2, 3,", "temperature": 0, **fields}
    return client.completions.create(**fields)


def stream_text(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_a_chat(client: openai.OpenAI, k: Syscalls) -> None:
    answer = ask(client)
    expected = k.spawn(HELLO, max_tokens=8)
    assert answer.choices[0].message.content == "".join(k.stream(expected))
    k.wait(expected)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(k.tokenize(HELLO))
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.object == "chat.completion" and answer.model == MODEL
    assert answer.id.startswith("chatcmpl-") and answer.system_fingerprint.startswith("fp_")


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    whole = ask(client).choices[0].message.content
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert stream_text(chunks) == whole
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_async_client(gateway: Gateway) -> None:
    async def story() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{gateway.url}/v1", api_key="none", max_retries=0
        ) as client:

            async def one() -> str:
                stream = await client.chat.completions.create(
                    model=MODEL, messages=HELLO, max_tokens=6, temperature=0, stream=True
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            return list(await asyncio.gather(*(one() for _ in range(4))))

    assert len(set(asyncio.run(story()))) == 1


def test_usage_in_every_chunk(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(ask(client, stream=True, stream_options=options, max_tokens=4))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 4
    assert len({chunk.usage.prompt_tokens for chunk in chunks}) == 1


def test_cached_tokens_are_reported(client: openai.OpenAI) -> None:
    ask(client)
    details = ask(client).usage.prompt_tokens_details
    assert details.cached_tokens >= 16


def test_timings_are_reported(client: openai.OpenAI) -> None:
    timings = ask(client).timings
    assert timings["predicted_n"] == 8 and timings["predicted_ms"] > 0
    assert {"queue_ms", "prompt_ms", "swapped_ms", "preemptions", "cache_n"} <= set(timings)


def test_seeds(client: openai.OpenAI) -> None:
    def draw(seed: int | None) -> str:
        answer = ask(client, temperature=1.5, seed=seed, max_tokens=12)
        return str(answer.choices[0].message.content)

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in range(3)}) > 1
    assert draw(-7) == draw(-7)


def test_several_answers_share_their_prompt(client: openai.OpenAI, k: Syscalls) -> None:
    before = k.vmstat()
    answer = ask(client, n=4, temperature=1.2, seed=5, max_tokens=6)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert answer.usage.prompt_tokens == len(k.tokenize(HELLO))
    assert answer.usage.completion_tokens <= 24
    again = ask(client, n=4, temperature=1.2, seed=5, max_tokens=6)
    assert texts == [choice.message.content for choice in again.choices]
    assert k.vmstat()["spawned"] - before["spawned"] == 8
    assert again.timings["prompt_n"] <= 4, "all but the last token of the prompt is there"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_tokens": 4}, "length"),
        ({"max_tokens": 1}, "length"),
        ({"max_tokens": 40, "stop": [" 8"]}, "stop"),
    ],
)
def test_several_answers_end_as_they_say(
    client: openai.OpenAI, k: Syscalls, options: dict[str, Any], reason: str
) -> None:
    """In the kernel's records too, the forked ones like the first."""
    before = k.vmstat()
    answer = complete(client, prompt="1, 2, 3, 4, 5,", n=3, **options)
    assert [choice.finish_reason for choice in answer.choices] == [reason] * 3
    ends = {name: count for name, count in k.vmstat().items() if name.startswith("exits.")}
    grown = {name: count - before.get(name, 0) for name, count in ends.items()}
    assert {name: count for name, count in grown.items() if count} == {f"exits.{reason}": 3}


def test_several_answers_of_one_token(client: openai.OpenAI) -> None:
    """The first has ended before the others begin."""
    answer = ask(client, n=3, max_tokens=1)
    assert len(answer.choices) == 3
    assert len({choice.message.content for choice in answer.choices}) == 1


def test_several_answers_stream_side_by_side(client: openai.OpenAI) -> None:
    texts: dict[int, str] = {}
    ends: dict[int, str] = {}
    for chunk in ask(client, n=3, max_tokens=5, stream=True):
        choice = chunk.choices[0]
        assert choice.index not in ends
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
    assert set(texts) == set(ends) == {0, 1, 2}
    assert len(set(texts.values())) == 1, "greedy ones say the same"


def test_stop_strings(client: openai.OpenAI) -> None:
    whole = complete(client, max_tokens=20).choices[0]
    assert "6" in whole.text
    cut = complete(client, max_tokens=20, stop=["6"]).choices[0]
    assert cut.text == whole.text.partition("6")[0]
    assert cut.finish_reason == "stop" and cut.stop_reason == "6"
    text = "".join(
        chunk.choices[0].text for chunk in complete(client, max_tokens=20, stop="6", stream=True)
    )
    assert text == cut.text


def test_stop_tokens(client: openai.OpenAI, k: Syscalls) -> None:
    whole = complete(client, max_tokens=20).choices[0].text
    (six,) = k.tokenize("6", raw=True)
    cut = complete(client, max_tokens=20, extra_body={"stop_token_ids": [six]}).choices[0]
    assert cut.text == whole.partition("6")[0]
    assert cut.finish_reason == "stop" and cut.stop_reason == six


def test_min_tokens_and_ignore_eos(client: openai.OpenAI, k: Syscalls) -> None:
    eos = k.model().eos_tokens[0]
    bias = {str(eos): 100}
    assert ask(client, logit_bias=bias).usage.completion_tokens == 1
    assert ask(client, logit_bias=bias, extra_body={"min_tokens": 4}).usage.completion_tokens == 5
    ignoring = ask(client, logit_bias=bias, extra_body={"ignore_eos": True})
    assert ignoring.usage.completion_tokens == 8
    assert ignoring.choices[0].finish_reason == "length"


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=3, max_tokens=5)
    content = answer.choices[0].logprobs.content
    assert len(content) == 5
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token, "greedy takes the likeliest"
        assert entry.logprob <= 0 and bytes(entry.bytes).decode() == entry.token
    streamed = [
        entry
        for chunk in ask(client, logprobs=True, top_logprobs=3, max_tokens=5, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == content


def test_completion_logprobs(client: openai.OpenAI) -> None:
    choice = complete(client, logprobs=2, max_tokens=6).choices[0]
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 6
    assert all(len(top) == 2 for top in logprobs.top_logprobs)
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)


PROMPTS: dict[str, tuple[Any, int]] = {
    "a text": ("1, 2,", 1),
    "texts": (["1, 2,", "a, b,"], 2),
    "tokens": ([33, 28, 216], 1),
    "lists of tokens": ([[33, 28], [216, 34]], 2),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_of_completions(client: openai.OpenAI, name: str) -> None:
    prompt, count = PROMPTS[name]
    answer = complete(client, prompt=prompt, max_tokens=3)
    assert [choice.index for choice in answer.choices] == list(range(count))
    assert all(choice.text for choice in answer.choices)


def test_prompts_times_answers(client: openai.OpenAI) -> None:
    answer = complete(client, prompt=["1, 2,", "a, b,"], n=2, max_tokens=3)
    texts = [choice.text for choice in answer.choices]
    assert len(texts) == 4 and texts[0] == texts[1] != texts[2] == texts[3]


def test_a_completion_has_16_tokens(client: openai.OpenAI) -> None:
    assert complete(client, extra_body={"ignore_eos": True}).usage.completion_tokens == 16


def test_penalties_and_cuts(client: openai.OpenAI) -> None:
    plain = complete(client, max_tokens=8).choices[0].text
    extra = {"repetition_penalty": 1.8}
    assert complete(client, max_tokens=8, extra_body=extra).choices[0].text != plain
    cut = {"top_k": 1, "min_p": 0.1}
    one = complete(client, temperature=2, max_tokens=8, extra_body=cut).choices[0].text
    assert one == complete(client, max_tokens=8).choices[0].text, (
        "the likeliest is all that is left"
    )
    complete(client, max_tokens=4, presence_penalty=1.5, frequency_penalty=-1.5, top_p=0.5)


def test_content_in_parts(client: openai.OpenAI) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Say hello."}]}]
    assert ask(client, messages=parts).choices == ask(client).choices
    developer = [{"role": "developer", "content": "Be brief."}, *HELLO]
    system = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert ask(client, messages=developer).choices == ask(client, messages=system).choices


TIERS = [
    (None, "default", "stream"),
    ("auto", "default", "stream"),
    ("flex", "flex", "batch"),
    ("priority", "priority", "interactive"),
]


@pytest.mark.parametrize(("asked", "told", "qos"), TIERS)
def test_tiers_are_classes(
    client: openai.OpenAI, k: Syscalls, asked: str | None, told: str, qos: str
) -> None:
    more = {} if asked is None else {"service_tier": asked}
    body = {"priority": 7, "reader_tokens_per_s": 3.0}
    stream = ask(client, stream=True, max_tokens=200, extra_body=body, **more)
    first = next(iter(stream))
    (process,) = k.ps()
    assert first.service_tier == told
    assert process.qos == qos and process.nice == 7
    stream.close()


def test_what_is_not_needed_is_ignored(client: openai.OpenAI) -> None:
    ask(client, user="me", metadata={"a": "b"}, store=True, extra_body={"no_such_field": [1, 2]})


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt/5")
    assert caught.value.code == "model_not_found"
