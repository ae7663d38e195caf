"""Real litellm against a stub over real HTTP on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent.llm.litellm_client import LONGEST_WAIT_S, TRIES, LiteLlm
from agent.llm.protocol import (
    ChatError,
    ContextOverflowError,
    LlmSettings,
    NoReplyError,
    Usage,
)
from tests.llm_stub import Answer, LlmStub, refuses, says

ASK = [{"role": "user", "content": "hello"}]


def client(stub: LlmStub, waits: list[float] | None = None, **settings: float) -> LiteLlm:
    return LiteLlm(
        "openai/stub",
        LlmSettings(api_base=stub.api_base, api_key="secret-key", **settings),  # type: ignore[arg-type]
        sleep=(waits if waits is not None else []).append,
    )


def test_a_reply_with_usage_and_an_unknown_price() -> None:
    with LlmStub([says("four", tokens_in=12, tokens_out=3)]) as stub:
        reply = client(stub).complete(ASK, max_tokens=77)
    assert (reply.text, reply.usage, reply.usd) == ("four", Usage(12, 3), None)
    assert reply.cost_source == "unknown"
    assert reply.raw["choices"][0]["message"]["content"] == "four"
    assert stub.requests == [{"model": "stub", "messages": ASK, "max_tokens": 77}]
    assert stub.keys == ["Bearer secret-key"]


def test_configured_prices_win() -> None:
    with LlmStub([says("x", tokens_in=1000, tokens_out=500)]) as stub:
        chat = client(stub, input_usd_per_million=2.0, output_usd_per_million=10.0)
        reply = chat.complete(ASK, 10)
    assert reply.usd == pytest.approx(0.007)
    assert reply.cost_source == "configured"
    assert chat.price(1_000_000, 0) == 2.0


def test_known_models_have_prices_and_a_context_without_network() -> None:
    chat = LiteLlm("openai/gpt-4o", LlmSettings())
    assert chat.context_tokens == 128_000
    assert chat.price(1_000_000, 0) == pytest.approx(2.5)
    assert LiteLlm("openai/stub", LlmSettings(context_tokens=99)).context_tokens == 99
    assert LiteLlm("openai/stub", LlmSettings()).price(1, 1) is None
    assert chat.count_tokens(ASK) > 0


def test_refusals_are_retried_as_the_service_asks() -> None:
    waits: list[float] = []
    script = [
        refuses(429, "slow down", retry_after="7"),
        refuses(500, "oops"),
        refuses(503, "later", retry_after="100000"),
        says("at last"),
    ]
    with LlmStub(script) as stub:
        reply = client(stub, waits).complete(ASK, 10)
    assert reply.text == "at last"
    assert len(stub.requests) == TRIES
    assert waits == [7.0, 2.0, LONGEST_WAIT_S]


def test_a_service_that_stays_down_is_given_up() -> None:
    with LlmStub([refuses(500, "oops")] * TRIES) as stub, pytest.raises(ChatError) as caught:
        client(stub).complete(ASK, 10)
    assert f"cannot be reached after {TRIES} tries" in str(caught.value)
    assert not isinstance(caught.value, NoReplyError)
    assert len(stub.requests) == TRIES


def test_nobody_listening() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        waits: list[float] = []
        chat = LiteLlm("openai/stub", LlmSettings(base, "k"), sleep=waits.append)
        with pytest.raises(ChatError, match="cannot be reached"):
            chat.complete(ASK, 10)
    assert waits == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_other_refusals_are_not_retried_and_never_show_the_key(status: int) -> None:
    with LlmStub([refuses(status, "bad secret-key")]) as stub, pytest.raises(ChatError) as caught:
        client(stub).complete(ASK, 10)
    assert len(stub.requests) == 1
    assert "check model name and key" in str(caught.value)
    assert "secret-key" not in str(caught.value)


def test_a_prompt_that_is_too_long() -> None:
    said = "This model's maximum context length is 100 tokens"
    refusal = refuses(400, said, code="context_length_exceeded")
    with LlmStub([refusal]) as stub, pytest.raises(ContextOverflowError):
        client(stub).complete(ASK, 10)


@pytest.mark.parametrize(
    "body", [b'{"id": "x", "choi', b'{"hello": 1}', b'{"choices": []}', b"<html>", b""]
)
def test_a_malformed_answer_may_have_been_charged_and_is_not_bought_again(body: bytes) -> None:
    with LlmStub([Answer(body=body)]) as stub, pytest.raises(NoReplyError):
        client(stub).complete(ASK, 10)
    assert len(stub.requests) == 1


def test_an_answer_that_never_comes() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        base = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        settings = LlmSettings(base, "k", timeout_s=0.3)
        with pytest.raises(NoReplyError, match=r"did not answer in 0\.3 s"):
            LiteLlm("openai/stub", settings).complete(ASK, 10)


def test_settings_keep_the_key_out_of_sight() -> None:
    assert "secret" not in repr(LlmSettings(api_key="secret"))
    with pytest.raises(ValueError, match="both the price"):
        LlmSettings(input_usd_per_million=1.0)


@pytest.mark.slow
def test_importing_it_reads_no_env_file_and_opens_no_connection(tmp_path: Path) -> None:
    program = """
import socket, sys, os
def refuse(*args): raise AssertionError(f"connects to {args}")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import agent.policies
assert "litellm" not in sys.modules, "imported only when needed"
from agent.llm.litellm_client import LiteLlm
from agent.llm.protocol import LlmSettings
chat = LiteLlm("openai/gpt-4o", LlmSettings())
assert chat.price(1, 1) and chat.count_tokens([{"role": "user", "content": "hi"}])
assert "PLANTED" not in os.environ
"""
    (tmp_path / ".env").write_text("PLANTED=1\n")
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
