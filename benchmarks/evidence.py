"""The runs on Pascal VOC behind docs/results.md: everything that is compared there, the most telling first.

    python benchmarks/evidence.py VOC256 --weights resnet18=resnet18.imagenet-like.fp16.safetensors --dry-run
    python benchmarks/evidence.py VOC256 --jobs 8 --weights resnet18=resnet18.imagenet-like.fp16.safetensors \\
      tu-tf_efficientnet_lite0=tf_efficientnet_lite0.imagenet.fp16.safetensors
    incseg results collect runs/evidence --out benchmarks/results

It can be stopped at any time (Ctrl-C): what is finished can be collected, and run again, it resumes. Runs with a record
in ``--recorded`` are not trained again; a record is of the same run if precision and the name of the weights' file are
the same too. Step 0 is trained once per seed for all that can share it, also of other protocols. Two trainings of
one step 0 differ, and what grows from them differs by more. So rows that are read as differences of tenths are trained
together: where one of them is missing, or began with another step 0, all of its protocol and seed are planned again.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from incseg.cli.studies import entrant
from incseg.console import Console
from incseg.engine.cores import share_of_cores
from incseg.engine.precision import with_precision
from incseg.results import Run
from incseg.study import children
from incseg.study.comparison_plan import plan_comparison
from incseg.study.execution import execute, refuse_failures
from incseg.study.planned_run import PlannedRun
from incseg.study.record import find_record
from incseg.study.repetitions import seeds_from
from incseg.study.schedule import Schedule, command_of

ONE, THREE = 1, 3
MANY, FEW, TEN, DISJOINT = "voc/15-1/overlapped", "voc/15-5/overlapped", "voc/10-1/overlapped", "voc/15-5/disjoint"
FROZEN = "mib+ucd --ucd.frozen-head true"
RELEASED = [f"{method} --ucd.released true" for method in ("mib+ucd", "plop+ucd")]
ABLATIONS = {
    "contrast": ("mib+segment", "mib+pixel", "mib+cd"),
    "temperature": tuple(f"mib+ucd --ucd.temperature {value}" for value in (0.01, 0.05, 0.1, 0.2, 0.5, 1)),
    "weight": tuple(f"mib+ucd --ucd.weight {value}" for value in (0.0001, 0.001, 0.1, 1.0)),
    "sets": (
        "mib+ucd --ucd.student old+new+background --ucd.teacher old+new+background",
        "mib+ucd --ucd.teacher old+new",
    ),
    "form": ("mib+ucd --ucd.denominator pair", "mib+ucd --ucd.detach-contrast true"),
}


@dataclass(frozen=True)
class Study:
    """Methods under some protocols, with some seeds, on one encoder."""

    what: str
    protocols: Sequence[str]
    methods: Sequence[str]
    seeds: int = ONE
    encoder: str = "resnet18"
    together: bool = False
    """Whether its rows are compared with each other in one protocol and seed, and so are to begin with one step 0."""

    def missing(self, runs: Sequence[PlannedRun], records: Path) -> list[PlannedRun]:
        """Which of these runs are to be trained."""
        found = {run.folder: first_step(run, records) for run in runs}
        if not self.together:
            return [run for run in runs if found[run.folder] is None]
        starts: dict[tuple[str, int], set[str | None]] = {}
        for run in runs:
            starts.setdefault((run.config.protocol, run.seed), set()).add(found[run.folder])
        scattered = {place for place, known in starts.items() if len(known) > 1 or None in known}
        return [run for run in runs if (run.config.protocol, run.seed) in scattered]

    def runs(self, given: argparse.Namespace) -> Iterator[PlannedRun]:
        """Seed by seed, and of each seed method by method."""
        plan = plan_comparison(
            self.protocols,
            [entrant(method) for method in self.methods],
            seeds=seeds_from(self.seeds),
            out=given.out / self.encoder,
            data_root=[str(given.voc)],
            settings=self._settings(given),
        )
        by_method = zip(*(plan.cells[protocol].values() for protocol in self.protocols), strict=True)
        found = [run for cells in by_method for run in itertools.chain(*zip(*cells, strict=True))]
        yield from sorted(found, key=lambda run: run.seed)

    def _settings(self, given: argparse.Namespace) -> dict[str, Any]:
        return {
            "data": {"crop_size": 256},
            "optim": {"epochs": given.epochs, "batch_size": 24},
            "model": {"encoder": self.encoder, "weights": given.weights[self.encoder]},
            # Nobody extends these models; and a log line waits for the GPU, which others use meanwhile.
            "engine": {"statistics": False, "log_every": 50, "precision": given.precision},
        }


WIDE = "analytic --analytic.width 8192"
# What the recipe chooses for the head to look at, without it: training crops, and the surroundings of a cell.
WHOLE = "analytic --analytic.crops 0 --analytic.mirrored true"
SEEN = [WHOLE, f"{WHOLE} --analytic.context 0"]
# Other features for the closed form to begin with: shaped by UCD's contrast at step 0, or by a yes or no per class.
SHAPED = ["pixel+analytic --pixel.from-the-start true", "dkd+analytic"]
JOINT, ONE_CLASS, LITE = "voc/offline", "voc/19-1/overlapped", "tu-tf_efficientnet_lite0"
MAIN = ["mib", "mib+ucd", "plop", "plop+ucd", "analytic"]
# What of the paper's gain is the contrast, and what the frozen head.
PAIRED = [*MAIN[:4], FROZEN, f"{FROZEN} --ucd.weight 0.0"]
LATER = ["star", "dkd", "rcil", "mib+ewf", "mbs", "mib+nest"]

STUDIES = (
    Study("the closed form", [MANY, FEW], ["analytic"], THREE),
    Study("the upper reference", [JOINT], ["ft"], THREE),
    Study("who is ahead", [MANY, FEW], ["ft", *MAIN, "lwf", "ilt", "ucd", "ucd --ucd.weight 0.0", *LATER]),
    Study("does UCD help", [MANY, FEW], PAIRED, THREE, together=True),
    Study("does UCD help cross-entropy", [MANY, FEW], ["ucd", "ucd --ucd.weight 0.0"], THREE, together=True),
    Study("does UCD help DKD", [MANY, FEW], ["dkd", "dkd+ucd"], together=True),
    Study("does UCD help STAR", [MANY, FEW], ["star", "star+ucd"], together=True),
    Study("does UCD help elsewhere", [DISJOINT, ONE_CLASS, TEN], MAIN[:4], together=True),
    Study("the paper's ablation", [DISJOINT], ["mib", "mib+ucd", *itertools.chain(*ABLATIONS.values())], together=True),
    Study("the main rows, disjoint", [DISJOINT], [*MAIN, "ft"]),
    Study("with a step 0 of their own", [MANY, FEW], ["sdr", "mib+sdr", *RELEASED]),
    Study("one new class", [ONE_CLASS], [*MAIN, "ft"]),
    Study("ten steps", [TEN], MAIN),
    Study("a remedy: more weight", [MANY, FEW], [f"mib+ucd --ucd.weight {value}" for value in (0.1, 1.0)]),
    Study("a wider closed form", [MANY, FEW], [WIDE]),
    Study("ten steps again", [TEN], ["analytic"], THREE),
    Study("another encoder: the upper reference", [JOINT], ["ft"], ONE, LITE),
    Study("another encoder", [MANY, FEW], MAIN, ONE, LITE),
    *(
        Study(
            f"batches of {size}", [DISJOINT], [f"{name} --optim.batch-size {size}" for name in MAIN[:2]], together=True
        )
        for size in (12, 4)
    ),
    Study("before it again", [MANY, FEW], ["ft", "lwf", "ilt", "sdr", "mib+sdr", "ucd", *RELEASED], THREE),
    Study("a wider closed form again", [MANY, FEW, TEN], [WIDE], THREE),
    Study("one new class and ten steps, trained, again", [ONE_CLASS, TEN], MAIN, THREE),
    Study("the ablation again", [DISJOINT], [*MAIN, *ABLATIONS["contrast"]], THREE),
    Study("weights that move again", [MANY, FEW], ["mib+ewf"], THREE),
    Study("later methods again", [MANY, FEW], ["dkd", "star"], THREE),
    Study("unknown objects", [FEW, MANY], ["ssul"]),
    Study("what the closed form sees", [MANY, FEW], SEEN, THREE),
    Study("the weight of MiB's distillation", [MANY, FEW], ["mib --mib.kd-weight 100"]),
    Study("weights that move", [MANY, FEW], ["ewf"]),
    Study("other features", [MANY, FEW], SHAPED),
    Study("losses of later methods again", [MANY, FEW], ["mib+nest", "mbs", "rcil"], THREE),
)


def first_step(run: PlannedRun, folder: Path) -> str | None:
    """Of the record of such a run with this machine's precision: what step 0 scored, if there is one."""
    record = find_record(with_precision(run.config), folder)
    return None if record is None else json.dumps(Run.read(record).steps[0]["iou"])


def main() -> None:
    """Plan all that there are weights for, and train it or say how."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("voc", type=Path, help="folder of VOC 2012, with the augmented list")
    parser.add_argument("--weights", nargs="+", required=True, metavar="ENCODER=FILE", help="with which encoders begin")
    parser.add_argument("--out", type=Path, default=Path("runs/evidence"))
    parser.add_argument("--epochs", type=int, default=30, help="a step")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument(
        "--only", nargs="*", default=[], metavar="TEXT", help="studies whose name contains one of these"
    )
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="TEXT", help="methods with one of these in their name"
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=[], metavar="SEED", help="only these")
    parser.add_argument("--precision", default="auto", help="of the machine that trains, to plan on another one")
    parser.add_argument("--recorded", type=Path, default=Path("benchmarks/results"), help="folder of records")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and train nothing")
    given = parser.parse_args()
    given.weights = dict(text.split("=", 1) for text in given.weights)
    wanted = [
        study
        for study in STUDIES
        if study.encoder in given.weights and (not given.only or any(text in study.what for text in given.only))
    ]
    if not given.dry_run:
        children.import_ahead(share_of_cores(given.jobs))
    planned: dict[Path, PlannedRun] = {}
    missing: dict[Path, PlannedRun] = {}
    for study in wanted:
        runs = [
            run
            for run in study.runs(given)
            if not any(text in run.method for text in given.without) and (not given.seeds or run.seed in given.seeds)
        ]
        planned |= {run.folder: run for run in runs}
        to_train = study.missing(runs, given.recorded)
        print(f"{study.what}: {len(to_train)} of {len(runs)} runs to train", file=sys.stderr)
        missing |= {run.folder: run for run in to_train if run.folder not in missing}
    print(f"{len(planned)} runs, {len(missing)} of them to train", file=sys.stderr)
    schedule = Schedule(list(missing.values()))
    if given.dry_run:
        for run in schedule.runs:
            print(command_of(run, schedule.provider(run)))
        return
    refuse_failures(execute(schedule, Console(), given.jobs, in_order=True), schedule)


if __name__ == "__main__":
    main()
