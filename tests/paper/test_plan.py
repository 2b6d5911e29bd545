import shlex
from pathlib import Path

import pytest

from incseg.config import to_yaml
from incseg.engine.precision import with_precision
from incseg.errors import InputError
from incseg.paper import read_tables
from incseg.paper.plan import Plan, make_plan
from incseg.study.planned_run import Settings


def commands(plan: Plan) -> list[dict[str, str]]:
    """Options of every command by name; the protocol is called "recipe"."""
    found = []
    for line in plan.commands():
        if not line.startswith("#"):
            program, train, recipe, *rest = shlex.split(line)
            assert (program, train) == ("incseg", "train")
            found.append({"recipe": recipe, **dict(zip(rest[::2], rest[1::2], strict=True))})
    return found


def test_methods_that_may_share_a_first_step_wait_for_one_of_them() -> None:
    found = commands(make_plan("voc-main", rows=["ft", "ewc", "mib", "mib+ucd", "lwf-mc"], columns=["15-5/overlapped"]))
    shared = {c["--method"]: c.get("--first-step") for c in found}
    provider = found[0]["--out"]
    assert shared == {"ft": None, "ewc": None, "lwf-mc": None, "mib": provider, "mib+ucd": provider}
    assert [c["--method"] for c in found[:3]] == ["ft", "ewc", "lwf-mc"]  # who waits for nobody comes first


def test_what_the_authors_release_does_otherwise_is_run_too() -> None:
    found = commands(make_plan("voc-main", columns=["15-1/overlapped"]))
    released = {c["--method"]: c for c in found if "--ucd.released" in c}
    assert list(released) == ["mib+ucd", "plop+ucd"]
    assert all(c["--ucd.released"] == "true" for c in released.values())
    own = released["mib+ucd"]["--out"]  # the first head is not trained in step 0 either, so the two share another one
    assert [c.get("--first-step") for c in released.values()] == [None, own]
    assert {c["--out"] for c in released.values()}.isdisjoint(c["--out"] for c in found if "--ucd.released" not in c)
    (row,) = make_plan("voc-main", rows=["MiB+UCD, as released"], columns=["15-1/overlapped"]).rows
    table = read_tables()["voc-main"]
    as_written = next(row for row in table.rows if row.name == "mib+ucd")
    assert (row.name, row.scores) == ("mib+ucd-released", as_written.scores)


def test_seeds_share_nothing() -> None:
    found = commands(make_plan("voc-main", rows=["ft", "mib"], columns=["15-5/disjoint"], seeds=3))
    assert [c["--seed"] for c in found] == ["42", "43", "44"] * 2
    assert all(c["--first-step"].endswith(f"ft-seed{c['--seed']}") for c in found[3:])


def test_tasks_that_begin_alike_share_a_first_step_unless_images_are_shared_out() -> None:
    def shared(table: str, *columns: str) -> list[str | None]:
        return [c.get("--first-step") for c in commands(make_plan(table, rows=["ft"], columns=columns))]

    for setting in ("overlapped", "disjoint"):
        first = f"runs/reproduce/voc-15-5-{setting}/ft-seed42"
        assert shared("voc-main", f"15-5/{setting}", f"15-1/{setting}", f"19-1/{setting}") == [None, None, first]
    assert shared("voc-main", "15-5") == [None, None]  # the two settings have other images
    assert shared("ade-disjoint", "100-50", "100-10") == [None, None]


def test_a_row_that_needs_something_runs_when_it_is_given() -> None:
    plan = make_plan(
        "voc-main", rows=["recall"], columns=["19-1/disjoint"], settings={"recall": {"images": "pictures"}}
    )
    assert [c["--recall.images"] for c in commands(plan)] == ["pictures"]
    assert [run.deviations for run in plan.runs] == [[]]


def test_joint_is_one_run_for_all_protocols_of_a_dataset() -> None:
    found = commands(make_plan("voc-main", rows=["Joint"]))
    assert [(c["recipe"], c["--method"]) for c in found] == [("voc/offline/overlapped", "ft")]


def test_rows_of_an_ablation_are_settings(tmp_path: Path) -> None:
    found = commands(make_plan("ablation-contrast", out=tmp_path))
    assert [(c.get("--ucd.student"), c.get("--ucd.teacher")) for c in found] == [
        ("old+new+background", "old+new+background"), ("old+new", "old+new"), (None, None),
    ]  # fmt: skip
    temperatures = commands(make_plan("temperature-steps", out=tmp_path))
    assert [c.get("--ucd.temperature") for c in temperatures] == ["1.0", "0.1", None, "0.05", "0.01"]
    sizes = commands(make_plan("batch-size", rows=["mib+ucd-2", "mib+ucd-24"], out=tmp_path))
    assert [c["--optim.batch-size"] for c in sizes] == ["2", "24"]
    assert all("--first-step" not in c for c in sizes)  # another batch size is another step 0


def test_tables_share_the_runs_they_have_in_common(tmp_path: Path) -> None:
    def folders(table: str, row: str) -> set[Path]:
        return {run.folder for run in make_plan(table, rows=[row], columns=["voc/15-5/disjoint"], out=tmp_path).runs}

    assert len(folders("voc-main", "mib+ucd")) == 1
    assert (
        folders("voc-main", "mib+ucd") == folders("ablation-temperature", "0.07") == folders("batch-size", "mib+ucd-24")
    )
    assert folders("ablation-weight", "0") == folders("voc-main", "mib") == folders("ablation-variants", "mib")
    assert folders("ablation-weight", "0.1").isdisjoint(folders("voc-main", "mib+ucd"))


@pytest.mark.parametrize("table", read_tables())
def test_every_table_can_be_planned(table: str) -> None:
    plan = make_plan(table)
    assert len(plan.cells) == (len(plan.rows) - len(plan.left_out)) * len(plan.blocks)
    assert {row.method for row in plan.rows if row.label in plan.left_out} <= {"recall"}
    assert len(commands(plan)) == len(plan.runs) > 0


def test_settings_reach_the_runs_they_are_for() -> None:
    settings: Settings = {
        "optim": {"epochs": 1, "batch_size": 4},
        "ucd": {"stride": 8},
        "engine": {"deterministic": True},
    }
    ft, ucd = commands(make_plan("voc-main", rows=["ft", "mib+ucd"], columns=["19-1/disjoint"], settings=settings))
    assert ft["--optim.epochs"] == ucd["--optim.epochs"] == "1"
    assert ft["--engine.deterministic"] == "true"
    assert "--ucd.stride" not in ft
    assert ucd["--ucd.stride"] == "8"
    (row,) = commands(make_plan("batch-size", rows=["mib-2"], settings={"optim": {"batch_size": 4}}))
    assert row["--optim.batch-size"] == "2"  # what a row is about stays


def test_every_run_is_scored_as_the_paper_scores_unless_the_person_says_otherwise() -> None:
    def planned(**data: str) -> tuple[str, list[str]]:
        (run,) = make_plan("cityscapes", rows=["ft"], columns=["13-6"], settings={"data": data} if data else {}).runs
        return run.config.data.scoring, run.deviations

    assert planned() == planned(scoring="paper") == ("paper", [])
    assert planned(scoring="full") == ("full", ["data.scoring full (published: paper)"])


def test_a_part_of_a_protocol_chooses_columns() -> None:
    def chosen(*columns: str) -> list[str]:
        return [block.protocol for block in make_plan("voc-10", rows=["ft"], columns=columns).blocks]

    assert chosen("10-1") == ["voc/10-1/disjoint", "voc/10-1/overlapped"]
    assert chosen("overlapped") == ["voc/10-10/overlapped", "voc/10-1/overlapped"]
    assert chosen("voc/10-10/disjoint", "10-1/overlapped") == ["voc/10-10/disjoint", "voc/10-1/overlapped"]


def test_data_lies_in_one_folder_or_in_one_per_dataset() -> None:
    (command,) = commands(make_plan("voc-main", rows=["ft"], columns=["15-5/disjoint"], data_root=["my data"]))
    assert command["--data-root"] == "my data"
    both = commands(make_plan("ablation-variants", rows=["mib"], data_root=["voc=A", "ade20k=B"]))
    assert [(c["recipe"].split("/")[0], c["--data-root"]) for c in both] == [("ade20k", "B"), ("voc", "A")]


def test_published_lists_are_given_per_column_and_are_the_published_recipe() -> None:
    plan = make_plan(
        "ade-disjoint", rows=["mib", "joint"], columns=["100-50", "100-10"], splits=["100-50=A", "100-10=B"]
    )
    lists = {run.recipe: run.arguments() for run in plan.runs}
    assert lists["ade20k/100-50/disjoint"][-2:] == ["--splits", "A"]
    assert lists["ade20k/100-10/disjoint"][-2:] == ["--splits", "B"]
    assert "--splits" not in lists["ade20k/offline/overlapped"]
    assert not any(run.deviations for run in plan.runs)
    both = make_plan(
        "ade-disjoint", rows=["mib"], columns=["100-50"], orders=["a", "b"], splits=["100-50=A", "100-50-b=B"]
    )
    assert [run.config.data.splits for run in both.runs] == [Path("A").resolve(), Path("B").resolve()]
    (alone,) = make_plan("ade-disjoint", rows=["mib"], columns=["50-50"], splits=["C"]).runs
    assert alone.config.data.splits == Path("C").resolve()
    (unpublished,) = make_plan("ade-overlapped", rows=["mib"], columns=["50-50"], splits=["C"]).runs
    assert "data.splits" in unpublished.deviations[0]


def test_the_second_class_order_is_a_run_of_its_own() -> None:
    plan = make_plan("ade-disjoint", rows=["mib", "joint"], columns=["100-50"], orders=["a", "b"])
    names = ["100-50/disjoint", "100-50-b/disjoint", "offline/overlapped", "offline-b/overlapped"]
    assert [command["recipe"] for command in commands(plan)] == [f"ade20k/{name}" for name in names]
    assert len({run.folder for run in plan.runs}) == 4
    assert len(plan.cells["mib", "ade20k/100-50/disjoint"]) == 2
    assert [run.config.data.class_order for run in plan.cells["mib", "ade20k/100-50/disjoint"]] == [None, ("b",)]
    assert not any(run.deviations for run in plan.runs)


def test_plugins_are_passed_on_to_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = make_plan("voc-main", rows=["ft"], columns=["15-5/disjoint"]).runs
    monkeypatch.setattr("incseg.study.planned_run.PLUGINS", [Path("/a b/one.py"), Path("/two.py")])
    words = run.arguments()
    assert [words[i + 1] for i, word in enumerate(words) if word == "--plugin"] == ["/a b/one.py", "/two.py"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"table": "voc"}, "'voc' is not a table"),
        ({"table": "1", "rows": ["mbi"]}, r"voc-main has no row 'mbi': .* Did you mean 'mib'\?"),
        ({"table": "1", "columns": ["10-1"]}, "voc-main has no column '10-1'"),
        ({"table": "1", "columns": ["15"]}, "voc-main has no column '15'"),
        ({"table": "1", "out": Path(__file__)}, "is a file"),
        ({"table": "1", "seeds": 0}, "--seeds 0 is not a number"),
        ({"table": "6", "data_root": ["A"]}, "write --data-root ade20k=DIR voc=DIR"),
        ({"table": "1", "data_root": ["A", "B"]}, "does not say which dataset"),
        ({"table": "1", "data_root": ["coco=A"]}, "names 'coco', but the columns are of voc"),
        (
            {"table": "3", "splits": ["A"]},
            r"--splits A fits 3 of the columns.* --splits ade20k/100-50/disjoint=DIR",
        ),
        ({"table": "3", "splits": ["15-5=A"]}, "--splits 15-5=A fits 0 of the columns"),
        ({"table": "1", "orders": ["b"]}, "voc/19-1/disjoint has no published recipe in the class order 'b'"),
        ({"table": "1", "rows": ["ft"], "settings": {"optm": {"epochs": 1}}}, "--optm.… is neither .*'optim'"),
        ({"table": "1", "rows": ["ft"], "settings": {"ucd": {"weight": 1}}}, "--ucd.… is neither"),
        ({"table": "1", "rows": ["ft"], "settings": {"optim": {"epoch": 1}}}, "no setting 'optim.epoch'"),
        ({"table": "1", "rows": ["ucd"], "settings": {"ucd": {"heat": 1}}}, "'ucd' has no setting 'heat'"),
        ({"table": "1", "rows": ["recall"]}, r"nothing is left to run \(RECALL♯: it needs --recall.images"),
    ],
)
def test_bad_choices_are_explained(choice: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_plan(**choice)  # type: ignore[arg-type]


def test_another_experiment_in_the_same_place_is_refused(tmp_path: Path) -> None:
    choice = {"rows": ["ft"], "columns": ["19-1/disjoint"], "out": tmp_path}
    (run,) = make_plan("1", **choice, settings={"optim": {"epochs": 1}}).runs  # type: ignore[arg-type]
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(to_yaml(with_precision(run.config)))
    make_plan("1", **choice, settings={"optim": {"epochs": 1}})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"optim.epochs is 1 there and 30 here\); choose another --out"):
        make_plan("1", **choice)  # type: ignore[arg-type]
