"""Runs of any protocols in one list: how well each method does, what it costs, and what it was measured with."""

import itertools
from collections.abc import Callable, Sequence

from incseg.console import Table, mean_and_spread
from incseg.metrics import mean
from incseg.report.summary import labelled
from incseg.results import Run, scored_lines

SCORES: dict[str, Callable[[Run], float]] = {
    "old": lambda run: run.counted("ucd")["base"],
    "new": lambda run: run.counted("ucd")["later"],
    "all": lambda run: run.counted("ucd")["all"],
    "old+bg": lambda run: run.counted("plop")["base"],
    "all+bg": lambda run: run.counted("plop")["all"],
}
NOTE = (
    "mIoU (%) after the last step, mean ± standard deviation over the seeds. old: classes of step 0; new: all learnt "
    "later; +bg: background counted too. minutes: of step 0, which methods may share, and of all later steps together; "
    "of learning alone where a record tells scoring apart, else scoring included. kept (MB): the model and what the "
    "method remembers beside it, the most that any step leaves to the next; + images where images of earlier steps are "
    "used again."
)


def leaderboard(runs: Sequence[Run]) -> list[Table]:
    """One table per protocol, the best mean of all classes with background first."""
    ordered = sorted(runs, key=lambda run: (run.protocol, backbone(run), run.method, run.seed))
    tables = []
    for protocol, found in itertools.groupby(ordered, key=lambda run: run.protocol):
        of_protocol = list(found)
        groups: list[list[Run]] = []
        for _, alike in itertools.groupby(of_protocol, key=backbone):
            named = labelled(list(alike))
            labels = dict.fromkeys(run.label for run in named)
            groups += [[run for run in named if run.label == label] for label in labels]
        groups.sort(key=lambda group: -mean(SCORES["all+bg"](run) for run in group))
        headers = ["method", "network", *SCORES, "minutes", "kept (MB)", "seeds", "measured on", "commit"]
        tables.append(Table(protocol, headers, [_row(group) for group in groups], "\n".join(scored_lines(of_protocol))))
    return tables


def backbone(run: Run) -> str:
    """The network, and the size of the crops it was trained on."""
    settings = run.settings
    parts = [str(settings.get(f"model.{name}", "?")) for name in ("encoder", "decoder")]
    return f"{' + '.join(parts)}, {settings.get('data.crop_size', '?')} px"


def _row(runs: Sequence[Run]) -> list[str]:
    scores = [mean_and_spread([score(run) for run in runs]) for score in SCORES.values()]
    seeds = ", ".join(str(run.seed) for run in runs)
    return [runs[0].label, backbone(runs[0]), *scores, minutes(runs), kept(runs), seeds, _device(runs), _commit(runs)]


def minutes(runs: Sequence[Run]) -> str:
    """Mean time of learning step 0 and all later steps, with scoring where that was not told apart; a dash: unknown."""
    costs = [[run.cost(index) for index in range(len(run.steps))] for run in runs]
    if not all(map(all, costs)):
        return "–"
    times = [[cost["seconds"] - cost.get("scoring_seconds", 0) for cost in steps] for steps in costs]
    first, later = (mean(sum(steps[part]) / 60 for steps in times) for part in (slice(0, 1), slice(1, None)))
    return f"{first:.1f} + {later:.1f}"


def kept(runs: Sequence[Run]) -> str:
    """The most that a step leaves to the next: the model, what the method remembers, and whether images too."""
    costs = [run.cost(index) for run in runs for index in range(len(run.steps))]
    if not all(costs):
        return "–"
    sizes = [max(cost[name] for cost in costs) / 1e6 for name in ("model_bytes", "memory_bytes")]
    return f"{sizes[0]:.1f} + {sizes[1]:.1f}" + " + images" * any(run.result.get("keeps_images") for run in runs)


def _device(runs: Sequence[Run]) -> str:
    return ", ".join(sorted({str(run.result.get("environment", {}).get("device", "?")) for run in runs}))


def _commit(runs: Sequence[Run]) -> str:
    """Or the version, where a run did not come from a checkout."""
    made_with = [run.result.get("environment", {}) for run in runs]
    return ", ".join(sorted({str(each.get("commit") or f"version {each.get('incseg', '?')}") for each in made_with}))
