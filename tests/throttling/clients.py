"""How people call an API with each library: no retries of its own, and an exception for whatever went wrong.

Libraries of thousands of classes are imported where they are used: every worker imports this, few call with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeAlias

import aiohttp
import httpx
import requests

Plain: TypeAlias = Callable[[str], object]
Asynchronous: TypeAlias = Callable[[str], Awaitable[object]]

PATIENCE = 240.0
ASKED: Any = [{"role": "user", "content": "How many?"}]


def with_httpx(url: str) -> None:
    httpx.get(url, timeout=PATIENCE, trust_env=False).raise_for_status()


async def with_async_httpx(url: str) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as client:
        (await client.get(url)).raise_for_status()


def with_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        session.get(url, timeout=PATIENCE).raise_for_status()


async def with_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url) as response:
        await response.read()


def with_openai(url: str) -> None:
    import openai

    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        client.chat.completions.create(model="any", messages=ASKED)


async def with_async_openai(url: str) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        await client.chat.completions.create(model="any", messages=ASKED)


def with_anthropic(url: str) -> None:
    import anthropic

    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        client.messages.create(model="any", max_tokens=1, messages=ASKED)


async def with_async_anthropic(url: str) -> None:
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        await client.messages.create(model="any", max_tokens=1, messages=ASKED)


def with_botocore(url: str) -> None:
    client = aws("dynamodb", url)
    try:
        client.list_tables()
    finally:
        client.close()


@cache
def _session() -> Any:
    import botocore.session  # type: ignore[import-untyped] # it has no types

    return botocore.session.Session()


def aws(service: str, url: str) -> Any:
    """A client of one of Amazon's services, as it is found on loopback."""
    import botocore.config  # type: ignore[import-untyped] # it has no types

    return _session().create_client(
        service,
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=botocore.config.Config(
            retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, proxies={}
        ),
    )


PLAIN: dict[str, Plain] = {
    "httpx": with_httpx,
    "requests": with_requests,
    "openai": with_openai,
    "anthropic": with_anthropic,
    "botocore": with_botocore,
}
ASYNCHRONOUS: dict[str, Asynchronous] = {
    "async httpx": with_async_httpx,
    "aiohttp": with_aiohttp,
    "async openai": with_async_openai,
    "async anthropic": with_async_anthropic,
}
CLIENTS = [*PLAIN, *ASYNCHRONOUS]


def raised(function: Callable[[], object]) -> Exception:
    """What a call raises that does not end well."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 (whatever the library raises is what is looked at)
        return error
    raise AssertionError("the library raised nothing")


def error_of(client: str, url: str) -> Exception:
    """What that library raises for what the far side answers."""
    if client in PLAIN:
        return raised(lambda: PLAIN[client](url))

    async def call() -> None:
        await ASYNCHRONOUS[client](url)

    return raised(lambda: asyncio.run(call()))
