"""Runs beside each other: which can be compared, and how each is called among the others."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from incseg.errors import InputError
from incseg.protocol import Protocol
from incseg.run_folder import Run


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read runs that are to be compared.

    They must be of one protocol, equally far; runs of the task ``offline`` on the same classes may stand beside them,
    and come last. Runs of one method are told apart by the settings in which they differ; those that differ in nothing
    but the seed share a label, and the same run twice is refused.
    """
    runs = sorted((Run.read(folder) for folder in folders), key=lambda run: run.is_offline)
    first = runs[0]
    for run in runs[1:]:
        if not _comparable(first, run):
            raise InputError(
                f"{first.folder} ({first.protocol}, {len(first.steps)} steps) and {run.folder} ({run.protocol}, "
                f"{len(run.steps)} steps) cannot share a report: give runs of one protocol, equally far, and beside "
                "them at most runs of the task 'offline' on the same classes."
            )
    return _labelled([replace(run, begins_at=len(first.steps) - len(run.steps)) for run in runs])


def _comparable(first: Run, run: Run) -> bool:
    """All classes at once is the same in both settings: no class is later."""
    datasets = [Protocol.parse(one.protocol).dataset for one in (first, run)]
    alike = run.protocol == first.protocol or (run.is_offline and datasets[0] == datasets[1])
    return alike and run.classes == first.classes


def names_beside_each_other(runs: Sequence[Run]) -> list[str]:
    """One name per run; several seeds are numbered."""
    labels = [run.label for run in runs]
    return [f"{run.label} #{run.seed}" if labels.count(run.label) > 1 else run.label for run in runs]


def _labelled(runs: Sequence[Run]) -> list[Run]:
    labelled: list[Run] = []
    for run in runs:
        siblings = [other for other in runs if (other.method, other.protocol) == (run.method, run.protocol)]
        names = sorted({name for other in siblings for name in other.settings})
        differing = [n for n in names if len({str(other.settings.get(n)) for other in siblings}) > 1]
        words = [f"{name.removeprefix('settings.')} {run.settings.get(name, 'default')}" for name in differing]
        words = ["offline", *words] if run.protocol != runs[0].protocol else words
        named = replace(run, label=f"{run.method} ({', '.join(words)})" if words else run.method)
        for other in labelled:
            if (other.label, other.seed) == (named.label, named.seed):
                raise InputError(f"{other.folder} and {run.folder} are the same run with the same seed: give one.")
        labelled.append(named)
    return labelled
