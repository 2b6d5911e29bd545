"""How much training a run still needs, roughly: of several at once, the longest are to begin first."""

from collections.abc import Sequence

from incseg.curriculum import Curriculum
from incseg.methods import Method, parse
from incseg.protocol import Step
from incseg.run_folder import RunFolder
from incseg.study.planned_run import PlannedRun

FORWARD = 1 / 3  # of an iteration: the backward pass takes twice as long


def longest_first(runs: Sequence[PlannedRun], curricula: Sequence[Curriculum]) -> list[PlannedRun]:
    """The runs by what they still need, given the curriculum of each.

    One that solves a head on its step 0 comes after all that do not: it can begin with theirs, and they not with its.
    """

    def priority(pair: tuple[PlannedRun, Curriculum]) -> tuple[bool, float]:
        return pair[0].solves, -remaining_work(*pair)

    return [run for run, _ in sorted(zip(runs, curricula, strict=True), key=priority)]


def remaining_work(run: PlannedRun, curriculum: Curriculum) -> float:
    """The pixels that still go through a network, there and back."""
    config, finished = run.config, RunFolder(run.folder).finished_steps
    method = parse(config.method, config.settings)
    passes = 0.0
    for step in curriculum.steps:
        if step.index not in finished:
            images = curriculum.training_images(step, config.data.crop_size, keep_old=method.keeps_data)
            passes += len(images) * _passes(method, step, config.optim.epochs_at(step.index))
    return passes * config.data.crop_size**2


def _passes(method: Method, step: Step, epochs: int) -> float:
    """How often a step's images go through the student, and forward only through the teacher."""
    if step.index > 0 and method.solves:
        return FORWARD
    return epochs * (1 + FORWARD * (step.index > 0 and method.needs_teacher))
