"""Train the runs of a study, each in a process of its own, so that one that fails does not stop the others."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol as Interface

import torch

from incseg.config import DataConfig
from incseg.console import Console
from incseg.curriculum import Curriculum, build_curriculum
from incseg.engine.cores import share_of_cores
from incseg.errors import Stopped, TrainingError
from incseg.methods import parse
from incseg.protocol import Protocol
from incseg.study.children import Children
from incseg.study.latest_lines import LatestLines, last_line
from incseg.study.planned_run import PlannedRun
from incseg.study.schedule import Schedule
from incseg.study.workload import longest_first

PATIENCE = 0.2  # seconds between two looks at the processes


class Child(Interface):
    """What is asked of a process."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs."""


def execute(schedule: Schedule, console: Console, jobs: int = 1, *, in_order: bool = False) -> list[PlannedRun]:
    """Train the runs that are not done yet, up to ``jobs`` at once; returns those that failed.

    Of several at once the longest begin first, so that none is left alone at the end; with ``in_order`` those that come
    first in the schedule do, after those that train the step 0 that they begin with.
    """
    pending = [run for run in schedule.runs if not run.is_done] if in_order else [run for run, _ in schedule.pending]
    curricula = check_data(pending, console)
    if jobs > 1 and not in_order:
        pending = longest_first(pending, curricula)
    with Children().heard() as children, LatestLines(console) as latest:
        return Execution(schedule, console, jobs, children, pending, latest).run()


def refuse_failures(failed: Sequence[PlannedRun], schedule: Schedule) -> None:
    """Tell at the end which runs failed."""
    if failed:
        folders = ", ".join(str(run.folder) for run in failed)
        number = len(schedule.runs)
        raise TrainingError(f"{len(failed)} of {number} runs failed: {folders}; run this again to retry them.")


def check_data(runs: Sequence[PlannedRun], console: Console) -> list[Curriculum]:
    """Check the data, and every method on it, once before the first run, instead of failing in every run.

    Returns the curriculum of each run.
    """
    curricula: dict[tuple[str, DataConfig], Curriculum] = {}
    found: list[Curriculum] = []
    for run in runs:
        config = run.config
        method = parse(config.method, config.settings)
        key = (config.protocol, method.used(config.data))
        if key not in curricula:
            curricula[key] = build_curriculum(Protocol.parse(key[0]), key[1], console.say, console.mention)
        found.append(curricula[key])
        method.check(found[-1].steps, found[-1].classes)
    return found


@dataclass
class Execution:
    """Which runs wait, which are in training and in which place, which failed."""

    schedule: Schedule
    console: Console
    jobs: int
    children: Children
    waiting: list[PlannedRun]
    latest: LatestLines
    places: dict[int, tuple[PlannedRun, Child]] = field(default_factory=dict)
    replacing: set[Path] = field(default_factory=set)
    """Folders of runs in training that give a head of their own to a step 0 that was there, and score it again."""
    failed: list[PlannedRun] = field(default_factory=list)

    def run(self) -> list[PlannedRun]:
        """Until all are done or failed; returns those that failed."""
        total = len(self.waiting)
        while self.waiting or self.places:
            if self.children.asked_to_stop and not self.places:
                raise _stopped()
            while len(self.places) < self.jobs and not self.children.asked_to_stop and (ready := self._next_ready()):
                self.waiting.remove(ready)
                place = next(place for place in range(self.jobs) if place not in self.places)
                self.places[place] = (ready, self._start(ready, place, total - len(self.waiting), total))
            if not self._collect():
                self.latest.show([_log_of(run) for run, _ in self.places.values()] if self.jobs > 1 else [])
                time.sleep(PATIENCE)
        return self.failed

    def _next_ready(self) -> PlannedRun | None:
        """The first run whose step 0 is there, or comes from none of those in training.

        Before one that solves its head begins with a training, a run whose trained head it can begin with does.
        """
        ready = next(filter(self._can_begin, self.waiting), None)
        if ready is None or not ready.solves or ready.has_first_step or self._first_step_for(ready):
            return ready
        able = (other for other in self.waiting if not other.solves and ready.can_begin_with(other))
        return next(able, ready)

    def _can_begin(self, run: PlannedRun) -> bool:
        if run.has_first_step or self._first_step_for(run):
            return True
        return not any(run.can_begin_with(other) for other, _ in self.places.values())

    def _first_step_for(self, run: PlannedRun) -> Path | None:
        """The finished step 0 of any other run to begin with; that planned to provide it may have failed."""
        able = (other for other in self.schedule.runs if run.can_begin_with(other) and other.has_first_step)
        lasting = [other for other in able if other.folder not in self.replacing]
        return min(lasting, key=lambda other: other.solves).folder if lasting else None

    def _start(self, run: PlannedRun, place: int, number: int, total: int) -> Child:
        asked = ["--quiet"] * self.console.results_only + ["--progress", "json"] * self.console.in_lines
        first_step = None if run.has_first_step else self._first_step_for(run)
        if run.solves and (first_step or run.has_first_step):
            self.replacing.add(run.folder)
        command = [*run.arguments(first_step), *asked]
        log = _log_of(run) if self.jobs > 1 else None
        beside = f" (what it says: {log})" if log else ""
        self.console.mention(f"run {number} of {total}: incseg {shlex.join(command)}{beside}")
        waited_for = number == 1 and self._is_waited_for(run)
        share = self._share_of_the_machine(place, run.config.engine.devices, waited_for=waited_for)
        return self.children.start(command, log, share)

    def _is_waited_for(self, run: PlannedRun) -> bool:
        """Whether no other run can begin before its step 0 is there."""
        others = (other.has_first_step or not other.can_begin_with(run) for other in self.waiting)
        return not run.has_first_step and not any(others)

    def _share_of_the_machine(self, place: int, devices: int, *, waited_for: bool) -> dict[str, str]:
        """With several at once: a part of the cores, and where there are several GPUs, one after the other."""
        if self.jobs == 1:
            return {}
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))).split(",")
        own = {"CUDA_VISIBLE_DEVICES": gpus[place % len(gpus)]} if len(gpus) > 1 == devices else {}
        return share_of_cores(self.jobs, waited_for=waited_for) | own

    def _collect(self) -> bool:
        """Note the runs that have ended; returns whether there was one."""
        ended = {place: code for place, (_, child) in self.places.items() if (code := child.exitcode) is not None}
        for place, code in ended.items():
            run, _ = self.places.pop(place)
            self.replacing.discard(run.folder)
            if code == Stopped.EXIT_CODE or (code != 0 and self.children.asked_to_stop):  # some end before they listen
                raise _stopped()
            if code != 0:
                self.failed.append(run)
            if self.jobs > 1:
                self.console.mention(f"{'done' if code == 0 else 'failed'}: {run.folder}{_last_words(run, code)}")
        return bool(ended)


def _stopped() -> Stopped:
    return Stopped("stopped as it was asked to; run the same command again to resume from the last checkpoint.")


def _log_of(run: PlannedRun) -> Path:
    """Beside the folder of the run, which it makes itself."""
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    return run.folder.with_name(f"{run.folder.name}.log")


def _last_words(run: PlannedRun, code: int) -> str:
    said = last_line(_log_of(run)) if code else ""
    return f" ({said})" if said else ""
