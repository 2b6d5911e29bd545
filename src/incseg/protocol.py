"""Protocols: ``"voc/15-1/disjoint"`` becomes the steps in which classes are learnt. Pure Python, no tensors.

Inside incseg a class is known by its *channel*: 0 is background, and 1, 2, … are the classes in the order in which they
are learnt. So a classifier only ever grows at its end, whatever the dataset's own numbering.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from incseg.errors import InputError, closest

BACKGROUND = 0
LONGEST = 1000  # letters of a protocol: a task may list the size of 255 steps
IGNORE = 255  # a pixel without a label: part of no loss and no score
SALIENT = 254  # salient background on its way to a batch, where saliency maps are used; no class can then have it


class Setting(StrEnum):
    """Which images a step may see; only the step's own classes are labelled, unless it says otherwise."""

    OVERLAPPED = "overlapped"  # every image that shows at least one of the step's new classes
    DISJOINT = "disjoint"  # of those, the ones that show no class of a later step
    SEQUENTIAL = "sequential"  # the same images, and the old classes are labelled too
    PARTITIONED = "partitioned"  # every image in the step of one of its classes, which was drawn by chance
    DOMAIN = "domain"  # all classes from step 0 on; a step brings the images of further domains, such as cities

    @property
    def excludes_future(self) -> bool:
        """Whether images that show a class of a later step wait for that step."""
        return self in (Setting.DISJOINT, Setting.SEQUENTIAL)


def count_classes(classes: Sequence[str]) -> str:
    """In words, how many classes there are, of which the first is the background.

    >>> count_classes(["background", "cat"]), count_classes(["background", "cat", "dog"])
    ('1 class and background', '2 classes and background')
    """
    foreground = len(classes) - 1
    return f"{foreground} class{'es' if foreground != 1 else ''} and background"


@dataclass(frozen=True)
class Step:
    """One stage of learning, in channels: what was learnt before, what is learnt now, what comes later."""

    index: int
    old: tuple[int, ...]
    new: tuple[int, ...]
    future: tuple[int, ...] = ()
    base: tuple[int, ...] = ()
    """What step 0 learnt; tables of the field set these classes against all later ones."""
    labelled_old: tuple[int, ...] = ()
    """Old channels that this step's images label all the same, as an extension's may and a sequential protocol's do.

    Unless the step is complete, not all of its images label them: background may be any of them.
    """
    complete: bool = False
    """Every image of the step labels all old channels, so that its background hides none of them."""
    domains: tuple[int, ...] = ()
    """In a domain protocol, those whose images the step brings, counted from 0 in the order of learning."""
    future_domains: tuple[int, ...] = ()
    """Those of later steps."""

    @property
    def seen(self) -> tuple[int, ...]:
        """Every foreground channel known after this step."""
        return self.old + self.new

    @property
    def old_classes(self) -> int:
        """How many channels the teacher has, background included (1 at step 0, where there is no teacher)."""
        return 1 + len(self.old)

    @property
    def is_last(self) -> bool:
        """Whether nothing is left to be learnt."""
        return not (self.future or self.future_domains)

    @property
    def num_classes(self) -> int:
        """How many channels the student has, background included."""
        return 1 + len(self.seen)


@dataclass(frozen=True, repr=False)
class Protocol:
    """A dataset, a task such as ``15-5`` and a setting, as written ``voc/15-5/overlapped``."""

    dataset: str
    task: str
    setting: Setting

    def __str__(self) -> str:
        return f"{self.dataset}/{self.task}/{self.setting}"

    def __repr__(self) -> str:
        return f"Protocol('{self}')"

    @classmethod
    def parse(cls, text: str) -> "Protocol":
        """Read ``DATASET/TASK[/SETTING]``; the setting is ``overlapped`` unless given."""
        fields = text.split("/")
        if len(fields) not in (2, 3) or not all(fields) or len(text) > LONGEST:
            raise InputError(
                f"'{text[:100]}' is not a protocol: write DATASET/TASK/SETTING, for example voc/15-5/overlapped "
                "(see: incseg list protocols)."
            )
        setting = fields[2] if len(fields) == 3 else Setting.OVERLAPPED
        if setting not in list(Setting):
            raise InputError(
                f"'{setting}' in '{text}' is not a setting: use {', '.join(Setting)}.{closest(setting, Setting)}"
            )
        return cls(fields[0], fields[1], Setting(setting))

    def steps(self, num_foreground: int, num_domains: int = 0) -> list[Step]:
        """The steps of this protocol for a dataset with that many foreground classes and domains."""
        if self.setting is Setting.DOMAIN:
            return domain_steps(self.task, num_foreground, num_domains, self.dataset)
        found = steps(self.task, num_foreground, self.dataset)
        if self.setting is Setting.SEQUENTIAL:
            return [replace(step, labelled_old=step.old, complete=True) for step in found]
        return found


def steps(task: str, num_foreground: int, dataset: str = "the dataset") -> list[Step]:
    """Cut the channels 1 … ``num_foreground`` into steps.

    ``offline`` learns all at once; ``A-B`` learns A classes, then B at a time; three or more numbers are the sizes of
    the steps, one by one.

    >>> [step.new for step in steps("3-1", 5)]
    [(1, 2, 3), (4,), (5,)]
    """
    bounds = _bounds(task, num_foreground, f"classes of {dataset}", start=1)
    everything = tuple(range(1, num_foreground + 1))
    base = everything[: bounds[1] - 1]
    return [
        Step(index, everything[: start - 1], everything[start - 1 : stop - 1], everything[stop - 1 :], base)
        for index, (start, stop) in enumerate(itertools.pairwise(bounds))
    ]


def domain_steps(task: str, num_foreground: int, num_domains: int, dataset: str = "the dataset") -> list[Step]:
    """Cut the domains 0 … ``num_domains − 1`` into steps; step 0 learns every class, later ones bring no new class.

    >>> [step.domains for step in domain_steps("2-1", 19, 4)]
    [(0, 1), (2,), (3,)]
    """
    everything, domains = tuple(range(1, num_foreground + 1)), tuple(range(num_domains))
    bounds = _bounds(task, num_domains, f"domains of {dataset}", start=0)
    return [
        Step(
            index,
            old=everything if index else (),
            new=() if index else everything,
            base=everything,
            labelled_old=everything if index else (),
            complete=True,
            domains=domains[start:stop],
            future_domains=domains[stop:],
        )
        for index, (start, stop) in enumerate(itertools.pairwise(bounds))
    ]


def _bounds(task: str, number: int, what: str, start: int) -> list[int]:
    """Where the steps begin, and where the last one ends, counted from ``start``."""
    return list(itertools.accumulate(_step_sizes(task, number, what), initial=start))


def _step_sizes(task: str, number: int, what: str) -> list[int]:
    """How many of ``number`` each step has; ``what`` these are, for a person."""
    if task == "offline":
        return [number]
    is_task = re.fullmatch(r"[1-9][0-9]*(-[1-9][0-9]*)+", task)  # int() alone also takes " 4", "+4" and "４"
    if not is_task:
        raise InputError(
            f"'{task}' is not a task: write 'offline', 'A-B' (A classes first, then B at a time, as in 15-5), "
            "or the size of every step (4-2-2)."
        )
    sizes = [int(field) for field in task.split("-")]
    if len(sizes) == 2:
        first, each = sizes
        later, left_over = divmod(number - first, each)
        if first >= number or left_over:
            raise InputError(
                f"the task {task} does not fit the {number} {what}: after the first {first}, "
                f"{max(number - first, 0)} are left to be learnt {each} at a time; choose A-B with A + k·B = {number}."
            )
        sizes = [first] + [each] * later
    if sum(sizes) != number:
        raise InputError(f"the task {task} does not fit the {number} {what}: its steps add up to {sum(sizes)}.")
    return sizes


def class_order(
    classes: Sequence[str],
    wanted: Sequence[str] | None = None,
    published: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[int, ...]:
    """The dataset's class ids in the order in which they are learnt, background (id 0) first.

    Args:
        classes: the dataset's class names by id, background first.
        wanted: foreground class names in the order wished for, or the name of a published order alone; the dataset's
            own order when None.
        published: orders that have a name.
    """
    if wanted is None:
        return tuple(range(len(classes)))
    published = published or {}
    if len(wanted) == 1 and wanted[0] in published:
        return published[wanted[0]]
    ids = {name: index for index, name in enumerate(classes) if index > 0}
    for name in wanted:
        if name not in ids:
            orders = f" nor one of its published orders ({', '.join(published)})" if published else ""
            raise InputError(
                f"class_order names '{name}', which is not a class of the dataset{orders}.{closest(name, ids)}"
            )
    if len(set(wanted)) != len(wanted) or len(wanted) != len(ids):
        missing = sorted(set(ids) - set(wanted)) or "none missing, some named twice"
        raise InputError(f"class_order must name every foreground class exactly once; missing: {missing}.")
    return (0, *(ids[name] for name in wanted))
