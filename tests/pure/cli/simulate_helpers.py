"""``octavo simulate`` called as its users call it, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Simulate = Callable[..., Done]
SMALL = (
    "--clock",
    "steps",
    "--num-gpu-blocks-override",
    "60",
    "--max-num-seqs",
    "8",
    "--headroom-tokens",
    "0",  # so that there are preemptions
    "--max-model-len",
    "512",
)
"""A pool that a few requests fill."""
WORK = ("--num-requests", "20", "--prompt-tokens", "uniform:20:200", "--output-tokens", "uniform:5:60")
ARTICLE = ("--preset", "article", "--steps", "300")
