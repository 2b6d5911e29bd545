"""Commands as a person would type them, run in this process."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from incseg import cli


def run(*arguments: str | Path) -> int:
    """The exit code of ``incseg ARGUMENTS``."""
    return cli.main([str(argument) for argument in arguments])


@dataclass
class InThisProcess:
    """Stands in for the processes of the runs of a study: the same commands, one after another."""

    commands: list[list[str]] = field(default_factory=list)

    def start(self, command: Sequence[str], *_: object) -> "InThisProcess":
        self.commands.append(list(command))
        self.exitcode = cli.main(list(command))
        return self

    def folders(self) -> list[str]:
        return [Path(command[command.index("--out") + 1]).name for command in self.commands]
