"""``octavo`` whose executor fails at its first step with two requests: how tests inject the death of an engine."""

from __future__ import annotations

from octavo.cli.main import main
from octavo.core.plan import StepPlan
from octavo.execution.cpu_executor import CpuExecutor

submit = CpuExecutor.submit


def failing_submit(self: CpuExecutor, plan: StepPlan) -> object:
    if len(plan.rows) == 2:
        raise RuntimeError("injected")
    return submit(self, plan)


CpuExecutor.submit = failing_submit  # type: ignore[method-assign, assignment]
main()
