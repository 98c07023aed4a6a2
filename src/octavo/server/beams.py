"""The fields of a beam search, which both kinds of request have."""

from __future__ import annotations

from octavo.core.beam_params import BeamParams
from octavo.core.errors import RequestError
from octavo.server.errors import bad_request
from octavo.server.protocol import GenerationRequest

_NEUTRAL = {"length_penalty": 1, "early_stopping": False, "num_beam_groups": 1, "diversity_penalty": 0}
"""Fields that mean nothing without a search, and the values that ask for nothing."""


def beam_params(body: GenerationRequest, width: int) -> BeamParams | None:
    """The search that a request asks for; None if it asks for none. ``width``: best_of, or n.

    Raises ApiError (400) for settings of a search without one, and for what a search cannot do.
    """
    if not body.use_beam_search:
        for name, neutral in _NEUTRAL.items():
            if getattr(body, name) not in (None, neutral):
                raise bad_request(f"{name} needs use_beam_search: true", name)
        return None
    if body.stream:
        raise bad_request("the answers of a beam search are known at its end; they cannot stream", "stream")
    if body.early_stopping not in (None, True, False, "never"):
        raise bad_request("early_stopping must be true, false or 'never'", "early_stopping")
    try:
        return BeamParams(
            width=width,
            length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
            early_stopping=body.early_stopping or False,  # type: ignore[arg-type]
            groups=body.num_beam_groups or 1,
            diversity_penalty=body.diversity_penalty or 0.0,
        )
    except RequestError as error:
        if error.param == "beam_width":
            error.param = "n" if body.best_of is None else "best_of"
        raise
