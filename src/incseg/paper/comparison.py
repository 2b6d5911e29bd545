"""Our scores beside the paper's: the same groups of classes, with background counted as the paper's row counts it."""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from incseg.config import published_images
from incseg.console import Table, mean_and_spread
from incseg.metrics import nan_if_none
from incseg.paper.tables import Block, ClassGroup, PaperRow, PaperTable, read_tables
from incseg.results import Run, scored_lines


@dataclass(frozen=True)
class ComparedScore:
    """One number of the paper beside those of our runs."""

    heading: str
    ours: tuple[float, ...]
    """One fraction per run."""
    paper: float
    """Percent, as printed; NaN where there is none."""

    @property
    def difference(self) -> float:
        """Our mean minus the paper's number, in percentage points."""
        return 100 * statistics.fmean(self.ours) - self.paper if self.ours else math.nan


@dataclass(frozen=True)
class ComparedRow:
    """A row of the paper, the runs that repeat it, and its scores under one protocol."""

    row: PaperRow
    runs: Sequence[Run]
    scores: Sequence[ComparedScore]

    @property
    def is_published(self) -> bool:
        """Whether the paper has any number for it."""
        return not all(math.isnan(score.paper) for score in self.scores)


Outcome = Sequence[tuple[Block, Sequence[ComparedRow]]]
"""Per protocol, every chosen row beside our runs."""


def compare(table: PaperTable, block: Block, runs: Mapping[str, Sequence[Run]]) -> list[ComparedRow]:
    """Compare runs, given by the name of their row, with the rows of a table under one protocol.

    Scores with background have columns of their own: always for all classes, and for the first group where a row of the
    paper counts it there. Each of the paper's numbers then stands beside a score of ours that is counted alike.
    """
    rows = [row for row in table.planned_rows if row.name in runs]
    columns = list(_columns(rows, block))
    return [
        ComparedRow(row, runs[row.name], [_score(table, row, block, column, runs[row.name]) for column in columns])
        for row in rows
    ]


Column = tuple[str, ClassGroup | None, bool]
"""The paper's heading, its classes if it is a score, and whether background is counted."""


def _columns(rows: Sequence[PaperRow], block: Block) -> Iterator[Column]:
    groups = {group.label: group for group in block.scores}
    for label in block.groups:
        group = groups.get(label)
        yield label, group, False
        if group is not None and group.first == 1:
            is_all = group.last == block.num_foreground
            if is_all or any(_counts_background(row, block, group) for row in rows):
                yield label, group, True


def _score(table: PaperTable, row: PaperRow, block: Block, column: Column, runs: Sequence[Run]) -> ComparedScore:
    label, group, with_background = column
    counted_alike = group is None or _counts_background(row, block, group) == with_background
    paper = table.score(row, block, label) if counted_alike else None
    ours = [run.group(group.first, group.last, with_background) for run in runs] if group else []
    return ComparedScore(heading(block, label, with_background), tuple(ours), nan_if_none(paper))


def heading(block: Block, label: str, with_background: bool = False) -> str:
    """The heading of a column: the paper's, with what it counts where that is not the classes it names."""
    is_all = any((g.label, g.first, g.last) == (label, 1, block.num_foreground) for g in block.scores)
    return f"{label}+bg" if with_background else f"{label} w/o bg" if is_all else label


def _counts_background(row: PaperRow, block: Block, group: ClassGroup) -> bool:
    """Whether a row counts background in a group."""
    where = row.counts_background(block.protocol)
    return group.first == 1 and (where == "first" or (where == "all" and group.last == block.num_foreground))


def as_table(title: str, rows: Sequence[ComparedRow]) -> Table:
    """Up to three lines per row: ours (mean and standard deviation over seeds), the paper's, and the difference."""
    lines = []
    for row in rows:
        ours = f"ours ({len(row.runs)})" if len(row.runs) > 1 else "ours"
        if row.runs:
            lines.append([row.row.label, ours, *(mean_and_spread(score.ours) for score in row.scores)])
        if not row.runs or row.is_published:
            lines.append(["" if row.runs else row.row.label, "paper", *(_number(score.paper) for score in row.scores)])
        if row.runs and row.is_published:
            lines.append(["", "Δ", *(_signed(score.difference) for score in row.scores)])
    headings = [score.heading for score in rows[0].scores] if rows else []
    runs = [run for row in rows for run in row.runs]
    return Table(title, ["method", "", *headings], lines, "\n".join([*scored_lines(runs), *_deviation_notes(rows)]))


def _number(value: float) -> str:
    """With one decimal, or two where the paper prints two."""
    return "–" if math.isnan(value) else f"{value:.2f}".removesuffix("0")


def _signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{round(value, 1) + 0.0:+.1f}".replace("-", "−")


def _deviation_notes(rows: Iterable[ComparedRow]) -> list[str]:
    """How the runs differ from the published recipe and its images; rows with the same differences share a note."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        for run in row.runs:
            for title, words in (
                ("recipe", row.row.deviations(run.settings, run.protocol, run.seed)),
                ("images", image_differences(run)),
            ):
                text = f"not the published {title}: {', '.join(words)}"
                if words and row.row.label not in labels.setdefault(text, []):
                    labels[text].append(row.row.label)
    return [f"{', '.join(names)}: {text}" for text, names in labels.items()]


def image_differences(run: Run) -> list[str]:
    """The steps in which a run learnt from another number of images than the published lists have."""
    published = published_images(run.protocol, run.settings.get("data.class_order")) or []
    found = [step["training_images"] for step in run.steps]
    return [
        f"{ours} in step {step} (published: {theirs})"
        for step, (ours, theirs) in enumerate(zip(found, published, strict=False))
        if ours != theirs
    ]


def beside_the_paper(runs: Sequence[Run]) -> list[Table]:
    """The paper's tables for the protocol of these runs, with the rows that the runs repeat; empty if there are none.

    A run is compared with the row of its method whose settings are nearest; the note of the table says what differs.
    Of the runs of a row only the nearest are shown: variants of a method have no mean.
    """
    protocol = runs[0].protocol
    found: dict[str, dict[str, list[tuple[int, Run]]]] = {}
    for run in runs:
        nearest = min(_candidates(run, protocol), key=lambda candidate: candidate[0], default=None)
        if nearest is not None:
            differences, table, row = nearest
            found.setdefault(table.name, {}).setdefault(row.name, []).append((differences, run))
    tables = []
    for name, by_row in found.items():
        table = read_tables()[name]
        title = f"{protocol} beside {table.title_in_paper} (mIoU, %)"
        shown = {row: _least_different(of_row) for row, of_row in by_row.items()}
        tables.append(as_table(title, compare(table, table.block(protocol), shown)))
    return tables


def _least_different(runs: Sequence[tuple[int, Run]]) -> list[Run]:
    least = min(differences for differences, _ in runs)
    return [run for differences, run in runs if differences == least]


def _candidates(run: Run, protocol: str) -> Iterator[tuple[int, PaperTable, PaperRow]]:
    """Rows of the paper that a finished run may repeat, with the number of settings in which it differs."""
    for table in read_tables().values():
        blocks = [block for block in table.blocks if block.protocol == protocol and table.number]
        if blocks and len(run.classes) == blocks[0].num_foreground + 1:
            for row in table.planned_rows:
                if row.method == run.method and (row.task is not None) == run.is_offline:
                    yield len(row.deviations(run.settings, run.protocol, run.seed)), table, row
