"""Runs side by side: which can be compared, what each is called, and the tables of their scores."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from incseg.config import OF_METHOD, flat_settings, load_recipe
from incseg.console import Table, mean_and_spread, percent
from incseg.errors import InputError
from incseg.metrics import CONVENTIONS, nan_if_none
from incseg.protocol import Protocol
from incseg.results import Run, scored_lines

# The columns of the summary after those of the class groups. A score added to metrics.step_scores is shown in the
# terminal and on the page by one line here; runs from before it was added show a dash.
# "bg" is background; "harmonic" is of the classes of step 0 and of all later ones, without background.
SCORES: dict[str, Callable[[Run], float]] = {
    "all w/o bg": lambda run: run.miou(-1, "all"),
    "all+bg": lambda run: run.miou(-1, "all_with_background"),
    # An extension's is that of its result, which tells whether all classes were measured.
    "harmonic": lambda run: (
        run.miou(-1, "harmonic") if run.domains or run.is_extension else run.counted("ucd")["harmonic"]
    ),
    "forgetting": lambda run: nan_if_none(run.result["forgetting"]["mean"]),
    "avg. steps w/o bg": lambda run: run.average_over_steps("all"),
    "avg. steps+bg": lambda run: run.average_over_steps("all_with_background"),
}


UNNAMED = "default"  # a setting of the method that nobody chose
COUNTED = ("base", "later", "all", "harmonic")


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read runs to compare, and label them.

    They must have the same protocol and the same number of finished steps. Runs of the task ``offline`` on the same
    classes may join them and come last. Runs of one method are told apart by the settings in which they differ; runs
    that differ only in their seed share a label. The same run given twice is refused.
    """
    runs = sorted((Run.read(folder) for folder in folders), key=lambda run: run.is_offline)
    first = runs[0]
    for run in runs[1:]:
        if not _comparable(first, run):
            raise InputError(
                f"{first.folder} ({first.protocol}, {len(first.steps)} steps) and {run.folder} ({run.protocol}, "
                f"{len(run.steps)} steps) cannot share a report: give runs of one protocol with equally many finished "
                "steps; runs of the task 'offline' on the same classes may join them."
            )
    begins_at = [len(first.steps) - len(run.steps) for run in runs]
    compared = zip(runs, begins_at, strict=True)
    return labelled([replace(run, begins_at=start, compared_base=first.base) for run, start in compared])


def _comparable(first: Run, run: Run) -> bool:
    """An offline run fits both settings: with all classes at once, disjoint and overlapped are the same."""
    datasets = [Protocol.parse(one.protocol).dataset for one in (first, run)]
    by_domain = [bool(one.domains) for one in (first, run)]  # these are scored on other images
    alike = run.protocol == first.protocol or (run.is_offline and datasets[0] == datasets[1])
    alike = alike and by_domain[0] == by_domain[1]
    return alike and run.classes == first.classes


def labelled(runs: Sequence[Run]) -> list[Run]:
    """Name runs of one method by the settings in which they differ, as far as these are not the usual ones.

    Several extensions are named by their folders.
    """
    named_so_far: list[Run] = []
    for run in runs:
        siblings = [other for other in runs if (other.method, other.protocol) == (run.method, run.protocol)]
        usual = _usual(run)
        words = [
            f"{name.removeprefix(OF_METHOD)} {value}"
            for name in sorted(_differing(siblings))
            if name in run.settings or name.startswith(OF_METHOD)
            if (value := run.settings.get(name, UNNAMED)) != usual.get(name, UNNAMED)
        ]
        if run.is_extension and len(siblings) > 1:  # of other models or folders, which are no settings
            words = [_place_of(run, siblings)]
        words = ["offline", *words] if run.protocol != runs[0].protocol else words
        named = replace(run, label=f"{run.method} ({', '.join(words)})" if words else run.method)
        for other in named_so_far:
            if (other.label, other.seed) == (named.label, named.seed):
                raise InputError(f"{other.folder} and {run.folder} are the same run with the same seed: give one.")
        named_so_far.append(named)
    return named_so_far


def _place_of(run: Run, siblings: Sequence[Run]) -> str:
    """The name of its folder, or the whole path where another has that name too."""
    names = [other.folder.name for other in siblings]
    return run.folder.name if names.count(run.folder.name) == 1 else str(run.folder)


def _differing(siblings: Sequence[Run]) -> set[str]:
    names = {name for run in siblings for name in run.settings}
    differing = {name for name in names if len({str(run.settings.get(name)) for run in siblings}) > 1}
    chosen = {tuple(str(run.settings.get(name)) for name in ("model.encoder", "model.weights")) for run in siblings}
    come_with_encoder = len(chosen) == len({encoder for encoder, _ in chosen})
    return differing - ({"model.weights"} if come_with_encoder else set())


def _usual(run: Run) -> dict[str, Any]:
    """What its recipe says of it."""
    try:
        return flat_settings(load_recipe(run.protocol, {"method": run.method}))
    except InputError:  # a protocol or a method of another installation
        return {}


def run_names(runs: Sequence[Run]) -> list[str]:
    """One name per run: its label, followed by the seed where several runs share the label."""
    labels = [run.label for run in runs]
    return [f"{run.label} #{run.seed}" if labels.count(run.label) > 1 else run.label for run in runs]


def title_of(runs: Sequence[Run]) -> str:
    """What the runs are about: a protocol, or the extension of a model; of several models, the task they have."""
    titles = {run.title for run in runs if run.protocol == runs[0].protocol}
    return titles.pop() if len(titles) == 1 else runs[0].protocol


def summary_table(runs: Sequence[Run]) -> Table:
    """Final mIoU in the paper's layout: of the first classes, of those of every later step, and of all.

    Runs that differ only in their seed are averaged. Background is counted in columns that say ``+bg``, and only there.
    """
    groups, explained = _domain_groups(runs[0]) if runs[0].domains else _class_groups(runs[0])
    rows = []
    for label in dict.fromkeys(run.label for run in runs):
        seeds = [run for run in runs if run.label == label]
        columns = [[score(run) for run in seeds] for score in (*groups.values(), *SCORES.values())]
        rows.append([label, *(mean_and_spread(column) for column in columns)])
    headers = ["method", *groups, *SCORES]
    note = "\n".join([*scored_lines(runs), explained])
    return Table(f"{title_of(runs)}: mIoU after the last step (%)", headers, rows, note)


def conventions_table(runs: Sequence[Run]) -> Table:
    """The same scores as each group of papers counts them, side by side."""
    base, last = runs[0].base, len(runs[0].classes) - 1
    rows = []
    for label in dict.fromkeys(run.label for run in runs):
        seeds = [run for run in runs if run.label == label]
        for name, convention in CONVENTIONS.items():
            first = 0 if convention.counts_background else 1
            groups = [(first, base), (base + 1, last), (first, last)] if base < last else [(first, last)]
            scores = [run.counted(name) for run in seeds]
            columns = [mean_and_spread([each[score] for each in scores]) for score in COUNTED]
            rows.append([f"{label}, as in {name}", ", ".join(_range(a, b) for a, b in groups), *columns])
    papers = "; ".join(f"{name}: {convention.papers}" for name, convention in CONVENTIONS.items())
    note = f"{papers}; 0 is background; dkd counts a class that appears nowhere as 0, the others leave it out"
    title = "by the conventions of the literature: mIoU after the last step (%)"
    headers = ["method, and how it is counted", "classes: base, later, all", *COUNTED]
    return Table(title, headers, rows, "\n".join([*scored_lines(runs), note]))


Groups = dict[str, Callable[[Run], float]]
"""Columns of the summary by their headers."""


def _class_groups(run: Run) -> tuple[Groups, str]:
    """Columns of ranges of classes, and what they are in words.

    They are the first step's, then each later step's, then all later ones together. As in the paper's tables, later
    steps of a single class each are shown only together.
    """
    ends = list(itertools.accumulate(len(step["new_classes"]) for step in run.steps))
    steps = [(a + 1, b) for a, b in itertools.pairwise([0, *ends])]
    only_together = len(steps) == 2 or all(a == b for a, b in steps[1:])
    later = [*([] if only_together else steps[1:]), (ends[0] + 1, ends[-1])] if len(steps) > 1 else []
    ranges = [steps[0], *later]
    distinct = ranges[:-1] if len(ranges) > 2 else ranges  # the last then repeats several of the others
    explained = "; ".join(f"{_range(a, b)}: {', '.join(run.classes[a : b + 1])}" for a, b in distinct)
    return {_range(a, b): partial(Run.group, first_channel=a, last_channel=b) for a, b in ranges}, explained


def _domain_groups(run: Run) -> tuple[Groups, str]:
    """Columns of the domains of step 0 and of all later steps, and what they are in words."""
    first, *later = [group["names"] for group in run.domains]
    start, end = len(first), len(first) + sum(map(len, later))
    ranges = {"first": (1, start), **({"later": (start + 1, end)} if later else {})}
    names = [*first, *itertools.chain.from_iterable(later)]
    explained = "; ".join(f"domains {_range(a, b)}: {', '.join(names[a - 1 : b])}" for a, b in ranges.values())
    return {
        f"domains {_range(a, b)}": partial(Run.miou, step=-1, name=key) for key, (a, b) in ranges.items()
    }, explained


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def per_step_table(runs: Sequence[Run]) -> Table:
    """mIoU of all foreground classes known so far, after every step, and the number of images it was scored on."""
    brought = [group["names"] for group in runs[0].domains] or [step["new_classes"] for step in runs[0].steps]
    learnt = [", ".join(names) for names in brought]
    rows = [
        [f"{index} (+ {names})" if index else f"0 ({names})", *(percent(run.miou(index)) for run in runs)]
        for index, names in enumerate(learnt)
    ]
    numbers = ", ".join(str(step.get("scored_images") or "?") for step in runs[0].steps)
    note = f"scored: {runs[0].scored_as}, {numbers} images"
    return Table("mIoU over the steps, without background (%)", ["step", *run_names(runs)], rows, note)
