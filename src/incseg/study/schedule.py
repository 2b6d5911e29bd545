"""The order of the runs of a study: step 0 is trained once for all that can share it, and these wait for it."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from incseg.study.planned_run import PlannedRun


@dataclass(frozen=True)
class Schedule:
    """Runs, each named once."""

    runs: Sequence[PlannedRun]

    @property
    def pending(self) -> list[tuple[PlannedRun, PlannedRun | None]]:
        """Runs not done yet, each with the run whose step 0 it starts from; those that train their own come first."""
        pairs = [(run, self.provider(run)) for run in self.runs if not run.is_done]
        return sorted(pairs, key=lambda pair: pair[1] is not None)

    def provider(self, run: PlannedRun) -> PlannedRun | None:
        """The run whose step 0 a run starts from; None where it trains its own.

        Of all that could provide it, one that has it already, else any; of these the first whose head is trained, since
        most others can use that, or the first.
        """
        if run.has_first_step:
            return None
        able = [other for other in self.runs if run.can_begin_with(other)]
        chosen = min(able, key=lambda other: (not other.has_first_step, other.solves))
        return None if chosen is run else chosen

    def commands(self) -> Iterator[str]:
        """One command per line; lines that begin with # say what must be there before those that follow."""
        pending = self.pending
        independent = [run for run, provider in pending if provider is None]
        if len(independent) not in (0, len(pending)):
            yield "# these train their own step 0, or have it; run them in any order"
        yield from (command_of(run) for run in independent)
        for provider in dict.fromkeys(other.folder for _, other in pending if other is not None):
            yield f"# these can begin, in any order, once {provider}/step-0 is finished"
            sharing = [(run, other) for run, other in pending if other is not None and other.folder == provider]
            yield from (command_of(run, other) for run, other in sharing)


def command_of(run: PlannedRun, provider: PlannedRun | None = None) -> str:
    """The command that trains a run, as one types it."""
    return shlex.join(["incseg", *run.arguments(provider.folder if provider else None)])
