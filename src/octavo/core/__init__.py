"""Values and ports that every other package speaks in. Imports nothing of ours.

The words (DESIGN.md, Words): a *slot* is room for one token's keys and values in every layer; a
*block* is ``block_size`` slots; the *pool* is all blocks; *computed* tokens have keys and values in
the pool; *scheduled* tokens are in this step.
"""
