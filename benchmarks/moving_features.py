"""Does a closed-form head gain if the features move?

A run trained by any method has a network after every step. The head is solved on the features of the latest one, and
what was gathered with the network before is carried over by a linear map fitted to both networks' features φ and φ' of
the step's own images, since old images are gone::

    D = argmin Σ ‖φ' − φ − D φ‖² + λ ‖D‖²        A ← (I + D) A (I + D)ᵀ,  B ← (I + D) B

Beside it: the frozen features of step 0, as ``analytic`` has them, and moved features without the map.

    python benchmarks/moving_features.py runs/10-1-mib [--data-root VOC2012] [--shrinkage 1 100 10000]

The network of every step should have moved a little: --optim.encoder-rate 0.1 --optim.incremental-epochs 5.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from incseg.batch import Batch
from incseg.config import RunConfig, from_yaml, merge, validate
from incseg.curriculum import Curriculum, build_curriculum
from incseg.engine.evaluator import loading_processes, score_step
from incseg.loading import WholeImages, whole_loader
from incseg.metrics import intersection_over_union, mean
from incseg.models import Segmenter
from incseg.models.closed_form import FeatureLayout, RandomFeatures, Statistics
from incseg.models.gather import GENEROUS, Fit, feature_layout, gather, solved_head
from incseg.models.segmenter import padded_images
from incseg.models.storage import choose_device, load_model
from incseg.protocol import Protocol, Step
from incseg.run_folder import RunFolder

FIT = Fit(mirrored=True)  # as analytic has it


@dataclass(frozen=True)
class Followed:
    """The networks of a run, and the images of its steps."""

    folder: RunFolder
    config: RunConfig
    curriculum: Curriculum
    device: torch.device

    def network(self, step: int) -> Segmenter:
        """As it was after a step."""
        return load_model(self.folder.model(step), self.device)[0].eval()

    def images(self, step: Step) -> Iterator[Batch]:
        """Those that the step may see, with its labels."""
        own = self.curriculum.training_images(step, self.config.data.crop_size)
        whole = WholeImages(own.split, own.indices, own.table)
        for batches in whole_loader(whole, self.config.engine.score_batch_size, loading_processes(self.config)):
            yield from batches

    def cells(self, step: Step, layout: FeatureLayout) -> Tensor:
        """How many cells of the grid each class fills."""
        own = self.curriculum.training_images(step, self.config.data.crop_size)
        return own.pixel_counts(step.num_classes) / layout.stride**2

    def score(self, network: Segmenter, statistics: Statistics, step: Step) -> dict[str, float]:
        """mIoU without background in percent, of the classes of step 0, of later ones and of all."""
        sizes = [step.num_classes]
        network.use_head(solved_head(statistics, sizes, FIT.ridge))
        confusion = score_step(network, self.curriculum, step, self.config, self.device).sum(dim=0)[0].cpu()
        iou = [100 * value for value in intersection_over_union(confusion)]
        first = self.curriculum.steps[0].num_classes
        return {"old": mean(iou[1:first]), "new": mean(iou[first:]), "all": mean(iou[1:])}


def main() -> None:
    """Print a line of JSON for the frozen features, and for the moved ones with and without the map."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--shrinkage", type=float, nargs="+", default=[1.0, 100.0, 10000.0])
    parser.add_argument("--width", type=int)
    given = parser.parse_args()
    folder = RunFolder(given.run)
    if len(folder.finished_steps) < 2:
        parser.error(f"{given.run} is not the folder of a run with two or more finished steps")
    config = from_yaml(folder.config)
    if given.data_root is not None:
        config = validate(merge(config.model_dump(), {"data": {"root": given.data_root}}))
    curriculum = build_curriculum(Protocol.parse(config.protocol), config.data)
    run = Followed(folder, config, curriculum, choose_device("auto"))
    layout = feature_layout(
        run.network(0), curriculum.steps[-1].num_classes, width=given.width, ratio=GENEROUS, seed=config.seed
    )
    for name, found in followed(run, layout, given.shrinkage).items():
        print(json.dumps({"features": name, **{key: round(value, 2) for key, value in found.items()}}), flush=True)


def followed(run: Followed, layout: FeatureLayout, shrinkages: list[float]) -> dict[str, dict[str, float]]:
    """The final scores by how features are treated."""
    names = ["frozen", "moved", *(f"moved, mapped with λ {value:g}" for value in shrinkages)]
    first = run.curriculum.steps[0]
    begun = gathered(run, first, run.network(0), Statistics.empty(layout, run.device))
    statistics = dict.fromkeys(names, begun)
    for step in run.curriculum.steps[1:]:
        before, network = run.network(step.index - 1), run.network(step.index)
        moments = drift_moments(before, network, RandomFeatures(layout).to(run.device), run.images(step))
        for name, value in zip(names[2:], shrinkages, strict=True):
            statistics[name] = carried_over(statistics[name], moments, value)
        for name in names:
            used = run.network(0) if name == "frozen" else network
            statistics[name] = gathered(run, step, used, statistics[name])
    last = run.curriculum.steps[-1]
    return {
        name: run.score(run.network(0 if name == "frozen" else last.index), found, last)
        for name, found in statistics.items()
    }


def gathered(run: Followed, step: Step, network: Segmenter, statistics: Statistics) -> Statistics:
    """Statistics with a step added, as ``analytic`` adds it."""
    cells = run.cells(step, statistics.layout)
    grown = statistics.with_classes(cells[statistics.num_classes :])
    return gather(network, grown, run.images(step), FIT, complete=step.complete)


@torch.no_grad()
def drift_moments(
    before: Segmenter, after: Segmenter, features: RandomFeatures, images: Iterator[Batch]
) -> tuple[Tensor, Tensor]:
    """``Σ (φ' − φ) φᵀ`` and ``Σ φ φᵀ`` over the cells of some images, (W, W) float64 each."""
    width = features.layout.width
    moved = torch.zeros(width, width, dtype=torch.float64, device=before.mean.device)
    gram = torch.zeros_like(moved)
    for batch in images:
        padded = padded_images(batch.images.to(moved.device))
        old, new = (features(*network.features(padded)).flatten(0, 2) for network in (before, after))
        moved += (new - old).T @ old
        gram += old.T @ old
    return moved, gram


def carried_over(statistics: Statistics, moments: tuple[Tensor, Tensor], shrinkage: float) -> Statistics:
    """Statistics as if they had been gathered with the network of now."""
    moved, gram = moments
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(gram + shrinkage * identity)
    map_ = identity + torch.cholesky_solve(moved.T, factor).T
    upper = statistics.gram.triu()
    symmetric = upper + upper.triu(1).T
    return replace(statistics, gram=map_ @ symmetric @ map_.T, cross=map_ @ statistics.cross)


if __name__ == "__main__":
    main()
