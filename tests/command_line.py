"""Commands as a person would type them, run in this process."""

from pathlib import Path

from incseg import cli


def run(*arguments: str | Path) -> int:
    """The exit code of ``incseg ARGUMENTS``."""
    return cli.main([str(argument) for argument in arguments])
