import copy
import itertools
from collections.abc import Iterator

import pytest

from incseg.config import flat_settings
from incseg.errors import InputError
from incseg.methods import parse
from incseg.paper import Block, ClassGroup, PaperRow, PaperTable, read_table, read_tables
from incseg.protocol import Protocol
from latex import LatexTable, plain, read_latex

NUMBERED = [table for table in read_tables().values() if table.number]

# Where the paper's own groups do not average to its "all", whichever way background is counted.
CONTRADICTIONS = {
    ("voc-main", "UCD", "voc/19-1/overlapped"),
    ("voc-main", "UCD", "voc/15-1/disjoint"),
    ("voc-main", "UCD", "voc/15-1/overlapped"),
    ("voc-10", "ILT", "voc/10-1/disjoint"),
    ("ade-disjoint", "PLOP*", "ade20k/100-50/disjoint"),
    ("ade-disjoint", "Joint", "ade20k/50-50/disjoint"),
    ("ade-overlapped", "PLOP+UCD", "ade20k/100-50/overlapped"),
    ("ade-overlapped", "PLOP+UCD", "ade20k/100-10/overlapped"),
}


@pytest.fixture(scope="module")
def source(paper_source: str) -> dict[str, LatexTable]:
    return read_latex(paper_source)


def differences(table: PaperTable, latex: LatexTable) -> list[str]:
    """Cell by cell, what the paper has and what we wrote down."""
    wrong = []
    ours = [cell for row in table.rows for cell in transcribed(row, table)]
    theirs = [cell for row in latex.rows for cell in printed(row, table)]
    if len(ours) != len(theirs):
        wrong.append(f"{len(ours)} cells for {len(theirs)}")
    wrong += [f"{a} for {b}" for a, b in zip(ours, theirs, strict=False) if a != b]
    return wrong


def transcribed(row: PaperRow, table: PaperTable) -> list[str | float | None]:
    assert row.scores is not None
    assert len(row.scores) == len(table.blocks)
    return [row.label.replace(" ", ""), *(value for values in row.scores for value in values)]


def printed(row: list[str], table: PaperTable) -> list[str | float | None]:
    if table.name == "ablation-contrast":  # nine ticks are the row's label
        ticks = ["+".join(w for w, c in zip(("old", "new", "bg"), row[i : i + 3], strict=True) if c) for i in (0, 3, 6)]
        row = ["|".join(ticks), *row[9:]]
    return [row[0], *(None if cell == "-" else float(cell) for cell in row[1:])]


def test_every_table_of_the_paper_is_here(source: dict[str, LatexTable]) -> None:
    assert [table.label for table in NUMBERED] == list(source)
    assert [table.number for table in NUMBERED] == list(range(1, 10))


@pytest.mark.parametrize("table", NUMBERED, ids=lambda table: table.name)
def test_every_number_is_the_papers(table: PaperTable, source: dict[str, LatexTable]) -> None:
    assert differences(table, source[table.label]) == []


@pytest.mark.parametrize("table", NUMBERED, ids=lambda table: table.name)
def test_every_heading_is_the_papers(table: PaperTable, source: dict[str, LatexTable]) -> None:
    latex = source[table.label]
    ours = [label for block in table.blocks for label in block.groups]
    if table.name == "ablation-contrast":  # its headings span the lines of the head
        ours = [*["Old", "New", "BG"] * 3, "", "", ""]
        assert latex.headings == ours
        return
    assert latex.headings[-len(ours) :] == ours
    tasks = [Protocol.parse(block.protocol).task for block in table.blocks]
    if latex.tasks:  # an ablation names datasets instead
        settings_per_task = len(tasks) // len(latex.tasks)
        assert [task for task in latex.tasks for _ in range(settings_per_task)] == tasks


def test_one_changed_number_is_noticed(source: dict[str, LatexTable]) -> None:
    table = copy.deepcopy(read_table("ade-overlapped"))
    scores = table.rows[2].scores
    assert scores
    scores[1][2] = 31.58
    assert differences(table, source[table.label]) == ["31.58 for 31.59"]


def test_cells_lose_their_latex() -> None:
    assert plain(r" \multicolumn{1}{c|}{\textbf{\underline{50.1}}} ") == "50.1"
    assert plain(r"\multicolumn{1}{l|}{{RECALL$^{\sharp}$\cite{a,b}}}") == "RECALL♯"
    assert plain(r"{\underline{73.5}}") == "73.5"
    assert plain(r"\multirow{3}[3]{*}{\textbf{Method}}") == "Method"


def cases() -> Iterator[tuple[PaperTable, PaperRow, Block]]:
    for table in NUMBERED:
        for row in table.rows:
            for block in table.blocks:
                groups = [table.score(row, block, group.label) for group in block.scores]
                if len(groups) > 1 and None not in groups:
                    yield table, row, block


def numbers(table: PaperTable, row: PaperRow, block: Block) -> tuple[list[tuple[int, float]], float]:
    """Sizes and means of the groups, and the mean of all."""
    sized: list[tuple[int, float]] = []
    for group in block.scores:
        value = table.score(row, block, group.label)
        assert value is not None
        sized.append((group.last - group.first + 1, value))
    return sized[:-1], sized[-1][1]


def misfit(groups: list[tuple[int, float]], everything: float, with_background: bool) -> float:
    """How far "all" is from the mean of its groups."""
    first, *others = groups
    groups = [(first[0] + with_background, first[1]), *others]
    return abs(sum(n * value for n, value in groups) / sum(n for n, _ in groups) - everything)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case[0].name}-{case[1].label}-{case[2].protocol}")
def test_groups_average_to_all_as_the_row_counts_background(case: tuple[PaperTable, PaperRow, Block]) -> None:
    table, row, block = case
    groups, everything = numbers(*case)
    digit = 0.01 if table.name == "ade-overlapped" else 0.1
    rounding = digit * 1.001  # half a digit in the groups, half in "all"
    counted = row.counts_background(block.protocol)
    if counted == "all":
        assert misfit(groups, everything, False) > rounding
        assert misfit(groups, everything, True) > rounding
        total = sum(n for n, _ in groups)
        background = everything * (total + 1) - sum(n * value for n, value in groups)
        assert 50 < background < 95
    else:
        fits = misfit(groups, everything, with_background=counted == "first") <= rounding
        assert fits == ((table.name, row.label, block.protocol) not in CONTRADICTIONS)


def test_groups_cover_the_classes_of_the_protocol() -> None:
    for table in read_tables().values():
        for block in table.blocks:
            *parts, everything = block.scores
            bounds = [(group.first, group.last) for group in parts]
            assert (everything.first, everything.last) == (1, block.num_foreground)
            if parts:
                assert bounds[0][0] == 1
                assert bounds[-1][1] == block.num_foreground
                assert all(b[0] == a[1] + 1 for a, b in itertools.pairwise(bounds))
            first = Protocol.parse(block.protocol).steps(block.num_foreground)[0]
            assert not parts or bounds[0][1] == len(first.new)


def test_rows_name_methods_that_exist() -> None:
    for table in read_tables().values():
        for row in table.rows:
            own = {name: values for name, values in row.settings.items() if name != "optim"}
            assert parse(row.method, own).parts


def test_rows_without_settings_are_the_defaults_they_stand_for() -> None:
    from incseg.methods import describe_methods

    defaults = {entry.name: entry.settings for entry in describe_methods()}["ucd"]
    for name, setting in (("ablation-temperature", "temperature"), ("ablation-weight", "weight")):
        for row in read_table(name).rows:
            given = row.settings.get("ucd", {}).get(setting, defaults[setting] if "ucd" in row.method else 0)
            assert given == row.at == float(row.label)


def test_the_class_groups_of_a_step_by_step_table() -> None:
    groups = read_table("ade-disjoint").blocks[1].scores
    assert groups[1] == ClassGroup(label="100-110", first=101, last=110)


def test_tables_go_by_name_and_number() -> None:
    assert read_table("1") is read_table("voc-main")
    with pytest.raises(InputError, match=r"'voc-mian' is not a table: .*Did you mean 'voc-main'\?"):
        read_table("voc-mian")
    with pytest.raises(InputError, match="1 to 9"):
        read_table("12")


def test_a_setting_newer_than_a_run_is_no_deviation_and_one_of_its_method_is() -> None:
    row = next(row for row in read_table("voc-main").rows if row.method == "plop")
    settings = flat_settings(row.published_recipe("voc/15-5/overlapped", seed=1))
    assert row.deviations(settings, "voc/15-5/overlapped", seed=1) == []
    older = {name: value for name, value in settings.items() if name != "data.complete"}
    assert row.deviations(older, "voc/15-5/overlapped", seed=1) == []
    default = {name: value for name, value in settings.items() if name != "settings.plop.thresholds"}
    deviation = "plop.thresholds default (published: released)"
    assert row.deviations(default, "voc/15-5/overlapped", seed=1) == [deviation]
