"""Octavo: a language-model server whose key-value cache is paged.

    from octavo import LLM, SamplingParams
    outputs = LLM().generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=8))

Names are resolved on first use, so that ``import octavo`` (and with it ``octavo --help``) loads no model code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.core.beam_params import BeamParams as BeamParams
    from octavo.core.errors import OctavoError as OctavoError
    from octavo.core.sampling_params import SamplingParams as SamplingParams
    from octavo.llm.llm import LLM as LLM
    from octavo.llm.outputs import CompletionOutput as CompletionOutput
    from octavo.llm.outputs import RequestOutput as RequestOutput

__version__ = "0.1.0"

_HOMES = {
    "LLM": "octavo.llm.llm",
    "RequestOutput": "octavo.llm.outputs",
    "CompletionOutput": "octavo.llm.outputs",
    "BeamParams": "octavo.core.beam_params",
    "SamplingParams": "octavo.core.sampling_params",
    "OctavoError": "octavo.core.errors",
}
__all__ = [
    "LLM",
    "BeamParams",
    "CompletionOutput",
    "OctavoError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
