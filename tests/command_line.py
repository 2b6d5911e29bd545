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
    """Stands in for the processes of the runs of a study: the same commands, without starting Python anew."""

    commands: list[list[str]] = field(default_factory=list)

    def start(self, command: Sequence[str], *_: object) -> "InThisProcess":
        assert list(command[1:3]) == ["-m", "incseg"]
        self.commands.append(list(command[3:]))
        self.code = cli.main(list(command[3:]))
        return self

    def poll(self) -> int:
        return self.code

    def folders(self) -> list[str]:
        return [Path(command[command.index("--out") + 1]).name for command in self.commands]
