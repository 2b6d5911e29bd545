"""Where training images are kept once they are decoded, as ``--data.cache`` says: on the GPU, in RAM, or nowhere."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from lightning.fabric import Fabric
from torch import Tensor

from incseg.batch import Batch
from incseg.config import RunConfig
from incseg.curriculum.curriculum import Curriculum
from incseg.engine.captured import captured
from incseg.engine.evaluator import loading_processes
from incseg.engine.journal import Journal
from incseg.engine.machine import readable, whole_memory
from incseg.errors import InputError, Note
from incseg.loading import BatchAddresses, TrainingSet, device_loader, training_loader
from incseg.loading.decoded import DecodedImages, KeptSplit, Measured
from incseg.loading.resampling import BatchCutter, Cut
from incseg.protocol import Step
from incseg.run_folder import RunFolder

AUTOMATIC = 0.25  # of a GPU's memory: so much "auto" may take
MOST = 0.8  # of a memory: so much may be asked for
LARGEST = 8  # times the crop: a device averages at most as many pixels into one


@dataclass(frozen=True)
class ImageCache:
    """The training images of the steps to come, decoded once, at the first batch; the batches are the same anyway."""

    config: RunConfig
    fabric: Fabric
    curriculum: Curriculum
    journal: Journal
    folder: RunFolder
    is_read_again: Callable[[Step], bool]
    """Whether the images of a step may be asked for although it is finished."""

    def __post_init__(self) -> None:
        wanted, device = self.config.data.cache, self.fabric.device.type
        if wanted == "gpu" and device != "cuda":
            raise InputError(f"--data.cache gpu needs a CUDA device, and this run is on '{device}': use ram, or none.")

    def batches(self, images: TrainingSet, addresses: BatchAddresses, note: Note | None) -> Iterator[Batch]:
        """The batches of a step on the device, from wherever its images are kept."""
        decoded, in_ram = self._decoded, self.config.data.cache == "ram"
        if decoded is None or in_ram:
            return self._loaded(images if decoded is None else self._from_ram(images, decoded), addresses, note)
        if images.is_of_one_split:
            cut, in_process = self._cut_for(images, addresses), loading_processes(self.config) > 0
            return device_loader(images, decoded, cut, addresses, note, in_process=in_process)
        self.journal.mention("images are read from their files: some of those replayed are not of this dataset.")
        return self._loaded(images, addresses, note)

    def _loaded(self, images: TrainingSet, addresses: BatchAddresses, note: Note | None) -> Iterator[Batch]:
        workers, device = loading_processes(self.config), self.fabric.device
        loader = training_loader(images, addresses, workers, device.type == "cuda", note)
        return (batch.to(device) for batch in loader)

    def _from_ram(self, images: TrainingSet, decoded: DecodedImages) -> TrainingSet:
        return images.reading(KeptSplit(self.curriculum.learnt_from, decoded))

    def _cut_for(self, images: TrainingSet, addresses: BatchAddresses) -> Callable[[Tensor], Batch]:
        """Cuts the batches of a step, which takes some sixty short kernels: all at once, if an iteration is quick."""
        device = self.fabric.device
        cut = partial(self._cutter, tables=images.tables.to(device))
        if not self.config.engine.compile or device.type != "cuda":
            return cut
        pixel = Cut(start=0, stride=1, height=1, width=1, flipped=0, table=0, replayed=0)
        example = torch.tensor([pixel] * (addresses.share), device=device)
        together = captured(cut, example)
        return lambda cuts: together(cuts).clone()

    @cached_property
    def _cutter(self) -> BatchCutter:
        assert self._decoded is not None
        return BatchCutter(self._decoded, self.config.data.crop_size)

    @cached_property
    def _decoded(self) -> DecodedImages | None:
        """None where images are read from their files each time."""
        wanted, device = self.config.data.cache, self.fabric.device
        if wanted == "none" or (wanted == "auto" and device.type != "cuda"):
            return None
        finished = self.folder.finished_steps
        steps = zip(self.curriculum.steps, self.curriculum.indices, strict=True)
        needed = [images for step, images in steps if step.index not in finished or self.is_read_again(step)]
        indices = {index for images in needed for index in images}
        measured = Measured.of(self.curriculum.learnt_from, indices)
        reason = self._reason_against(measured)
        if wanted != "auto":
            self._refuse_if_any(reason)
        elif reason:
            self.journal.mention(f"images are read from their files in every epoch: {reason}.")
            return None
        where = torch.device("cpu") if wanted == "ram" else device
        with self.journal.progress("decoding images, once") as advance:
            decoded = measured.decoded(where, advance)
        place = "in RAM" if wanted == "ram" else "on the GPU"
        self.journal.mention(f"{len(decoded.layout.places)} images are kept {place}: {readable(measured.bytes)}")
        return decoded

    def _refuse_if_any(self, reason: str) -> None:
        """What one process cannot keep, none does: alone it would leave the others waiting."""
        reasons = [reason] * self.fabric.world_size
        if len(reasons) > 1:
            torch.distributed.all_gather_object(reasons, reason)
        if said := next(filter(None, reasons), ""):
            raise InputError(f"--data.cache {self.config.data.cache} is not possible: {said}; use another, or none.")

    def _reason_against(self, measured: Measured) -> str:
        """Why these images cannot be kept where the settings say; empty if they can."""
        wanted, crop, size = self.config.data.cache, self.config.data.crop_size, measured.bytes
        if wanted == "ram":
            needed, memory = self.config.engine.devices * size, whole_memory()
            return "" if memory is None or needed < MOST * memory else _too_large(needed, MOST, memory, "RAM")
        if measured.longest_side > LARGEST * crop:
            return (
                f"an image has {measured.longest_side} pixels on a side, more than {LARGEST} times the crop of {crop}"
            )
        free, total = torch.cuda.mem_get_info(self.fabric.device)
        share = AUTOMATIC if wanted == "auto" else MOST
        return "" if size < share * min(free, total) else _too_large(size, share, free, "free memory of the GPU")


def _too_large(size: int, share: float, memory: int, what: str) -> str:
    return f"they would take {readable(size)}, more than {share:.0%} of {readable(memory)} of {what}"
