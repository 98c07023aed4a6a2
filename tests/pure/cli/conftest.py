"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys

import pytest
from simulate_helpers import Done, Simulate

from octavo.cli.main import main


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Simulate:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["octavo", "simulate", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Done(code, *capsys.readouterr())

    return run
