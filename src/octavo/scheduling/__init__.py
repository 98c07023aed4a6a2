"""Who runs next: continuous batching, chunked prefill, admission, preemption.

Invariant: nothing here reads a clock, a random number or a tensor; a plan follows from the requests alone.
"""

from octavo.scheduling.scheduler import Scheduler

__all__ = ["Scheduler"]
