"""``octavo``: commands, and the exit codes 0 (done), 2 (usage or input), 1 (our fault), 130 (interrupted)."""

from __future__ import annotations

import os
import sys

import click

from octavo import __version__
from octavo.core.errors import OctavoError


class LazyGroup(click.Group):
    """Imports a command's module when the command is asked for, so that ``--help`` answers at once."""

    commands_at = {  # noqa: RUF012 - click reads class attributes
        "serve": ("octavo.cli.serve", "Serve a model over HTTP, as OpenAI's API does."),
        "top": ("octavo.cli.top", "Watch a running server: its pool, its requests, its rates."),
        "generate": ("octavo.cli.generate", "Complete prompts, or answer them as chat messages."),
        "chat": ("octavo.cli.chat", "Chat with a model; the prefix cache keeps the conversation."),
        "inspect": (
            "octavo.cli.inspect",
            "Sizes of a model: bytes a token, tokens a GiB, what a pool would hold.",
        ),
        "simulate": (
            "octavo.cli.simulate",
            "What settings would do to a workload: the real scheduler on a virtual clock.",
        ),
        "lab": (
            "octavo.cli.lab",
            "The simulator as a page: the article's experiment and a guided walk, no model.",
        ),
        "bench": (
            "octavo.cli.bench",
            "Time decode steps of this machine's engine, operator by operator on demand.",
        ),
        "explain-cache": (
            "octavo.cli.explain_cache",
            "What the prefix cache found in a recorded run, and which prompts nearly shared a prefix.",
        ),
        "profile": ("octavo.cli.profile", "Time this machine's engine, for octavo simulate --profile."),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_at:
            return None
        from importlib import import_module

        command = import_module(self.commands_at[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in self.commands_at.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="octavo")
def octavo() -> None:
    """A language-model server whose key-value cache is paged."""


def main() -> None:
    """Entry point. A user's mistake is one line that names the flag, never a traceback."""
    try:
        octavo.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except OctavoError as error:
        click.echo(f"octavo: {error.line}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("octavo: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our standard output has gone (`octavo generate ... | head`): nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
