"""Domain protocols: which images of which cities are learnt from and scored, on trees of the right shape."""

from pathlib import Path

import numpy as np
import pytest

from incseg.config import DataConfig
from incseg.curriculum import ProtocolCurriculum, build_curriculum
from incseg.datasets.cityscapes import CITIES, LABEL_IDS
from incseg.errors import InputError
from incseg.protocol import Protocol
from samples import into_subfolders, write_cityscapes, write_folder

ROAD, CAR = LABEL_IDS["road"], LABEL_IDS["car"]


@pytest.fixture
def streets(tmp_path: Path) -> Path:
    """Three training cities, of which one has no car, and a validation city; ten images each."""
    train = {f"{city}_0_{i:02d}": [ROAD] if city == "aachen" else [ROAD, CAR]
             for city in ("aachen", "bochum", "zurich") for i in range(10)}  # fmt: skip
    return write_cityscapes(tmp_path / "city", train, {f"munster_0_{i:02d}": [ROAD, CAR] for i in range(10)})


def plan(root: Path, protocol: str, **settings: object) -> ProtocolCurriculum:
    built = build_curriculum(Protocol.parse(protocol), DataConfig.model_validate({"root": root, **settings}))
    assert isinstance(built, ProtocolCurriculum)
    return built


def test_a_step_learns_from_most_images_of_its_cities_and_scores_the_others(streets: Path) -> None:
    found = plan(streets, "cityscapes/2-1/domain")
    steps = found.describe()["steps"]
    assert [step["domains"] for step in steps] == [["aachen", "bochum"], ["zurich"], ["munster"]]
    assert [len(step["images"]) for step in steps] == [16, 8, 8]
    learnt = {name for step in steps for name in step["images"]}
    for step in found.steps:
        scored = found.scored_images(step)
        assert [len(images) for images in scored] == [4, 2, 2][: step.index + 1]
        for brought, images in zip(steps, scored, strict=False):
            names = {images.split.ids[index] for index in images.indices}
            assert {name.split("_")[0] for name in names} <= set(brought["domains"])
            assert not names & learnt


def test_the_images_are_those_of_plops_code(streets: Path) -> None:
    """It shuffles the list of a step's images, by the order of the files, and takes four fifths."""
    pool = [f"{city}_0_{i:02d}" for city in ("aachen", "bochum") for i in range(10)]
    order = list(range(20))
    np.random.RandomState(1).shuffle(order)
    first = plan(streets, "cityscapes/2-1/domain").describe()["steps"][0]
    assert first["images"] == sorted(pool[index] for index in order[:16])
    assert len(CITIES) == 21


def test_every_class_is_labelled_in_every_step_and_a_domain_may_lack_one(streets: Path) -> None:
    found = plan(streets, "cityscapes/1-1/domain", has_background=False)
    for step in found.steps:
        table = found.training_table(step)
        assert table[:20].tolist() == [255, *range(1, 20)]
        assert table[255] == 255
    assert len(found.steps) == 4


def test_balanced_sampling_knows_the_classes_of_later_steps(streets: Path) -> None:
    found = plan(streets, "cityscapes/2-1/domain", sampling="balanced")
    assert found.training_images(found.steps[1], 32).weights == (1 / 8 + 1 / 8,) * 8


def test_subfolders_of_a_folder_are_domains(tmp_path: Path) -> None:
    root = into_subfolders(write_folder(tmp_path / "data", train=8, val=4), ("day", "night"))
    found = plan(root, "folder/1-1/domain")
    assert [step["domains"] for step in found.describe()["steps"]] == [["day"], ["night"]]
    assert [list(indices) for indices in found.indices] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [len(images) for images in found.scored_images(found.steps[1])] == [2, 2]


@pytest.mark.parametrize(
    ("protocol", "settings", "message"),
    [
        ("cityscapes/11-5/domain", {}, "does not fit the 4 domains of cityscapes"),
        ("cityscapes/2-1/domain", {"splits": "lists"}, "takes no --splits"),
        ("folder/1-1/domain", {}, "does not say it: use cityscapes"),
    ],
)
def test_what_cannot_be_is_refused(
    streets: Path, tiny_folder: Path, protocol: str, settings: dict[str, str], message: str
) -> None:
    root = tiny_folder if protocol.startswith("folder") else streets
    with pytest.raises(InputError, match=message):
        plan(root, protocol, **settings)


def test_a_city_of_a_single_image_has_none_to_learn_from(streets: Path) -> None:
    write_cityscapes(streets, {"ulm_0_0": [ROAD]}, {})
    with pytest.raises(InputError, match=r"step 2 of .* has no image to learn from: cityscapes has none of ulm"):
        plan(streets, "cityscapes/1-1-1-1-1/domain")


def test_a_task_that_papers_count_in_cities_is_pointed_out(tmp_path: Path) -> None:
    everything = list(LABEL_IDS.values())
    root = write_cityscapes(tmp_path, {"ulm_0_0": everything}, {"lindau_0_0": everything})
    said: list[str] = []
    for task in ("11-1/overlapped", "13-1/overlapped"):
        build_curriculum(Protocol.parse(f"cityscapes/{task}"), DataConfig(root=root), said.append)
    hints = [line for line in said if "domain" in line]
    assert hints == [
        "cityscapes/11-1/overlapped counts classes; papers that write cityscapes 11-1 mean domains, which is "
        "cityscapes/11-1/domain."
    ]
