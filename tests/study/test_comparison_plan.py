import json
import shlex
from pathlib import Path

import pytest

from command_line import run
from incseg.config import to_yaml
from incseg.engine.precision import with_precision
from incseg.study.comparison_plan import Entrant, plan_comparison


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[tuple[str, dict[str, str]]]:
    """The comment above every command, and its options by name."""
    assert run("compare", *arguments, "--dry-run") == 0
    comment, found = "", []
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("#"):
            comment = line
        else:
            program, train, recipe, *rest = shlex.split(line)
            assert (program, train) == ("incseg", "train")
            found.append((comment, {"recipe": recipe, **dict(zip(rest[::2], rest[1::2], strict=True))}))
    return found


def test_one_step_0_per_seed_comes_first_and_the_others_say_what_they_wait_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = planned(capsys, "shapes/4-2/overlapped", "--methods", "analytic", "ewc", "mib", "ft", "--seeds", "2")
    first = {options["--out"] for _, options in found if "--first-step" not in options}
    assert [Path(folder).name for folder in sorted(first)] == ["ewc-seed42", "ewc-seed43", "mib-seed42", "mib-seed43"]
    assert {options["--out"] for _, options in found[: len(first)]} == first  # they come first
    for comment, options in found[len(first) :]:
        assert options["--first-step"].endswith(f"mib-seed{options['--seed']}")
        assert comment == f"# these can begin, in any order, once {options['--first-step']}/step-0 is finished"
    assert len(found) == 8


def test_a_method_may_have_settings_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    methods = ["mib", "mib+ucd", "mib+ucd --ucd.temperature 0.1 --optim.epochs 3"]
    settings = ["--optim.epochs", "1", "--ucd.stride", "8", "--model.encoder", "resnet18"]
    found = planned(capsys, "shapes/4-2/overlapped", "--seeds", "1", "--methods", *methods, *settings)
    mib, plain, own = sorted((options for _, options in found), key=lambda options: len(options["--out"]))
    assert "--ucd.stride" not in mib
    assert plain["--ucd.stride"] == own["--ucd.stride"] == "8"
    assert (plain["--optim.epochs"], own["--optim.epochs"], own["--ucd.temperature"]) == ("1", "3", "0.1")
    assert Path(own["--out"]).name == "mib+ucd,optim.epochs=3,ucd.temperature=0.1-seed42"
    assert "--first-step" not in own  # another step 0
    assert all(options["--model.encoder"] == "resnet18" for _, options in found)


def test_methods_that_can_be_summed_with_their_settings_only_are_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compare", "shapes/4-2/overlapped", "--methods", "cd+ucd", "--dry-run") == 2
    own = planned(capsys, "shapes/4-2/overlapped", "--seeds", "1", "--methods", "cd+ucd --ucd.uncertainty false")
    of_all = planned(
        capsys, "shapes/4-2/overlapped", "--seeds", "1", "--methods", "cd+ucd", "--ucd.uncertainty", "false"
    )
    file = tmp_path / "mine.yaml"
    file.write_text("protocol: shapes/4-2/overlapped\nucd: {uncertainty: false}")
    assert len(own) == len(of_all) == len(planned(capsys, str(file), "--seeds", "1", "--methods", "cd+ucd")) == 1


def test_a_preset_is_for_all_or_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    both = planned(capsys, "voc/15-1/overlapped", "--seeds", "1", "--methods", "mib", "mib+ucd", "--preset", "kd-100")
    assert [options["--preset"] for _, options in both] == ["kd-100"] * 2
    one = planned(capsys, "voc/15-1/overlapped", "--seeds", "1", "--methods", "mib", "mib --preset kd-100")
    assert [Path(options["--out"]).name for _, options in one] == ["mib-seed42", "mib,mib.kd_weight=100.0-seed42"]


def test_several_protocols_share_what_begins_alike(capsys: pytest.CaptureFixture[str]) -> None:
    recipes = ["voc/15-5/overlapped", "voc/15-1/overlapped", "ade20k/100-50/overlapped"]
    roots = ["--data-root", "voc=A", "ade20k=B", "--splits", "15-1=L"]
    found = [options for _, options in planned(capsys, *recipes, "--methods", "mib", "--seeds", "1", *roots)]
    by_recipe = {options["recipe"]: options for options in found}
    assert [by_recipe[recipe]["--data-root"] for recipe in recipes] == ["A", "A", "B"]
    assert by_recipe["voc/15-1/overlapped"]["--splits"] == "L"
    assert "--splits" not in by_recipe["voc/15-5/overlapped"]
    again = [options for _, options in planned(capsys, *recipes[:2], "--methods", "mib", "--seeds", "1")]
    assert again[1]["--first-step"] == again[0]["--out"]


def test_a_program_reads_what_depends_on_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", "demo", "--methods", "ft", "mib", "--seeds", "1", "--dry-run", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)["result"]["runs"]
    assert first["after"] is None
    assert second["after"] == first["folder"]
    assert second["command"][:3] == ["incseg", "train", "demo"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name at least one recipe"),
        (["demo"], "name the methods to compare"),
        (["demo", "--methods", ""], "each begins with the name of a method"),
        (["demo", "--methods", "mib", "mbi"], "Did you mean 'mib'?"),
        (["demo", "--methods", "mib --mib.weigt 1"], "there is no setting 'mib.weigt'"),
        (["demo", "--methods", "mib", "--ucd.stride", "8"], "--ucd.… is neither a section of the settings nor a"),
        (["demo", "--methods", "mib", "mib"], "the method 'mib' is given twice"),
        (["demo", "demo", "--methods", "mib"], "the recipe 'demo' is given twice"),
        (["demo", "--methods", "mib", "mib "], "mib-seed42' is given twice"),
        (["demo", "--methods", "mib", "--against", "ft"], "--against ft is not among the methods: choose from mib"),
        (["demo", "--methods", "mib", "--seeds", "0"], "--seeds 0 is not a number"),
        (["demo", "--methods", "mib", "--jobs", "0"], "--jobs 0 is not a number"),
        (["nope/1-1/overlapped", "--methods", "mib"], "nope"),
        (["voc/15-5/overlapped", "--methods", "mib"], "give --data-root DIR"),
        (["demo", "--methods", "mib 'x"], "a quotation mark is missing"),
    ],
)
def test_bad_choices_are_explained(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compare", *words, "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_another_experiment_in_the_same_place_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (planned_run,) = plan_comparison(["demo"], [Entrant("ft", written="ft")], seeds=[42], out=tmp_path).schedule.runs
    planned_run.folder.mkdir(parents=True)
    (planned_run.folder / "config.yaml").write_text(to_yaml(with_precision(planned_run.config)))
    assert run("compare", "demo", "--methods", "ft", "--out", tmp_path, "--optim.epochs", "2", "--dry-run") == 2
    assert "holds another run (optim.epochs is" in capsys.readouterr().err
