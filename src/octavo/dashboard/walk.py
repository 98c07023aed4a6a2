"""The walk: one request from admission to eviction, stop by stop, as the product's own scheduler and allocator play it.

``stops()`` is what the page shows and what ``docs/walkthrough.md`` is written from. Every number in its sentences is
read from an event, from the block table or from the pool; the story itself decides only who asks what, and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from octavo.core.events import Admitted, Copied, Evicted, Finished, Forked, Preempted
from octavo.core.model_spec import DTYPE_BYTES
from octavo.dashboard.walk_pool import CACHE, SPEC, WalkPool, block_bytes
from octavo.memory.sizing import blocks_for
from octavo.simulation.content import Segment, content_key
from octavo.simulation.workloads import PROMPT, SHARED

SIZE = CACHE.block_size
SYSTEM = Segment(content_key(SHARED, 0), 2 * SIZE)
"""The instructions with which some prompts begin."""


WORDS = {
    "token": "a piece of text, about a word long; a model reads and writes one after the other",
    "keys and values": "what a model keeps of each token, in each layer, so that it never computes the past again",
    "slot": "room for one token's keys and values in every layer",
    "block": f"{SIZE} slots here: the unit in which memory is handed out",
    "kv heads": "how many keys and values a layer keeps of a token; each is a list of head size numbers",
    "block table": "for each running request, a row of block numbers in the order of its tokens",
    "prefix": "the beginning of a text; prompts with the same instructions have the same one",
    "step": "one pass of the model, in which every running request gets a token",
    "live": "some request holds the block",
    "cached": "nobody holds the block, and its content can still be found",
    "free": "nothing of use is in the block",
    "preempted": "set back: a running request gives up its memory because an older one needs it, and returns later",
}
"""What the walk takes for known nowhere."""


@dataclass(frozen=True, slots=True)
class Formula:
    """What is computed, with the numbers of the moment."""

    name: str
    expression: str
    result: str


@dataclass(frozen=True, slots=True)
class Stop:
    title: str
    text: tuple[str, ...]
    """Sentences, a paragraph each."""
    step: int
    events: tuple[str, ...]
    """What the scheduler said since the stop before, a line each."""
    blocks: tuple[int, ...]
    """To be highlighted."""
    formula: Formula
    requests: tuple[dict[str, Any], ...]
    """Running ones, oldest first: id, block table, tokens held."""
    waiting: tuple[str, ...]
    cells: tuple[dict[str, Any], ...]
    """Every block: state, holders, slots and how many of them are filled."""
    pool: dict[str, int]


def own(number: int, tokens: int) -> Segment:
    """Text that belongs to one prompt alone."""
    return Segment(content_key(PROMPT, number), tokens)


class Walk:
    """The story. Each method plays on to the next moment and tells of it; they are called in order, once."""

    def __init__(self) -> None:
        self._pool = WalkPool()
        self._fork: Forked | None = None

    def stops(self) -> list[Stop]:
        return [
            self._empty(),
            self._admitted(),
            self._next_block(),
            self._shared(),
            self._copied(),
            self._full(),
            self._preempted(),
            self._recomputed(),
            self._cached(),
            self._hit(),
            self._evicted(),
        ]

    def _stop(self, title: str, text: list[str], blocks: list[int], formula: Formula) -> Stop:
        pool = self._pool
        events = pool.told()
        pool.records.clear()
        state = pool.allocator.state()
        return Stop(
            title=title,
            text=tuple(text),
            step=pool.steps,
            events=tuple(events),
            blocks=tuple(blocks),
            formula=formula,
            requests=tuple(
                {"id": row.request_id, "blocks": list(row.blocks), "tokens": row.computed}
                for row in pool.rows()
            ),
            waiting=tuple(pool.waiting()),
            cells=tuple(pool.cells()),
            pool={"live": state.live, "cached": state.cached, "free": state.free, "total": state.total},
        )

    # ------------------------------------------------------------------ the moments

    def _empty(self) -> Stop:
        total = CACHE.num_blocks
        return self._stop(
            "An empty pool",
            [
                f"Here are {total} blocks. Each has room for the keys and values of {SIZE} tokens, in every layer of"
                f" the model ({SPEC.name}). All are free, and any of them is as good as any other.",
                "A real pool has thousands of blocks, usually of 16 tokens; this one is small enough to watch.",
            ],
            list(range(total)),
            Formula(
                "bytes of a block = 2 × layers × block size × kv heads × head size × bytes per element",
                f"2 × {SPEC.num_layers} × {SIZE} × {SPEC.num_kv_heads} × {SPEC.head_dim}"
                f" × {DTYPE_BYTES[SPEC.kv_dtype]}",
                f"{block_bytes():,} bytes",
            ),
        )

    def _admitted(self) -> Stop:
        prompt = self._pool.ask("A", [SYSTEM, own(0, 2)], 18)
        event = self._pool.step_until_event(Admitted, "A")
        row = self._pool.row("A")
        last = row.computed - (len(row.blocks) - 1) * SIZE
        return self._stop(
            "A request is admitted",
            [
                f"Request A has a prompt of {prompt} tokens. It gets {event.blocks} blocks, those of its prompt and no"
                f" more, and a row in the block table that says in which order they belong: {listed(row.blocks)}.",
                f"The last block is filled by {last} of {SIZE} tokens. Nothing is held for the answer, however long the"
                " client says that it may get.",
            ],
            list(row.blocks),
            Formula(
                "blocks of a prompt = tokens / block size, rounded up",
                f"⌈{prompt} / {SIZE}⌉",
                f"{blocks_for(prompt, SIZE)} blocks, {blocks_for(prompt, SIZE) * block_bytes():,} bytes",
            ),
        )

    def _next_block(self) -> Stop:
        pool = self._pool
        held = len(pool.row("A").blocks)
        pool.step_until(lambda record: len(pool.row("A").blocks) > held)
        row = pool.row("A")
        full, empty = row.blocks[-2], len(row.blocks) * SIZE - row.computed
        return self._stop(
            "A block is full and the next is taken",
            [
                f"A writes one token of its answer a step. When block {full} was full, the next token went to block"
                f" {row.blocks[-1]}, taken at that moment. It need not lie beside the others: the table finds it.",
                f"A now holds {row.computed} tokens in {len(row.blocks)} blocks. What is wasted is the rest of the last"
                f" one, {empty} slots, and never as much as a block.",
            ],
            [full, row.blocks[-1]],
            Formula(
                "empty slots of a sequence = blocks × block size - tokens",
                f"{len(row.blocks)} × {SIZE} - {row.computed}",
                f"{empty} slots, {empty * block_bytes() // SIZE:,} bytes",
            ),
        )

    def _shared(self) -> Stop:
        prompt = self._pool.ask("B", [SYSTEM, own(1, 3)], 8, 3)
        event = self._pool.step_until_event(Admitted, "B-0")
        (self._fork,) = [e for record in self._pool.records for e in record.events if isinstance(e, Forked)]
        a, b = self._pool.row("A"), self._pool.row("B-0")
        both = [block for block in b.blocks if block in a.blocks]
        return self._stop(
            "A second request shares the prefix",
            [
                f"The prompt of B has {prompt} tokens, and its first {event.cached_tokens} are those of A. Full blocks"
                " are found by a hash of what they hold and of all that stands before it, so B points at blocks"
                f" {listed(both)} too. They are not computed again, and they stay where they are.",
                f"Only {prompt - event.cached_tokens} tokens are left to compute, in block"
                f" {listed(b.blocks[len(both) :])}, B's own. Blocks are shared whole or not at all.",
            ],
            list(b.blocks),
            Formula(
                "bytes saved = shared blocks × bytes of a block",
                f"{len(both)} × {block_bytes():,}",
                f"{len(both) * block_bytes():,} bytes",
            ),
        )

    def _copied(self) -> Stop:
        pool = self._pool
        forked = self._fork
        assert forked is not None, "the stop before plays the fork"
        event = pool.step_until_event(Copied)
        ((source, target),) = event.copies
        writer = next(row.request_id for row in pool.rows() if target in row.blocks)
        return self._stop(
            "A write into a shared block copies it",
            [
                f"B asked for two answers. Its prompt was computed once, and the second one, {forked.request_id},"
                f" branched off with a row that points at the same {forked.blocks} blocks, the half-filled {source}"
                " too.",
                f"Now both write their first token, and each a different one. {writer} is the first to write into block"
                f" {source}, which the other one sees as well; so the block is copied to {target}, the table of"
                f" {writer} is changed, and the write goes there. The {forked.blocks - 1} blocks before it stay shared:"
                " nobody writes to a full block.",
            ],
            [source, target],
            Formula(
                "bytes copied = copied blocks × bytes of a block",
                f"{len(event.copies)} × {block_bytes():,}",
                f"{len(event.copies) * block_bytes():,} bytes",
            ),
        )

    def _full(self) -> Stop:
        pool = self._pool
        prompt = pool.ask("C", [own(2, 15)], 6)
        pool.step_until(lambda record: pool.allocator.state().live == CACHE.num_blocks)
        state, rows = pool.allocator.state(), pool.rows()
        entries = sum(len(row.blocks) for row in rows)
        return self._stop(
            "The pool is full",
            [
                f"C came with a prompt of {prompt} tokens, and its blocks were free, so it was let in. That was a bet:"
                f" nobody knows how long the answers get. Some steps later {listed([row.request_id for row in rows])}"
                f" hold {state.live} of {state.total} blocks, and none is free.",
                "A server that reserves memory at the door never gets here. It also never lets that many in.",
            ],
            list(pool.row("C").blocks),
            Formula(
                "blocks live = entries of all tables - entries that point at a block again",
                f"{entries} - {entries - state.live}",
                f"{state.live} of {state.total} blocks",
            ),
        )

    def _preempted(self) -> Stop:
        pool = self._pool
        event = pool.step_until_event(Preempted)
        state, row = pool.allocator.state(), pool.row(event.requester)
        return self._stop(
            f"{event.request_id} has to give way",
            [
                f"{event.requester} needs a block for its next token and there is none. The most recently admitted"
                f" request, {event.request_id}, is preempted: its {event.blocks_released} blocks are given back, it"
                f" goes to the front of the queue, and {event.requester} takes block {row.blocks[-1]}.",
                f"{event.request_id} keeps the tokens that it has generated, but their keys and values are no longer"
                f" its own. Its full blocks are not wiped: {state.cached} of them are cached, which means that nobody"
                " holds them and their content can still be found.",
            ],
            [*pool.cached(), row.blocks[-1]],
            Formula(
                "tokens to compute again, unless they are found",
                f"{event.tokens_to_recompute} tokens × {block_bytes() // SIZE:,} bytes",
                f"{event.tokens_to_recompute * block_bytes() // SIZE:,} bytes",
            ),
        )

    def _recomputed(self) -> Stop:
        pool = self._pool
        event = pool.step_until_event(Admitted, "C")
        ended = [e for record in pool.records for e in record.events if isinstance(e, Finished)]
        row = pool.row("C")
        found = event.cached_tokens // SIZE
        missing = row.computed - event.cached_tokens
        return self._stop(
            "C comes back and is computed again",
            [
                f"{ended[-1].request_id} has ended after {ended[-1].output_tokens} tokens, so there is room. C is"
                f" admitted again, and {event.cached_tokens} of its tokens are still there, in blocks"
                f" {listed(row.blocks[:found])}. The other {missing} are computed in one"
                " step. The client notices a pause, nothing else.",
            ],
            list(row.blocks),
            Formula(
                "tokens to compute = tokens known - block size × blocks found",
                f"{row.computed} - {SIZE} × {found}",
                f"{missing} tokens",
            ),
        )

    def _cached(self) -> Stop:
        pool = self._pool
        held: tuple[int, ...] = ()

        def ended(record: Any) -> bool:
            nonlocal held
            if any(isinstance(event, Finished) and event.request_id == "A" for event in record.events):
                return True
            held = pool.row("A").blocks
            return False

        pool.step_until(ended)
        cached = pool.cached()
        kept = [block for block in held if block in cached]
        state = pool.allocator.state()
        return self._stop(
            "A ends, and its blocks turn cached",
            [
                f"A has its last token. Of its {len(held)} blocks, {listed(kept)} were full: they can be found by what"
                " they hold, so they are cached. The rest of a block that was not full is of use to nobody; it"
                " is free.",
                f"Cached memory costs nothing: whoever needs a block may take one. They stand in a queue, the least"
                f" recently released first; of one request the last block goes first, because a beginning without its"
                f" end is of use and an end without its beginning is not. The queue now is {listed(cached)}.",
            ],
            kept,
            Formula(
                "live + cached + free = all blocks, after every step",
                f"{state.live} + {state.cached} + {state.free}",
                f"{state.total} blocks",
            ),
        )

    def _hit(self) -> Stop:
        pool = self._pool
        before = pool.cached()
        prompt = pool.ask("D", [SYSTEM, own(0, 2), pool.answer("A", 18), own(3, 3)], 4)
        event = pool.step_until_event(Admitted, "D")
        row = pool.row("D")
        found = [block for block in row.blocks if block in before]
        hits = event.cached_tokens // SIZE
        return self._stop(
            "The next question finds them",
            [
                f"D is the same conversation, one turn on: the prompt of A, its answer, and a new question, {prompt}"
                f" tokens. The first {event.cached_tokens} are found in {hits} blocks, {listed(row.blocks[:hits])},"
                f" which turn from cached to live without a copy. {prompt - event.cached_tokens} tokens"
                f" are computed, not {prompt}.",
            ],
            found[:hits],
            Formula(
                "found = cached tokens / prompt tokens",
                f"{event.cached_tokens} / {prompt}",
                f"{100 * event.cached_tokens / prompt:.0f} %",
            ),
        )

    def _evicted(self) -> Stop:
        pool = self._pool
        pool.step_until_event(Finished, "D")
        before = pool.cached()
        free = pool.allocator.state().free
        prompt = pool.ask("E", [own(4, 31)], 4)
        event = pool.step_until_event(Evicted)
        row = pool.row("E")
        needed = len(row.blocks)
        return self._stop(
            "A stranger needs the room",
            [
                f"D has ended too, and {len(before)} blocks are cached. E has a prompt of {prompt} tokens that begins"
                f" like nothing before, and needs {needed} blocks. The pool has {free} free, so it gives up the"
                f" {len(event.blocks)} least recently used cached ones too: {listed(event.blocks)}. What they held"
                " cannot be found any more.",
                f"That is the end of a block's life with A, and the beginning of the next one. Still cached:"
                f" {listed(pool.cached()) or 'none'}.",
            ],
            list(event.blocks),
            Formula(
                "evicted = blocks needed - blocks free",
                f"{needed} - {free}",
                f"{needed - free} blocks",
            ),
        )


def listed(blocks: Sequence[int | str]) -> str:
    """3, 4 and 5."""
    numbers = [str(block) for block in blocks]
    return " and ".join([", ".join(numbers[:-1]), numbers[-1]]) if len(numbers) > 1 else "".join(numbers)


@lru_cache(maxsize=1)
def stops() -> dict[str, Any]:
    """The walk, ready for JSON. The same every time."""
    return {
        "block_size": SIZE,
        "model": SPEC.name,
        "words": WORDS,
        "stops": [asdict(stop) for stop in Walk().stops()],
    }
