"""Time to first token of a 2,000-token prompt, cold and cached, in one run.

    .venv/bin/python bench/ttft.py

Each round has a prompt of its own: asked once it is cold, asked again it is cached but for its last
token.  Times are taken where the engine's caller sees the first piece.  One uncounted round comes
first, so that no time holds a first use of threads, memory or kernels.
"""

import argparse
import asyncio
import statistics
import sys
import time

from radixd.actors.engine import Engine
from radixd.actors.generation import GenerationParams, TokenPrompt
from radixd.settings import Settings

ONE_TOKEN = GenerationParams(max_tokens=1, temperature=0.0, ignore_eos=True)


async def first_token(engine: Engine, prompt: TokenPrompt) -> tuple[float, int]:
    """Return the seconds to the first token, and how many prompt tokens were cached."""
    begun = time.perf_counter()
    async for piece in engine.generate(prompt, ONE_TOKEN):
        return time.perf_counter() - begun, piece.usage.cached_tokens
    raise AssertionError("an answer without a token")


async def measure(rounds: int, length: int) -> int:
    """Print a line a round and the medians; 1 if something was cached that must not be."""
    cold: list[float] = []
    cached: list[float] = []
    async with Engine(Settings(), say=lambda text: print(text, file=sys.stderr)) as engine:
        print(f"{engine.model.name}, {engine.model.dtype} on {engine.model.device}")
        for number in range(rounds + 1):
            prompt = TokenPrompt((1000 + number, *(2000 + i % 997 for i in range(length - 1))))
            first, hit_first = await first_token(engine, prompt)
            again, hit_again = await first_token(engine, prompt)
            print(
                f"{'warm-up' if number == 0 else f'round {number}'}: "
                f"cold {first * 1e3:.1f} ms ({hit_first} cached), "
                f"cached {again * 1e3:.1f} ms ({hit_again} cached)"
            )
            if hit_first or hit_again < length - engine.model.page_size:
                return 1
            if number:
                cold.append(first)
                cached.append(again)
    ratio = statistics.median(cold) / statistics.median(cached)
    print(
        f"{length} tokens: cold {statistics.median(cold) * 1e3:.1f} ms, "
        f"cached {statistics.median(cached) * 1e3:.1f} ms, {ratio:.1f} times faster"
    )
    return 0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2000)
    chosen = parser.parse_args()
    return asyncio.run(measure(chosen.rounds, chosen.tokens))


if __name__ == "__main__":
    sys.exit(main())
