"""The page in a real browser: what a person sees and does there."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from incseg.colours import palette
from incseg.report.page import write_report
from sample_runs import NAMES, write_run

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SWITCHES = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync"]  # fmt: skip
PHONE, DESK = 375, 1280
OpenPage = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = os.environ.get("INCSEG_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("no Chromium here: install Debian's package 'chromium', or name one in INCSEG_CHROMIUM")
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=program, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report([write_run(folder / name, name) for name in ("ft", "mib")], folder / "report.html")
    return folder / "report.html"


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Open a page, and see to it at the end that nothing went wrong in it and nothing was asked of a network."""
    troubles: list[str] = []
    contexts = []

    def refuse(dialog: Any) -> None:
        troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def watch(request: Any) -> None:
        if not request.url.startswith(("data:", "file:")):
            troubles.append(f"request: {request.url}")

    def open_in(path: Path, width: int = DESK, scheme: str = "light", scripts: bool = True) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=scripts
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on("dialog", refuse)
        page.on("request", watch)
        page.goto(path.as_uri())
        if scripts and page.locator("#browser").count():
            playwright.expect(page.locator("#step-shown")).not_to_be_empty()
        return page

    yield open_in
    for context in contexts:
        context.close()
    assert not troubles


def canvases(page: Any) -> NDArray[np.uint8]:
    """(views, H, W, 4): the image's own canvas is empty, then ground truth, then the runs."""
    pixels = page.evaluate("""[...document.querySelectorAll(".views canvas")].map((canvas) => {
      const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
      const context = copy.getContext("2d", { willReadFrequently: true });
      context.drawImage(canvas, 0, 0);
      return [...context.getImageData(0, 0, canvas.width, canvas.height).data];
    })""")
    return np.asarray(pixels, np.uint8).reshape(len(pixels), 24, 24, 4)


def toggle(page: Any, name: str) -> Any:
    return page.locator(".toggles").get_by_label(name, exact=True)


def test_the_slider_moves_through_the_steps_and_the_pictures_follow(report: Path, open_page: OpenPage) -> None:
    page = open_page(report)
    assert page.locator("#step-shown").inner_text() == "1"
    last = canvases(page)
    page.locator("#step").fill("0")
    assert page.locator("#step-shown").inner_text() == "0"
    first = canvases(page)
    assert not last[0].any()
    assert not first[0].any()
    for view in (1, 2, 3):
        assert (first[view] != last[view]).any()
    page.locator("#step").fill("1")
    assert np.array_equal(canvases(page), last)


def test_pictures_show_the_palettes_colours_and_only_classes_that_are_on(report: Path, open_page: OpenPage) -> None:
    page = open_page(report)
    truth = canvases(page)[1]
    assert not truth[0].any(), "unlabelled pixels are off at first"
    assert not truth[12, 0].any(), "so is background"
    for channel in (1, 2, 3, 4):
        column = 24 * channel // 5 + 1
        assert truth[12, column].tolist() == [*palette()[channel].tolist(), 255]
    toggle(page, NAMES[1]).uncheck()
    hidden = canvases(page)
    assert not hidden[1, 12, 6].any()
    assert not hidden[3, 12, 6].any(), "in predictions too"
    assert np.array_equal(hidden[1, 12, 10:], truth[12, 10:]), "the others stay"
    toggle(page, NAMES[1]).check()
    assert np.array_equal(canvases(page)[1], truth)
    toggle(page, "background").check()
    assert canvases(page)[1, 12, 0].tolist() == [0, 0, 0, 255]
    page.locator("#no-classes").click()
    assert not canvases(page).any()
    page.locator("#all-classes").click()
    assert canvases(page)[1:, :, :, 3].all()


def test_what_is_said_beside_a_picture_is_counted_from_it(report: Path, open_page: OpenPage) -> None:
    page = open_page(report)
    notes = page.locator(".views figcaption").all_inner_texts()
    assert [note.strip() for note in notes] == ["image", "ground truth", "ft 37.5 %", "mib 100.0 %"]
    page.locator(".views canvas").nth(1).hover(position={"x": 4, "y": 60})
    assert page.locator("#pointed").inner_text() == "ground truth: background · ft: background · mib: background"


def test_opacity_lets_the_image_through(report: Path, open_page: OpenPage) -> None:
    page = open_page(report)
    page.locator("#opacity").fill("20")
    assert page.locator(".views canvas").nth(1).evaluate("c => c.style.opacity") == "0.2"
    assert page.locator("#opacity-shown").inner_text() == "20 %"


def test_keys_move_steps_images_and_toggles(report: Path, open_page: OpenPage) -> None:
    page = open_page(report)
    page.locator("#step").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#step-shown").inner_text() == "0"
    page.keyboard.press("n")
    seen = page.locator(".views canvas").nth(1)
    playwright.expect(seen).to_have_attribute("aria-label", "ground truth of 01 after step 0")
    assert page.locator(".thumbnails input").nth(1).is_checked()
    page.keyboard.press("p")
    playwright.expect(seen).to_have_attribute("aria-label", "ground truth of 00 after step 0")
    page.locator(".thumbnails input").nth(0).focus()
    page.keyboard.press("ArrowRight")  # a group of radio buttons knows arrows itself
    playwright.expect(seen).to_have_attribute("aria-label", "ground truth of 01 after step 0")
    box = toggle(page, NAMES[1])
    box.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#step-shown").inner_text() == "1"
    page.keyboard.press("Space")
    assert not box.is_checked()
    outline = box.evaluate("b => getComputedStyle(b).outlineStyle")
    assert outline != "none", "focus must be visible"


def test_only_classes_of_the_picture_are_offered(tmp_path: Path, open_page: OpenPage) -> None:
    names = ["background", *(f"class {i}" for i in range(1, 61))]
    write_report([write_run(tmp_path / "ft", classes=names, task="50-10", size=24)], tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    shown = page.locator(".toggles label:visible").all_inner_texts()
    assert 20 < len(shown) < 62
    assert "not labelled" in shown


def test_the_table_of_iou_shows_one_run_or_all(report: Path, open_page: OpenPage) -> None:
    page = open_page(report)
    cells = page.locator("#iou-table td:visible")
    both = cells.count()
    page.locator("#iou-run").select_option("mib")
    assert cells.count() == both / 2
    assert page.locator("#iou-table thead th[scope=colgroup]:visible").all_inner_texts() == ["mib"]
    page.locator("#iou-run").select_option("all runs")
    assert cells.count() == both


def test_the_confusion_matrix_is_that_of_run_and_step(report: Path, open_page: OpenPage) -> None:
    page = open_page(report)
    rows = page.locator("#confusion-table tbody tr")
    assert rows.count() == 5
    assert rows.nth(1).locator("td").all_inner_texts() == ["100", "", "", "", ""]  # fine-tuning has forgotten
    first = page.locator("#mistakes tbody tr").nth(0)
    assert first.locator("td").all_inner_texts() == [NAMES[1], "background", "100.0"]
    rows.nth(1).locator("td").nth(0).hover()
    assert (
        page.locator("#confusion-pointed").inner_text() == f"{NAMES[1]} predicted as background: 100.0 % of its pixels"
    )
    page.locator("#confusion-run").select_option("mib")
    assert rows.nth(1).locator("td").all_inner_texts() == ["1", "96", "1", "1", "1"]
    page.locator("#confusion-step").select_option("0")
    assert rows.count() == 3


def test_a_run_without_such_a_step_says_so(tmp_path: Path, open_page: OpenPage) -> None:
    runs = [write_run(tmp_path / "mib", "mib"), write_run(tmp_path / "joint", "joint", task="offline")]
    write_report(runs, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    page.locator("#confusion-run").select_option("joint (offline)")
    assert page.locator("#confusion-table tbody tr").count() == 5
    page.locator("#confusion-step").select_option("0")
    assert page.locator("#confusion-table").inner_text() == "This run has no such step."
    page.locator("#step").fill("0")
    assert page.locator(".views figcaption").all_inner_texts()[-1] == "joint (offline) not saved"


def test_150_classes_stay_usable(tmp_path: Path, open_page: OpenPage) -> None:
    names = ["background", *(f"a rather long name of class {i}" for i in range(1, 151))]
    runs = [write_run(tmp_path / name, name, classes=names, task="100-10") for name in ("ft", "mib")]
    write_report(runs, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html", width=PHONE)
    assert page.locator("#confusion-table td").count() == 151 * 151
    assert page.locator("#confusion-table td").nth(0).inner_text() == ""
    assert page.locator("#confusion .many").bounding_box()["height"] < 800
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [320, PHONE, 768, DESK])
def test_nothing_is_wider_than_the_screen(width: int, report: Path, open_page: OpenPage) -> None:
    assert open_page(report, width=width).evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_tables_are_whole_on_a_phone(tmp_path: Path, open_page: OpenPage) -> None:
    names = ["background", "road", "sidewalk", "building", "pole", "plants", "person", "bicycle", "motorcycle", "fence"]
    runs = [write_run(tmp_path / name, name, classes=names, task="5-2") for name in ("ft", "mib", "mib+ucd")]
    write_report(runs, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html", width=390)
    page.locator("details").first.evaluate("d => { d.open = true; }")
    boxes = page.locator(".scroll:visible")
    assert boxes.count() == 8
    assert boxes.evaluate_all("all => all.filter((box) => box.scrollWidth > box.clientWidth).length") == 0
    heads = page.locator(".scroll tbody th:visible")
    assert "without background" in heads.all_inner_texts()
    assert heads.evaluate_all("all => all.filter((head) => head.scrollWidth > head.clientWidth).length") == 0, "cut off"
    first = page.locator("#summary td[data-label='1-5']").first
    assert first.evaluate("cell => getComputedStyle(cell, '::before').content") == '"1-5 "'
    bar, number = page.locator(".bar svg").first.bounding_box(), page.locator(".bar span").first.bounding_box()
    assert bar["x"] >= number["x"] + number["width"], "a bar stands beside its number"


CONTRAST = """() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (colour) => {
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    const parts = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255);
    const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, two) => {
    const [high, low] = [light(one), light(two)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  const found = {};
  const cell = document.querySelector("#iou-table td");
  for (let level = 0; level <= 10; level++) {
    cell.className = `level-${level}`;
    const style = getComputedStyle(cell);
    found[cell.className] = contrast(style.color, style.backgroundColor);
  }
  for (let run = 0; run < 8; run++) {
    cell.className = `run-${run}`;
    found[cell.className] = contrast(getComputedStyle(cell).color, paper);
  }
  for (const selector of ["h1", "nav a", ".note", ".lead"])
    found[selector] = contrast(getComputedStyle(document.querySelector(selector)).color, paper);
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_both_themes(scheme: str, report: Path, open_page: OpenPage) -> None:
    contrasts = open_page(report, scheme=scheme).evaluate(CONTRAST)
    assert len(contrasts) == 23
    assert {name: value for name, value in contrasts.items() if value < 4.5} == {}


def test_it_follows_the_system_and_a_button_overrules_it(report: Path, open_page: OpenPage, tmp_path: Path) -> None:
    def brightness(page: Any, name: str) -> float:
        page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        with Image.open(tmp_path / f"{name}.png") as shot:
            return float(np.asarray(shot.convert("L")).mean())

    assert brightness(open_page(report, scheme="light"), "light") > 180
    assert brightness(open_page(report, scheme="dark", width=PHONE), "dark-phone") < 90
    page = open_page(report, scheme="dark")
    assert brightness(page, "dark") < 80
    page.locator("#theme").click()
    assert page.locator("#theme").inner_text() == "theme: light"
    assert brightness(page, "chosen") > 180


def test_names_above_the_confusion_matrix_are_turned_in_any_script(report: Path, open_page: OpenPage) -> None:
    first = open_page(report).locator("#confusion-table thead span").first  # else Chinese would stand on its head
    assert first.evaluate("span => getComputedStyle(span).textOrientation") == "sideways"


def test_names_from_outside_appear_as_they_are(report: Path, open_page: OpenPage) -> None:
    page = open_page(report)
    assert page.locator(".toggles label").all_inner_texts() == [*NAMES, "not labelled"]
    assert page.locator("#confusion-table tbody th").all_inner_texts() == list(NAMES)
    assert page.locator("main b").count() == 0
    assert page.locator("img:not([src^='data:image/jpeg'])").count() == 0


def test_without_scripts_there_are_tables_and_curves_and_a_word_on_the_rest(report: Path, open_page: OpenPage) -> None:
    page = open_page(report, scripts=False)
    assert page.locator("svg.panel:visible").count() == 4
    assert page.locator("#iou-table td:visible").count() == 2 * 2 * 6
    assert page.get_by_text("The picture browser needs scripts").is_visible()
    assert page.locator("#confusion h3:visible").all_inner_texts() == ["ft", "mib"]
    assert page.locator("input:visible, select:visible, button:visible").count() == 0
