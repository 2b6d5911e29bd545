"""A figure of methods side by side: which images and methods it shows, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command_line import run
from incseg.colours import palette
from incseg.errors import InputError
from incseg.report.overlays import OPACITY, painted
from incseg.report.side_by_side import side_by_side
from incseg.report.summary import read_runs
from sample_runs import write_run


def test_a_row_per_image_that_all_kept_and_a_column_per_method(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "a", "ft", pictures=1), write_run(tmp_path / "b", "mib", pictures=2)]
    figure = side_by_side(read_runs(folders))
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["image", "ground truth", "ft", "mib"], "one of the images was kept by one run alone"
    pictures = [np.asarray(ax.get_images()[0].get_array()) for ax in figure.axes]
    predictions = tmp_path / "b" / "step-1" / "predictions"
    with Image.open(predictions / "00.image.jpg") as file, Image.open(predictions / "00.prediction.png") as map_file:
        image, channels = np.asarray(file.convert("RGB")), np.asarray(map_file)
    where = channels == channels.max()
    assert channels.max() > 0
    np.testing.assert_allclose(
        pictures[3][where],
        (1 - OPACITY) * image[where] / 255 + OPACITY * palette()[channels.max()] / 255,
        err_msg="the last column shows what the second run predicts after its last step",
    )
    assert {text.get_text() for text in figure.legends[0].get_texts()} <= set(read_runs(folders)[0].classes)


def test_of_several_seeds_the_first_is_shown(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / str(seed), "mib", seed=seed, pictures=1) for seed in (42, 43)]
    assert [ax.get_title() for ax in side_by_side(read_runs(folders)).axes] == ["image", "ground truth", "mib"]


def test_background_is_left_as_it_is() -> None:
    image = np.full((1, 2, 3), 255, np.uint8)
    assert painted(image, np.array([[0, 1]]), "distinct")[0, 0].tolist() == [1.0, 1.0, 1.0]


def test_runs_without_a_picture_in_common_are_refused(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "a", "ft", pictures=0), write_run(tmp_path / "b", "mib", pictures=2)]
    with pytest.raises(InputError, match="these runs have no picture in common"):
        side_by_side(read_runs(folders))


def test_the_command_writes_the_figure_and_refuses_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = write_run(tmp_path / "a", "ft", pictures=2), tmp_path / "page.html"
    assert run("report", folder, "--pictures", tmp_path / "figure.txt", "--out", page) == 2
    assert "a figure is written as .png, .pdf, .svg, .jpg" in capsys.readouterr().err
    assert not page.exists(), "refused before anything is written"
    for name, begins in (("figure.png", b"\x89PNG"), ("figure.PDF", b"%PDF")):
        assert run("report", folder, "--pictures", tmp_path / name, "--out", page) == 0
        assert (tmp_path / name).read_bytes().startswith(begins)
    assert f"pictures: {tmp_path / 'figure.PDF'}" in capsys.readouterr().out
