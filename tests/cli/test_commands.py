import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from command_line import run
from incseg import cli
from incseg.cli.listing import TABLES
from incseg.datasets.cityscapes import LABEL_IDS
from incseg.errors import LocalError, TrainingError
from samples import write_cityscapes, write_classes, write_folder

QUICK = ["--model.encoder", "test_resnet", "--model.weights", "none", "--data.crop-size", "32", "--optim.epochs", "1",
         "--optim.batch-size", "4", "--engine.accelerator", "cpu", "--data.workers", "0"]  # fmt: skip


@pytest.mark.parametrize("command", [[], *([name] for name in cli.COMMANDS)])
def test_every_command_has_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command, "--help") == 0
    shown = capsys.readouterr().out
    assert "usage: incseg" in shown


def test_without_arguments_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "demo" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.strip() == "0.1.0"


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("methods", ["mib", "ucd", "--ucd.temperature 0.07", "joint"]),
        ("protocols", ["voc", "shapes", "folder", "overlapped", "disjoint"]),
        ("recipes", ["demo", "voc/15-5/overlapped"]),
        ("tables", ["voc-main", "ablation-temperature", "batch-size", "ade20k/100-10/disjoint"]),
        ("settings", ["--optim.epochs", "--engine.devices", "--data.crop-size"]),
    ],
)
def test_lists(
    what: str, expected: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run("list", what) == 0
    shown = capsys.readouterr().out
    for text in expected:
        assert text in shown


def test_installed_datasets_are_listed_with_pytorch_if_they_need_it_and_broken_ones_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("is_real = True")  # the true one takes seconds
    (tmp_path / "other.py").write_text(
        "import torch; from incseg.datasets import dataset; assert torch.is_real is True\n"
        "@dataset('tensors', 'made of tensors')\ndef read(root): ..."
    )
    metadata = tmp_path / "other-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[incseg.datasets]\ntensors = other\nlost = nowhere_at_all\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-m", "incseg", "list", "protocols"], env=environment, capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert "made of tensors" in done.stdout
    assert "the plugin 'lost' of other (nowhere_at_all) cannot be loaded: ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize("what", ["protocols", "recipes", "settings", "tables"])
def test_lists_fit_a_small_terminal(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("list", what) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for table in TABLES[what]():
        for word in {word for row in (table.headers, *table.rows) for cell in row for word in cell.split()}:
            assert word in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "shapes/4-2", "--method", "mbi"], "Did you mean 'mib'?"),
        (["train", "shapes/4-2", "--optim.epoch", "3"], "no setting 'optim.epoch'. Did you mean 'optim.epochs'?"),
        (["train", "shapes/4-2", "--optm.epochs", "3"], "Did you mean 'optim'?"),
        (["trian"], "no command 'incseg trian': use one of demo, train"),
        (["trian"], "Did you mean 'train'?"),
        (
            ["data", "spit"],
            "no command 'incseg data spit': use one of prepare, check, convert, split. Did you mean 'split'?",
        ),
        (["list", "things"], "invalid choice 'things'"),
        (["train"], "Missing from incseg train: RECIPE"),
        (["train", "shapes/4-2", "another"], "Unrecognized options: another. See: incseg train --help."),
        (["train", "shapes/4-2", "--metod", "mib"], "no option --metod. Did you mean '--method'?"),
        (["train", "shapes/4-2", "--settings", "3"], "no option --settings"),
        (["train", "shapes/4-2", "--seed", "x"], "--seed cannot be 'x': it takes a whole number"),
        (["train", "shapes/4-2", "--seed"], "--seed needs a value"),
        (["train", "shapes/4-2", "--data-root", ""], "--data-root needs a value"),
        (["train", "shapes/4-2", "--data-root", "/tmp"], "'shapes' is embedded and has no folder"),
        (["train", "shapes/4-2", "--data.root", "~nobody-of-that-name"], "there is no user 'nobody-of-that-name' here"),
        (["predict", "~nobody-of-that-name", "x.png"], "there is no user 'nobody-of-that-name' here"),
        (["train", "shapes/4-２"], "'4-２' is not a task"),
        (["train", "shapes/4-2", "--optim.learning-rate", "inf"], "optim.learning_rate cannot be 'inf'"),
        (["train", "shapes/4-2", "--optim.epochs"], "--optim.epochs needs a value"),
        (["train", "shapes/4-2", "--optim.epochs", "--seed", "3"], "--optim.epochs needs a value"),
        (["train", "shapes/4-2", "--data.class-order", ""], "--data.class-order needs a value"),
        (["train", "shapes/4-2", "--data.class-order="], "--data.class-order needs a value"),
        (["train", "shapes/4-2", "--optim.epochs", "true"], "optim.epochs cannot be 'true'"),
        (["train", "shapes/4-2", "--optim.learning-rate", "none"], "optim.learning_rate cannot be 'none'"),
        (["train", "shapes/4-2", "--engine.loggers", "tensorbord"], "should be 'tensorboard', 'wandb' or 'mlflow'"),
        (["train", "shapes/4-2", "--settings.ucd", "3"], "'settings' is neither a group of settings nor a method"),
        (["train", "shapes/4-2", "--method.x", "1"], "'method' is neither a group of settings nor a method"),
        (["train", "shapes/4-2", "--ucd.temprature", "1"], "Did you mean 'ucd.temperature'?"),
        (["train", "shapes/4-2", "--mib.zzz", "1"], "The settings of 'mib' are: kd-weight, trust-labels."),
        (["train", "shapes/4-2", "--method", "mib", "--ucd.temperature", "1"], "'ucd' is neither"),
        (["train", "shapes/4-2", "--model.decoder-options", "{a"], "model.decoder_options cannot be '{a'"),
        (["train", "shapes/4-2", "--model.decoder-options", "16"], "model.decoder_options cannot be 16"),
        (["train", "shapes/4-2", "--optim.epochs=many"], "cannot be 'many'"),
        (["train", "shapes/4-2", "--ucd.temperature", "hot"], "ucd.temperature cannot be 'hot'"),
        (["train", "shapes/4-2", "--model.encoder", "resnet1"], "not an encoder"),
        (["train", "shapes/4-2", "--model.weights", "nowhere.pth"], "no weights file nowhere.pth"),
        (["train", "shapes/4-3"], "the task 4-3 does not fit the 8 classes of shapes"),
        (["train", "shapes/4-2/joined"], "not a setting"),
        (["train", "coco/4-2"], "not a dataset"),
        (["train", "nothing"], "not a protocol"),
        (["train", "missing.yaml"], "no file missing.yaml"),
        (["train", "voc/15-5/overlapped"], "needs its folder: give --data-root DIR"),
        (["train", "voc/15-5/overlapped", "--data-root", "/nowhere"], "/nowhere is not a folder"),
        (["train", "shapes/4-2", "--method", "ucd+cd"], "'ucd' and 'cd' cannot be summed"),
        (["train", "shapes/4-2", "--ucd.temperature", "-1"], "ucd.temperature cannot be '-1'"),
        (["train", "shapes/4-2", "--model.weights", "[oops"], "no weights file [oops"),
        (["train", "shapes/4-2", "--model.decoder", "pan", "--model.output-stride", "7"], "'pan'"),
        (["train", "shapes/4-2", "--model.encoder", "vit_tiny_patch16_224"], "cannot"),
        (["train", "shapes/4-2", "--engine.accelerator", "mps"], "cannot run on 1 × 'mps'"),
        (["train", "shapes/4-2", "--data.known", "[background, disc]"], "belong to 'incseg extend'"),
        (["report"], "name at least one run"),
        (["report", "/nowhere"], "there is no /nowhere: give folders of runs"),
        (["report", "/"], "/ holds no result.json"),
        (["report", "/", "/tmp"], "none of /, /tmp holds a result.json"),
        (["eval", "/nowhere"], "not the folder of a run"),
        (["eval", "x", "--step", "1"], "--step goes with --data DIR"),
        (["eval", "x", "--data", "y", "--data.scoring", "paper"], "no settings"),
        (["export", "x", "--format", "pt"], "--format cannot be 'pt': choose onnx or pt2. Did you mean 'pt2'?"),
        (["report", "x", "--optim.epochs", "3"], "are taken only by 'incseg train'"),
        (["import", "x.pth", "--classes", "/", "--out", "x"], "/ cannot be read: Is a directory"),
        (["data", "prepare", "voc", "--root", __file__], "is a file"),
        (["reproduce", "voc"], "'voc' is not a table"),
        (["reproduce", "1", "--rows", "mbi"], "Did you mean 'mib'?"),
        (["reproduce", "1", "--dry-run", "--optim.epoch", "3"], "no setting 'optim.epoch'"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ["--out", str(tmp_path / "run")] if arguments[0] == "train" else []
    assert run(*arguments, *out) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert error.startswith("incseg: ")
    assert "\n" not in error
    assert not (tmp_path / "run").exists()


def test_a_file_where_a_folder_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for arguments in (["train", "shapes/4-2"], ["demo"]):
        for place in (tmp_path / "file", tmp_path / "file" / "below"):
            assert run(*arguments, "--out", place) == 2
            assert "is a file" in capsys.readouterr().err


def test_settings_may_stand_before_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--optim.epochs", "0", "shapes/4-2", "--out", tmp_path / "run") == 2
    assert "optim.epochs cannot be '0'" in capsys.readouterr().err


def test_help_shows_the_defaults_of_the_recipe_and_the_settings_of_the_method(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("train", "voc/15-1/overlapped", "--method", "mib+ucd", "--help") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for text in ("--mib.kd-weight FLOAT (default: 10.0)", "--ucd.temperature FLOAT (default: 0.07)",
                 "Epochs per step; see incremental_epochs. (default: 30)", "{ignore,background}"):  # fmt: skip
        assert text in shown
    assert "--plop" not in shown
    assert run("train", "shapes/4-2", "--help") == 0
    assert "Epochs per step; see incremental_epochs. (default: 6)" in capsys.readouterr().out


def test_help_of_other_commands_shows_only_the_settings_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for command in (["eval"], ["data", "split"], ["extend"], ["report"]):
        assert run(*command, "--help") == 0
        shown[command[-1]] = capsys.readouterr().out
    assert "--data.scoring" in shown["eval"]
    assert "--data.crop-size" not in shown["eval"]
    assert "--data.class-order" in shown["split"]
    assert "--optim.epochs" not in shown["split"]
    assert "--optim.epochs" in shown["extend"]
    assert "--model.encoder" not in shown["extend"]
    assert "--data." not in shown["report"]


def test_a_plugin_is_loaded_before_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded: list[Path] = []
    monkeypatch.setattr("incseg.registry.load_plugin", loaded.append, raising=False)
    assert run("--plugin", "one.py", "list", "recipes", "--plugin=two.py") == 0
    assert loaded == [Path("one.py"), Path("two.py")]
    for arguments in (["list", "recipes", "--plugin"], ["--plugin", "--help"], ["--plugin="]):
        assert run(*arguments) == 2
        assert "--plugin needs a value: a Python file" in capsys.readouterr().err


def test_help_may_be_cut_off_by_its_reader() -> None:
    command = f"{sys.executable} -m incseg train --help | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert not done.stderr


def test_a_broken_plugin_stops_a_command_but_not_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken_plugin.py"
    broken.write_text("1 / 0\n")
    reason = f"the plugin {broken} cannot be loaded: ZeroDivisionError: division by zero."
    assert run("list", "recipes", "--plugin", broken) == 0
    shown = capsys.readouterr()
    assert shown.err == f"{reason} It is left out.\n"
    assert "demo" in shown.out
    assert run("train", "shapes/4-2", "--plugin", broken) == 2
    assert capsys.readouterr().err == f"incseg: {reason}\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["train", "nonsense"], ["train", "shapes/4-2", "--optim.epoch", "3"]]
)
def test_help_and_refusals_do_not_wait_for_pytorch(arguments: list[str]) -> None:
    """A person who mistypes a name is answered at once."""
    program = f"import sys, incseg.cli; incseg.cli.main({arguments}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(("variable", "speaks"), [("RANK", False), ("LOCAL_RANK", False), ("WORLD_SIZE", True)])
def test_of_several_processes_the_first_speaks(
    variable: str, speaks: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "2")
    assert run("train", "nonsense") == 2
    assert bool(capsys.readouterr().err) == speaks


@pytest.mark.parametrize(("error", "speaks"), [(LocalError("full"), True), (TrainingError("alike"), False)])
def test_a_process_says_what_happened_to_it_alone(
    error: Exception, speaks: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("incseg.cli._run", fails)
    assert run("list", "methods") == 1
    assert capsys.readouterr().err == ("incseg: full\n" if speaks else "")


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("incseg.engine.assembly.train", interrupted)
    assert run("train", "shapes/4-2") == 1
    assert "run the same command again" in capsys.readouterr().err


def test_a_second_interrupt_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    def interrupted_twice(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("incseg.engine.assembly.train", interrupted_twice)
    monkeypatch.setattr("os._exit", ended.append)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        assert run("train", "shapes/4-2") == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [1]


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "free some space there"), (errno.EDQUOT, "your quota is used up"), (errno.EROFS, "can be written")],
)
def test_what_the_machine_refuses_is_one_sentence(
    number: int, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number), "runs/x/checkpoint.pt")

    monkeypatch.setattr("incseg.engine.assembly.train", refused)
    assert run("train", "shapes/4-2") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"incseg: runs/x/checkpoint.pt: {os.strerror(number)}; ")
    assert advice in line


def test_too_little_room_is_said_before_a_run_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_folder(tmp_path / "data", train=10, val=4, size=32)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    assert run("train", "folder/2-2", "--data-root", data, "--method", "ft", "--out", tmp_path / "run", *QUICK) == 1
    assert f"{tmp_path / 'run'} has no room: 1.0 MB are free, and 2 models of " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_folder_from_the_command_line_to_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_folder(tmp_path / "data", train=10, val=4, size=32)
    for method in ("ft", "mib+ucd"):
        assert (
            run("train", "folder/2-2", "--data-root", data, "--method", method, "--out", tmp_path / method, *QUICK) == 0
        )
        assert (tmp_path / method / "report.html").exists()
    shown = capsys.readouterr().out
    assert "1-2: disc, square; 3-4: triangle, cross" in shown
    assert "ft: IoU per class (%)" in shown
    assert run("report", tmp_path / "ft", tmp_path / "mib+ucd", "--out", tmp_path / "both.html") == 0
    assert "mib+ucd" in (tmp_path / "both.html").read_text()
    assert run("eval", tmp_path / "ft", "--out", tmp_path / "again.json") == 0
    again, before = (json.loads((tmp_path / file).read_text()) for file in ("again.json", "ft/result.json"))
    assert again["steps"] == before["steps"]
    assert "ft: IoU per class (%)" in capsys.readouterr().out
    assert run("eval", tmp_path / "ft", "--data.scoring", "paper") == 0
    capsys.readouterr()
    assert run("eval", tmp_path / "ft", "--data.crop-size", "64") == 2
    assert "--data.crop-size belongs to the training" in capsys.readouterr().err


def test_classes_may_have_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are rich's markup; a class is called what its owner calls it."""
    data = write_folder(tmp_path / "data", train=10, val=4, size=32)
    names = ["disc [old]", "square [/x]", "[red]triangle[/red]", ":cat:"]
    (data / "classes.txt").write_text("\n".join(["background", *names]))
    out = tmp_path / "run"
    assert run("train", "folder/2-2", "--data-root", data, "--method", "ft", "--out", out, *QUICK) == 0
    assert run("data", "check", "folder", "--data-root", data, "--out", tmp_path / "sheet.png") == 0
    shown = capsys.readouterr().out
    for name in names:
        assert shown.count(name) >= 2
    new = write_classes(tmp_path / "new", ["ring"], images=8)
    (new / "classes.txt").write_text("background\nring [/x]")
    cheap = [word for word in QUICK if not word.startswith("--model") and word not in ("test_resnet", "none")]
    assert run("extend", out, "--data", new, "--out", tmp_path / "more", *cheap) == 0
    assert "│ ring [/x] " in capsys.readouterr().out


def test_a_class_order_is_separated_by_commas(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", train=10, val=4, size=32)
    order = ["cross", "triangle", "square", "disc"]
    out = tmp_path / "run"
    arguments: list[str | Path] = ["train", "folder/2-2", "--data-root", data, "--method", "ft", "--out", out, *QUICK]
    assert run(*arguments, "--data.class-order", ", ".join(order)) == 0
    assert '"background",\n  "cross"' in (out / "result.json").read_text()


MASK, PHOTO = "gtFine/train/ulm/ulm_0_0_gtFine_labelIds.png", "leftImg8bit/train/ulm/ulm_0_0_leftImg8bit.png"


@pytest.mark.parametrize(
    ("protocol", "harm", "message"),
    [
        ("cityscapes/13-6", lambda root: (root / "gtFine").rename(root / "gone"), "there is no gtFine/"),
        ("cityscapes/13-6", lambda root: (root / MASK).unlink(), f"{MASK} is missing: is the archive fully unpacked?"),
        ("cityscapes/13-6", lambda root: (root / PHOTO).write_bytes((root / PHOTO).read_bytes()[:-40]), PHOTO),
        (
            "cityscapes/13-6",
            lambda root: Image.new("RGB", (38, 4), "red").save(root / MASK),
            f"{MASK} holds RGB colours",
        ),
        ("cityscapes/13-6", lambda root: Image.new("L", (4, 38)).save(root / MASK), f"{MASK} is 4×38 but its image is"),
        ("cityscapes/13-6", lambda root: Image.new("L", (38, 4), 40).save(root / MASK), f"{MASK} holds the id 40"),
        ("cityscapes/13-1", lambda root: Image.new("L", (38, 4), 7).save(root / MASK), "no training image that shows"),
        ("cityscapes/13-5", lambda _: None, "the task 13-5 does not fit the 19 classes of cityscapes"),
        ("cityscapes/13-4-1", lambda _: None, "its steps add up to 18"),
    ],
)
def test_data_that_cannot_be_used_is_named_before_training(
    protocol: str,
    harm: Callable[[Path], object],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = write_cityscapes(tmp_path / "city", {"ulm_0_0": list(LABEL_IDS.values())}, {"ulm_0_1": [7, 26]})
    harm(root)
    assert run("train", protocol, "--data-root", root, "--out", tmp_path / "run", *QUICK) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "run").exists()


def test_orders_of_one_protocol_go_to_folders_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    monkeypatch.setattr("incseg.engine.assembly.train", lambda _, folder, *__: folders.append(folder))
    monkeypatch.setattr("incseg.cli.train.show_runs", lambda *_: None)
    monkeypatch.setattr("incseg.cli.train.refuse_run", lambda *_: None)
    for recipe in ("ade20k/100-50/disjoint", "ade20k/100-50-b/disjoint", "ade20k/100-50"):
        assert run("train", recipe, "--method", "mib") == 0
    names = [str(folder) for folder in folders]
    assert names == [
        f"runs/ade20k-{n}/mib-seed42" for n in ("100-50-disjoint", "100-50-b-disjoint", "100-50-overlapped")
    ]
