import csv
import json
import re
from pathlib import Path

import pytest

from command_line import run
from incseg.console import Table
from incseg.report.summary import summary_table
from incseg.report.table_files import latex_table, scores_csv
from incseg.results import Run
from sample_runs import write_run


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_the_csv_has_every_number_of_the_results(runs: list[Run]) -> None:
    lines = lines_of(scores_csv(runs))
    for one in runs:
        result = json.loads((one.folder / "result.json").read_text())
        own = [line for line in lines if line["run"] == str(one.folder)]
        assert {(line["protocol"], line["method"], line["seed"]) for line in own} == {
            (result["protocol"], result["method"], str(result["seed"]))
        }

        def values(score: str, step: int, own: list[dict[str, str]] = own) -> dict[str, float | None]:
            found = [line for line in own if (line["score"], line["step"]) == (score, str(step))]
            return {line["class"]: float(line["value"]) if line["value"] else None for line in found}

        for entry in result["steps"]:
            assert values("iou", entry["step"]) == entry["iou"]
            for name, value in entry["miou"].items():
                assert values(f"miou_{name}", entry["step"]) == {"": value}
        last = len(result["steps"]) - 1
        for name in ("average_miou", "average_miou_with_background"):
            assert values(name, last) == {"": result[name]}
        assert {line["scored"] for line in own} == {one.scored}
        forgetting = result["forgetting"]
        assert values("forgetting", last) == {**forgetting["classes"], "": forgetting["mean"]}
        count = sum(len(entry["iou"]) + len(entry["miou"]) for entry in result["steps"])
        assert len(own) == count + len(forgetting["classes"]) + 3
        learnt = {line["class"]: line["learnt_in_step"] for line in own if line["class"]}
        assert learnt == {name: str(0 if channel < 3 else 1) for channel, name in enumerate(result["classes"])}


def test_the_latex_table_is_the_summary(runs: list[Run]) -> None:
    table = summary_table(runs)
    text = latex_table(table)
    code = [line for line in text.splitlines() if not line.startswith("%")]
    assert code[0] == rf"\begin{{tabular}}{{l{'r' * (len(table.headers) - 1)}}}"
    assert [code[1], code[3], code[-2], code[-1]] == [r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}"]
    cells = [re.sub(r" \\\\$", "", line).split(" & ") for line in [code[2], *code[4:-2]]]
    assert cells == [list(table.headers), *(list(row) for row in table.rows)]


def test_names_are_escaped_for_tex() -> None:
    name = r"a_b & 5% of $x^2$ {~} #1 \par <|>"
    text = latex_table(Table("ti%tle\nof two lines", ["m", "v"], [[name, "30.0 ± 1.5"], ["–", ""]], note="no_te"))
    row = next(line for line in text.splitlines() if line.startswith("a"))
    assert row == (
        r"a\_b \& 5\% of \$x\textasciicircum{}2\$ \{\textasciitilde{}\} \#1 \textbackslash{}par "
        r"\textless{}\textbar{}\textgreater{} & 30.0 $\pm$ 1.5 \\"
    )
    assert r"-- &  \\" in text
    assert text.splitlines()[0] == "% ti%tle of two lines"  # one comment, nothing left outside it


def test_both_files_are_written_beside_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "ft", pictures=0)
    files = {"--out": "r.html", "--csv": "tables/r.csv", "--tex": "tables/r.tex"}
    assert run("report", folder, *(word for option, file in files.items() for word in (option, tmp_path / file))) == 0
    assert (tmp_path / "tables/r.csv").read_text() == scores_csv([Run.read(folder)])
    assert (tmp_path / "tables/r.tex").read_text() == latex_table(summary_table([Run.read(folder)]))
    capsys.readouterr()
    assert run("report", folder, "--csv", tmp_path, "--out", tmp_path / "new.html") == 2
    assert "is a folder: name the file to write" in capsys.readouterr().err
    assert not (tmp_path / "new.html").exists()
