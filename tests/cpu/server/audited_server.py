"""``octavo`` that recounts its memory after serving, and says so. No part of the product."""

from __future__ import annotations

import sys

from octavo.cli.main import main
from octavo.scheduling.audit import audit
from octavo.server import serve

run = serve._Serving.run


def audited_run(self: serve._Serving) -> int:
    code = run(self)
    scheduler = self._session.engine.scheduler
    audit(scheduler)
    assert not scheduler.has_unfinished
    print("audit clean", file=sys.stderr, flush=True)
    return code


serve._Serving.run = audited_run  # type: ignore[method-assign]
main()
