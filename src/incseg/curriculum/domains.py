"""Domains: whether a dataset has them, and which of their images are learnt from and which are scored."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from incseg.config import DataConfig
from incseg.datasets import Source
from incseg.datasets.file_split import FileSplit
from incseg.datasets.source import Domains, Validation
from incseg.errors import InputError
from incseg.protocol import Protocol, Step

LEARNT, SEED = 0.8, 1  # of each step's images, as in PLOP's code, and the seed with which it shuffles them


def require_domains(source: Source, protocol: Protocol, data: DataConfig) -> Domains:
    """The domains of a dataset; refuses one without, and lists, which the domains themselves replace."""
    if source.domains is None:
        raise InputError(
            f"{protocol} needs to know where each image comes from, and {source.name} does not say it: use cityscapes, "
            "whose domains are cities, or a folder with a subfolder of images/ and masks/ for each domain."
        )
    if data.splits is not None:
        raise InputError(f"{protocol} takes no --splits: the images of a step are those of its domains.")
    return source.domains


def shared_out(source: Source, steps: Sequence[Step], domains: Domains) -> Source:
    """Both splits put together; of every step's images four fifths are to learn from, the others to be scored on.

    They are those that PLOP's code learns from. It scores a fifth of all domains so far, shuffled anew, of which after
    step 0 most were learnt from; here no image is both.
    """
    assert isinstance(source.train, FileSplit)
    assert isinstance(source.val, FileSplit)
    pool = source.train.followed_by(source.val)
    learnt: list[int] = []
    for step in steps:
        names = {domains.names[index] for index in step.domains}
        images = [index for index, name in enumerate(pool.ids) if domains.of(name) in names]
        np.random.RandomState(SEED).shuffle(images)  # the generator of the published code
        learnt += images[: int(LEARNT * len(images))]
    held_out = set(range(len(pool))) - {*learnt}
    train, val = pool.subset(sorted(learnt)), pool.subset(sorted(held_out))
    chosen = Validation(given=False, words="whose images are shared out anew")
    return replace(source, train=train, val=val, validation=chosen)
