import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from incseg.errors import InputError
from incseg.report import page
from incseg.report.album import collect_album
from incseg.report.curves import loss_terms
from incseg.report.page import render, write_report
from incseg.report.per_class import iou_over_steps
from incseg.report.summary import read_runs
from incseg.results import Run
from made_up import write_result
from sample_runs import NAMES, write_run


class Reader(HTMLParser):
    """What a browser would see: tags, attributes, text; scripts and styles apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.ids: set[str] = set()
        self.raw: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids |= {value or "" for name, value in attrs if name == "id"}
        self._inside = f"{tag} {dict(attrs).get('type')}" if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside] = data
        else:
            self.text += data


@pytest.fixture(scope="module")
def reader(runs: list[Run]) -> Reader:
    return Reader(render(runs))


def test_every_part_of_the_report_is_there(reader: Reader) -> None:
    assert {"summary", "steps", "pictures", "iou", "forgetting", "confusion", "losses", "setup"} <= reader.ids
    for link in [value for _, name, value in reader.attributes if name == "href"]:
        assert link[1:] in reader.ids


def test_names_from_outside_are_text_and_nothing_else(reader: Reader, runs: list[Run]) -> None:
    assert not reader.tags["b"]
    assert not reader.tags["img"]
    assert not [attribute for attribute in reader.attributes if attribute[1].startswith("on")]
    for name in NAMES:
        assert name in reader.text
    assert "<script>alert(1)</script>" in reader.text  # of the configuration
    assert json.loads(reader.raw["script application/json"])["classes"] == list(NAMES)
    assert render(runs).count("</script>") == 2


def test_a_name_of_a_method_is_escaped_too(tmp_path: Path) -> None:
    name = "<svg onload=alert(1)>"
    reader = Reader(render([Run.read(write_run(tmp_path / "run", name))]))
    assert name in reader.text
    assert not [attribute for attribute in reader.attributes if attribute[1] == "onload"]


def test_nothing_is_loaded_from_anywhere(reader: Reader, runs: list[Run]) -> None:
    sources = [(tag, value) for tag, name, value in reader.attributes if name in ("src", "href", "srcset", "data")]
    assert all(tag == "a" and value.startswith("#") for tag, value in sources)
    assert not reader.tags["link"] + reader.tags["iframe"] + reader.tags["object"]
    assert not re.findall(r"(?:https?:|url\(|@import|\bfetch\(|XMLHttpRequest|import\()", render(runs))


def test_the_content_policy_names_the_very_script_and_style(reader: Reader) -> None:
    policy = next(value for tag, name, value in reader.attributes if tag == "meta" and "default-src" in value)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    expected = page._content_policy(reader.raw["style None"], reader.raw["script module"])
    assert policy == expected


def test_no_style_attributes_that_the_policy_would_block(reader: Reader) -> None:
    assert not [attribute for attribute in reader.attributes if attribute[1] == "style"]


def test_without_scripts_tables_and_curves_are_there(reader: Reader) -> None:
    assert reader.tags["polyline"] >= 4  # two panels of mIoU; losses come on top
    assert "needs scripts" in reader.text
    levels = [value for _, name, value in reader.attributes if name == "class" and "level-" in value]
    assert len(levels) == 2 * (3 + 5 + 2)  # per run: IoU at step 0, at step 1, and both means
    assert "100.0" in reader.text  # fine-tuning forgot: a whole class taken for background


def test_the_same_runs_give_the_same_page(runs: list[Run]) -> None:
    assert render(runs) == render(runs)


def test_pictures_beyond_the_room_are_left_out_and_counted(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    size = collect_album(runs).images[0].num_bytes
    album = collect_album(runs, most_bytes=size + size // 2)
    assert (len(album.images), album.left_out) == (1, 1)
    monkeypatch.setattr(page, "collect_album", lambda _: album)
    assert "1 more image was left out" in " ".join(Reader(render(runs)).text.split())


def test_a_run_without_pictures_or_log_still_has_a_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pictures=0)
    (run / "metrics.jsonl").unlink()
    (run / "config.yaml").unlink()
    write_report([run], tmp_path / "report.html")
    text = Reader((tmp_path / "report.html").read_text()).text
    assert "saved no pictures" in text
    assert "metrics.jsonl is missing, or nothing was trained" in text
    assert "config.yaml is missing" in text


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    broken = run / "step-1" / "predictions" / "00.truth.png"
    broken.write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"00\.truth\.png cannot be read as a picture"):
        write_report([run], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_one_step_has_nothing_to_forget(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task="offline")
    assert "nothing can have been forgotten" in Reader(render([Run.read(run)])).text


def test_all_classes_at_once_stand_beside_the_last_step_of_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "all", "joint", task="offline")
    runs = read_runs([tmp_path / "all", write_run(tmp_path / "mib", "mib")])
    reader = Reader(render(runs))
    assert "mib, joint (offline)" in reader.text
    data = json.loads(reader.raw["script application/json"])
    assert data["runs"] == ["mib", "joint (offline)"]
    assert data["confusion"][1][0] is None
    assert len(data["confusion"][1][1]["shares"]) == 5
    assert data["pictures"][0]["predictions"][1][0] is None
    assert data["pictures"][0]["predictions"][1][1]
    last = [row.cells[1] for row in iou_over_steps(runs)[0].rows]
    assert [(cells[0].text, cells[1].level is None) for cells in last] == [("", False)] * 3
    times = [x for x, _ in loss_terms(runs)[0].curves[1].points]
    assert (min(times) > 1, max(times)) == (True, 2)


def test_a_folder_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder: name the file to write"):
        write_report([write_run(tmp_path / "run")], tmp_path)


def test_the_page_shows_the_papers_numbers_where_there_are_some(tmp_path: Path) -> None:
    runs = read_runs([write_result(tmp_path / "a", "voc/15-5/disjoint", "mib+ucd", lambda _, __: 0.5)])
    assert "beside Table 1 of the paper" in render(runs)
