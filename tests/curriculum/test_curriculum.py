from pathlib import Path

import numpy as np
import pytest

from incseg.curriculum.curriculum import LabelPolicy, ProtocolCurriculum
from incseg.datasets import open_source
from incseg.errors import InputError
from incseg.images import index_image
from incseg.protocol import Protocol
from samples import write_folder


def curriculum(root: Path, task: str = "folder/2-2/overlapped", **options: object) -> ProtocolCurriculum:
    return ProtocolCurriculum(open_source("folder", root), Protocol.parse(task), **options)  # type: ignore[arg-type]  # options


def test_joint_training_gathers_the_images_of_all_steps(tiny_folder: Path) -> None:
    lessons = curriculum(tiny_folder)
    first, second = lessons.steps
    alone = {set_ for step in (first, second) for set_ in lessons.training_images(step, 64).indices}
    assert set(lessons.training_images(second, 64, keep_old=True).indices) == alone
    assert lessons.training_images(second, 64, keep_old=True).table[1] == 1
    assert lessons.training_images(second, 64).table[1] == 0


def test_classes_are_named_in_the_order_of_learning(tiny_folder: Path) -> None:
    wanted = ["cross", "triangle", "square", "disc"]
    assert curriculum(tiny_folder, wanted_order=wanted).classes == ("background", *wanted)


def test_all_validation_images_may_be_scored(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", train=12, val=4)
    index_image(np.zeros((64, 64), np.uint8)).save(root / "masks" / "015.png")
    lessons = curriculum(root)
    everything = curriculum(root, policy=LabelPolicy(score_on_all=True))
    assert len(everything.scored_images(everything.steps[1])[0]) == 4
    assert len(lessons.scored_images(lessons.steps[1])[0]) == 3


def test_pictured_images_are_the_same_at_every_step(tiny_folder: Path) -> None:
    lessons = curriculum(tiny_folder)
    assert lessons.pictured_images(lessons.steps[0], 3)[0] == lessons.pictured_images(lessons.steps[1], 3)[0]


def test_a_step_without_images_is_refused_before_training(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", train=4, val=2)
    for mask in (root / "masks").iterdir():
        index_image(np.full((64, 64), 1, np.uint8)).save(mask)
    with pytest.raises(InputError, match=r"step 0 of folder/2-2/overlapped has no .* shows 'square' in data"):
        curriculum(root)
    with pytest.raises(InputError, match=r"step 1 of folder/1-3/overlapped has no .* shows 'square' \(nor 2 of its"):
        curriculum(root, "folder/1-3/overlapped")
