"""Lets the reference's own environment use the native part that the product's environment has built.

Reading a model file needs it. To be imported before anything of Octavo's loaders.
"""

from __future__ import annotations

from pathlib import Path

import octavo

BUILT = sorted(Path(__file__).parents[2].glob(".venv/lib/python3*/site-packages/octavo"))
octavo.__path__ += [str(folder) for folder in BUILT]
