"""Does the cache change what the model says?  Greedy float32 answers with the cache on and off.

    RADIXD_DATA=data .venv/bin/python bench/parity.py --prompts 50

Prompts are real conversations (tau-bench, MT-Bench), cut to at most 700 tokens, each asked turn by
turn so that later turns hit what earlier ones computed.  The reference computes every prompt alone
and in one piece, with the cache off.  Against it: turns one after the other; all at once, so that
followers join their leader's step; and all at once in small chunks.

A difference is allowed where the model itself is undecided: the two best tokens' logits, computed
by the plain model, must be within 1e-3.  Each is shown.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from radixd.actors.engine import Engine
from radixd.actors.generation import GenerationParams, TokenPrompt, TokenUsage
from radixd.settings import Settings
from radixd.text.tokenizers import Tokenizer

PROMPT_TOKENS_MAX = 700
TURN_TOKENS = (250, 450, PROMPT_TOKENS_MAX)
"""Where a long conversation is cut into turns."""
ANSWER = GenerationParams(max_tokens=16, temperature=0.0, ignore_eos=True)
GAP_MAX = 1e-3

SETTINGS = Settings(dtype="float32", kv_memory=2 << 30)
OFF = msgspec.structs.replace(SETTINGS, disable_cache=True, max_running=1)
ON = msgspec.structs.replace(SETTINGS, max_running=32)
CHUNKED = msgspec.structs.replace(ON, max_step_tokens=96)


class Answered(msgspec.Struct, frozen=True):
    """What one prompt got."""

    ids: tuple[int, ...]
    usage: TokenUsage


class Comparison(msgspec.Struct, frozen=True):
    """One way of running all prompts against the reference."""

    name: str
    equal: int
    different: tuple[int, ...]
    """Numbers of the prompts whose answers differ."""
    cached_tokens: int
    in_flight_tokens: int


def conversations(data: Path) -> Iterator[list[dict[str, str]]]:
    """Yield conversations from the data sets under *data*, alternating between them."""
    trajectories = json.loads((data / "tau_bench" / "gpt-4o-airline.json").read_text())
    questions = (data / "mt_bench" / "mt_bench_question.jsonl").read_text().splitlines()
    for trajectory, line in zip(trajectories, questions, strict=False):
        yield [
            {"role": message["role"], "content": message["content"]}
            for message in trajectory["traj"]
            if message["role"] in ("user", "assistant") and message.get("content")
        ]
        yield [{"role": "user", "content": turn} for turn in json.loads(line)["turns"]]


def turns(conversation: list[dict[str, str]], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the prompts of *conversation*, each a beginning of the next, as token ids."""
    text = "".join(
        f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
        for message in conversation
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    lengths = sorted({min(length, len(ids)) for length in TURN_TOKENS})
    return [tuple(ids[:length]) for length in lengths]


def prompts(data: Path, tokenizer: Tokenizer, count: int) -> list[tuple[int, ...]]:
    """Return the first *count* prompts, turns of one conversation after each other."""
    chosen: list[tuple[int, ...]] = []
    for conversation in conversations(data):
        chosen += turns(conversation, tokenizer)
        if len(chosen) >= count:
            return chosen[:count]
    raise SystemExit(f"{data} holds {len(chosen)} prompts, not {count}")


async def ask(engine: Engine, prompt: Sequence[int]) -> Answered:
    """Return the answer to *prompt*."""
    ids: list[int] = []
    async for piece in engine.generate(TokenPrompt(tuple(prompt)), ANSWER):
        ids += piece.token_ids
    return Answered(tuple(ids), piece.usage)


async def one_by_one(settings: Settings, asked: list[tuple[int, ...]]) -> list[Answered]:
    """Ask each prompt when the one before it is answered."""
    async with Engine(settings, say=_say) as engine:
        return [await ask(engine, prompt) for prompt in asked]


async def all_at_once(settings: Settings, asked: list[tuple[int, ...]]) -> list[Answered]:
    """Ask all prompts together."""
    async with Engine(settings, say=_say) as engine:
        return list(await asyncio.gather(*(ask(engine, prompt) for prompt in asked)))


async def compare(data: Path, count: int) -> tuple[list[Comparison], list[str]]:
    """Return the comparisons, and a line for each difference that the model did decide."""
    async with Engine(OFF, say=_say) as engine:
        asked = prompts(data, engine.tokenizer, count)
        reference = [await ask(engine, prompt) for prompt in asked]
    runs = {
        "one by one": await one_by_one(ON, asked),
        "all at once": await all_at_once(ON, asked),
        "in chunks": await all_at_once(CHUNKED, asked),
    }
    comparisons, wrong = [], []
    for name, answers in runs.items():
        different = tuple(
            number
            for number, (answer, expected) in enumerate(zip(answers, reference, strict=True))
            if answer.ids != expected.ids
        )
        for number in different:
            fork = _fork(answers[number].ids, reference[number].ids)
            gap = _gap((*asked[number], *reference[number].ids[:fork]))
            line = f"{name}: prompt {number} differs at token {fork}, top-2 gap {gap:.2e}"
            print(line)
            if gap >= GAP_MAX:
                wrong.append(line)
        comparisons.append(
            Comparison(
                name=name,
                equal=len(asked) - len(different),
                different=different,
                cached_tokens=sum(answer.usage.cached_tokens for answer in answers),
                in_flight_tokens=sum(answer.usage.in_flight for answer in answers),
            )
        )
    return comparisons, wrong


def _fork(one: Sequence[int], other: Sequence[int]) -> int:
    return next(i for i, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])


def _gap(context: Sequence[int]) -> float:
    """Return how far the plain model's two best next tokens are apart, as logits."""
    import torch  # Only a difference needs it in this process.

    from radixd.workers.pytorch.loading import plain_model

    model: Any = plain_model(SETTINGS, _say)
    with torch.inference_mode():
        logits = model(torch.tensor([list(context)])).logits[0, -1].float()
    best = torch.topk(logits, 2).values
    return float(best[0] - best[1])


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def main() -> int:
    """Run all three ways; 1 if an answer differs where the model was decided."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--equal-min", type=int, help="answers that must be equal each way")
    chosen = parser.parse_args()
    data = os.environ.get("RADIXD_DATA")
    if data is None:
        parser.error("RADIXD_DATA must name the folder that holds tau_bench and mt_bench")
    comparisons, wrong = asyncio.run(compare(Path(data), chosen.prompts))
    for comparison in comparisons:
        print(
            f"{comparison.name:12} {comparison.equal} of {chosen.prompts} equal, "
            f"{comparison.cached_tokens} prompt tokens cached, "
            f"{comparison.in_flight_tokens} of them in flight"
        )
    least = chosen.equal_min if chosen.equal_min is not None else chosen.prompts * 96 // 100
    return 1 if wrong or any(c.equal < least for c in comparisons) else 0


if __name__ == "__main__":
    sys.exit(main())
