"""Tokens per second of a language model behind `vkep.ray.generation`: one client, then many."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import numpy as np

from tools.bench.scale.cluster import QUIET, cluster, serving


async def stream(session: Any, url: str, prompt: list[int], tokens: int) -> tuple[int, float, float]:
    """Tokens of an answer, seconds to its first event, seconds to its end."""
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.monotonic()
    first, made = 0.0, 0
    async with session.post(url, json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            first = first or time.monotonic() - started
            if line.startswith(b"data: {"):
                made = json.loads(line[6:]).get("usage", {}).get("completion_tokens", made)
    return made, first, time.monotonic() - started


async def ask(url: str, clients: int, answers: int, length: int, tokens: int) -> tuple[float, float]:
    """Tokens per second of ``clients`` that each ask for ``answers``, and the median seconds to an answer's first token."""
    import aiohttp

    rng = np.random.default_rng(clients)

    async def client(session: Any, count: int) -> list[tuple[int, float, float]]:
        prompts = [[int(t) for t in rng.integers(1, 200, length)] for _ in range(count)]
        return [await stream(session, url, prompt, tokens) for prompt in prompts]

    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        started = time.monotonic()
        found = [
            one for many in await asyncio.gather(*(client(session, answers) for _ in range(clients))) for one in many
        ]
        seconds = time.monotonic() - started
    return sum(made for made, _, _ in found) / seconds, float(np.median([first for _, first, _ in found]))


def main(arguments: argparse.Namespace) -> int:
    """Print both, and their quotient."""
    from ray import serve

    import vkep.ray

    resources: dict[str, Any] = {} if arguments.gpus else {"ray_actor_options": {"num_cpus": 1}}
    with cluster(4, arguments.threads, 1 if arguments.gpus else None), serving() as port:
        serve.run(
            vkep.ray.generation(
                arguments.folder,
                num_gpus=int(arguments.gpus),
                max_sequences=arguments.clients,
                logging_config=QUIET,
                **resources,
            )
        )
        url = f"http://127.0.0.1:{port}/v1/completions"
        shape = (arguments.prompt, arguments.tokens)
        asyncio.run(ask(url, arguments.clients, 1, *shape))  # shaders, and caches for that many sequences
        asyncio.run(ask(url, 1, 1, *shape))
        one, first_of_one = asyncio.run(ask(url, 1, 3, *shape))
        many, first_of_many = asyncio.run(ask(url, arguments.clients, 3, *shape))
    print(f"1 client: {one:.1f} tokens/s, first after {first_of_one * 1000:.0f} ms")
    print(f"{arguments.clients} clients: {many:.1f} tokens/s, first after {first_of_many * 1000:.0f} ms")
    print(f"quotient: {many / one:.1f}", flush=True)
    return 0
