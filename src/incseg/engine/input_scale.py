"""At which scale a network learns, which its model remembers, and whether the scored images are near it."""

from statistics import median

from incseg.curriculum.curriculum import Curriculum
from incseg.loading.reduced import usual_shapes, usual_side
from incseg.loading.transforms import side_in_crops
from incseg.models import Segmenter
from incseg.sizes import far_from_training


def remember_scale(student: Segmenter, curriculum: Curriculum) -> None:
    """Note in the architecture, and so in every saved model, how images are reduced and at which scale they are learnt.

    A model that is extended keeps the scale of its first training.
    """
    data, architecture = curriculum.data, student.architecture
    sides = [side_in_crops(shape, data.crop_size) for shape in usual_shapes(curriculum.learnt_from)]
    seen = architecture.seen_side or (round(median(sides)) if sides else None)
    student.architecture = architecture.model_copy(update={"longest_side": data.longest_side, "seen_side": seen})


def scale_warning(student: Segmenter, curriculum: Curriculum) -> str:
    """A sentence if the images to be scored have another scale than those in the training crops; empty if not."""
    architecture = student.architecture
    for images in curriculum.scored_images(curriculum.steps[-1]):
        side = usual_side(images.split, architecture.longest_side) if images.crop is None else 0
        sentence = far_from_training(side, architecture.seen_side, "with --data.longest-side {}") if side else ""
        if sentence:
            return (
                f"images of {curriculum.source.name} to be scored, and probably those to be predicted, have {sentence}"
            )
    return ""
