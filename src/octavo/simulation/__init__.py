"""Everything that stands in for a model and its users: workloads, traces, cost models, a scripted executor.

The scheduler, the memory manager and the engine are the real ones; nothing in here decides anything for them.
"""
