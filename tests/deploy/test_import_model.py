import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import segmentation_models_pytorch as smp
import torch
import torchvision.models.segmentation as zoo
from torch import Tensor, nn

import incseg
from command_line import run
from incseg.deploy.import_model import from_smp, from_torchvision
from incseg.deploy.model import open_model
from incseg.errors import InputError
from incseg.models.building import IMAGENET_MEAN, IMAGENET_STD

CLASSES = ("background", "cat", "dog")


def worn(model: nn.Module) -> nn.Module:
    """As if trained: statistics that are not those of a fresh network, and logits that differ."""
    torch.manual_seed(0)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    return model.eval()


def smp_model(decoder: str, classes: int = 3, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    options |= {"encoder_name": "tu-test_resnet", "encoder_weights": None}
    return worn(smp.create_model(decoder, classes=classes, **options))


@torch.no_grad()
def original_logits(model: nn.Module, images: Tensor, mean: Any = IMAGENET_MEAN, std: Any = IMAGENET_STD) -> Tensor:
    normalised = (images.float() / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    said = model(normalised)
    logits: Tensor = said["out"] if isinstance(said, dict) else said
    return logits


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randint(0, 256, (2, 3, 96, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("decoder", "options"),
    [
        ("unet", {"decoder_attention_type": "scse"}),  # a classifier of 3×3
        ("unet", {"encoder_depth": 3, "decoder_channels": (32, 16, 8), "activation": "identity"}),
        ("deeplabv3plus", {"decoder_channels": 16}),
        ("deeplabv3", {"decoder_channels": 16, "encoder_output_stride": 8}),
        ("fpn", {}),  # upsampled fourfold with aligned corners
    ],
)
def test_an_smp_model_says_the_same_here_and_after_saving(
    decoder: str, options: dict[str, Any], images: Tensor, tmp_path: Path
) -> None:
    model = smp_model(decoder, **options)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    taken = from_smp(model, CLASSES, mean, std)
    expected = original_logits(model, images, mean, std)
    torch.testing.assert_close(taken.segmenter.segment(images), expected)
    again = open_model(taken.save(tmp_path / "model.safetensors"), device="cpu")
    assert torch.equal(again.segmenter.segment(images), taken.segmenter.segment(images))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("build", [zoo.deeplabv3_mobilenet_v3_large, zoo.deeplabv3_resnet50])
def test_a_torchvision_model_says_the_same_here_and_after_saving(
    build: Callable[..., nn.Module], images: Tensor, tmp_path: Path
) -> None:
    model = worn(build(weights=None, weights_backbone=None, num_classes=3, aux_loss=True))
    taken = from_torchvision(model, ["__background__", "cat", "dog"])
    expected = original_logits(model, images)  # fifty layers, summed in another order of memory
    torch.testing.assert_close(taken.segmenter.segment(images), expected, rtol=1e-4, atol=1e-4)
    again = open_model(taken.save(tmp_path / "model.safetensors"), device="cpu")
    assert torch.equal(again.segmenter.segment(images), taken.segmenter.segment(images))
    assert len(again.segmenter(images, with_stages=True).stages) == 4


def test_what_was_taken_over_can_be_extended(tmp_path: Path) -> None:
    from samples import write_folder

    data = write_folder(tmp_path / "data", train=6, val=2)
    quick = {"optim": {"epochs": 1, "batch_size": 4}, "data": {"crop_size": 64, "workers": 0},
             "engine": {"accelerator": "cpu"}}  # fmt: skip
    taken = from_smp(smp_model("unet"), CLASSES)
    for method in ("mib+ucd", "plop"):
        extended = incseg.extend(taken, data, tmp_path / method, method=method, settings=quick)
        assert extended.classes == (*CLASSES, "disc", "square", "triangle", "cross")
        assert extended.segmenter.architecture.classifier_kernel == 3


def test_checkpoints_come_in_from_the_command_line(
    images: Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    model = smp_model("fpn")
    wrapped = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": wrapped}, tmp_path / "fpn.pth")
    model.save_pretrained(tmp_path / "folder")  # type: ignore[operator]
    known: list[str | Path] = ["--classes", tmp_path / "classes.txt", "--out"]
    named = ["--kind", "smp:fpn", "--encoder", "tu-test_resnet"]
    assert run("import", tmp_path / "fpn.pth", *named, *known, tmp_path / "a") == 0
    assert "2 classes and background" in capsys.readouterr().out
    assert run("import", tmp_path / "folder", *known, tmp_path / "b") == 0
    for name in ("a", "b"):
        taken = incseg.load(tmp_path / name, device="cpu")
        mean, std = taken.segmenter.mean.flatten().tolist(), taken.segmenter.std.flatten().tolist()
        torch.testing.assert_close(taken.segmenter.segment(images), original_logits(model, images, mean, std))
        assert taken.classes == CLASSES
        assert "trained elsewhere" in (tmp_path / name / "MODEL_CARD.md").read_text()


@pytest.mark.parametrize(
    ("classes", "arguments", "message"),
    [
        ("background\ncat\ndog", ["--kind", "smp:unit"], "Did you mean 'smp:unet'?"),
        ("background\ncat\ndog", [], "of which network they are: add --kind, smp:deeplabv3, "),
        ("cat\ndog\ncow", ["--kind", "smp:unet"], "the first class is 'cat', but channel 0 must be the background"),
        ("background\nCat\ncat", ["--kind", "smp:unet"], "names 'Cat' twice"),
        (
            "background\ncat",
            ["--kind", "smp:unet", "--encoder", "tu-test_resnet"],
            "3 output channels, but the class list",
        ),
        ("background\ncat\ndog", ["--kind", "torchvision:fcn_resnet50"], "do not fit this kind of network"),
        ("background\ncat\ndog", ["--kind", "smp:unet", "--encoder", "resnet19"], "not an encoder"),
        ("background", ["--kind", "smp:unet"], "has 1 names"),
    ],
)
def test_what_cannot_be_taken_over_is_named(
    classes: str, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "classes.txt").write_text(classes)
    torch.save(smp_model("unet").state_dict(), tmp_path / "unet.pth")
    known = ["--classes", str(tmp_path / "classes.txt"), "--out", str(tmp_path / "out")]
    assert run("import", tmp_path / "unet.pth", *arguments, *known) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


SMALL = ["--kind", "smp:fpn", "--encoder", "tu-test_resnet"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line with which an import is refused."""
    assert run("import", *arguments) == 2
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    return error


@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_pickled_model_is_refused_with_how_to_save_weights(
    zipped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    torch.save(smp_model("fpn"), tmp_path / "whole.pth", _use_new_zipfile_serialization=zipped)
    known: list[str | Path] = ["--classes", tmp_path / "classes.txt", "--out", tmp_path / "out"]
    error = refused(capsys, tmp_path / "whole.pth", *SMALL, *known)
    assert "holds Python objects such as segmentation_models_pytorch.decoders.fpn.model.FPN" in error
    assert "torch.save(model.state_dict(), 'weights.pth')" in error
    assert "weights_only" not in error
    assert "trust" not in error


def test_a_program_and_a_broken_file_are_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("classes.txt").write_text("background\ncat\ndog\n")
    with warnings.catch_warnings(action="ignore"):  # TorchScript is deprecated, and still around
        torch.jit.save(torch.jit.trace(nn.Conv2d(3, 3, 1), torch.zeros(1, 3, 8, 8)), "script.pt")
    Path("text.pth").write_text("hello")
    Path("other.pth").write_text("nothing")
    for file, message in [
        ("script.pt", "holds a program (TorchScript) and not only weights"),
        ("text.pth", "the weights file text.pth cannot be read"),
        ("other.pth", "the weights file other.pth cannot be read"),
        ("nowhere.pth", "there is no nowhere.pth: give a file of weights"),
    ]:
        error = refused(capfd, file, *SMALL, "--classes", "classes.txt", "--out", "out")
        assert message in error
        assert "weights_only" not in error


def test_a_folder_without_a_model_is_not_looked_for_on_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\n")
    (tmp_path / "empty").mkdir()
    asked: list[str] = []
    monkeypatch.setattr(smp, "from_pretrained", asked.append)
    known: list[str | Path] = ["--classes", tmp_path / "classes.txt", "--out", tmp_path / "out"]
    assert "empty was not written by smp's save_pretrained (it holds no config.json)" in refused(
        capsys, tmp_path / "empty", *known
    )
    assert not asked


@pytest.mark.parametrize("kind", ["smp:fpn", "torchvision:deeplabv3_mobilenet_v3_large"])
def test_another_number_of_classes_is_said_with_both_numbers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "classes.txt").write_text("background\na\nb\nc\nd\n")
    torchvision_model = zoo.deeplabv3_mobilenet_v3_large
    model = (
        smp_model("fpn", classes=21)
        if kind.startswith("smp")
        else torchvision_model(weights=None, weights_backbone=None, num_classes=21)
    )
    torch.save(model.state_dict(), tmp_path / "model.pth")
    known: list[str | Path] = ["--classes", tmp_path / "classes.txt", "--out", tmp_path / "out"]
    error = refused(capsys, tmp_path / "model.pth", "--kind", kind, "--encoder", "tu-test_resnet", *known)
    assert error.endswith(
        "the model has 21 output channels, but the class list has 5 names: give one name per channel, background first."
    )


@torch.no_grad()
def undecided(model: nn.Module, images: Tensor) -> nn.Module:
    """With a bias at which about half of the pixels are a yes, and none is close to the border."""
    ordered = original_logits(model, images).flatten().sort().values
    middle = ordered[len(ordered) // 4 : -len(ordered) // 4]
    widest = middle.diff().argmax()
    output = middle[widest : widest + 2].mean()
    last = model.get_submodule("segmentation_head.0")
    last.bias -= output if "sigmoid" not in str(model).lower() else output.logit()  # type: ignore[operator]
    return model


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_a_model_of_one_sigmoid_becomes_background_and_a_class(activation: str | None, images: Tensor) -> None:
    model = undecided(smp_model("fpn", classes=1, activation=activation), images)
    taken = from_smp(model, ["background", "crack"], IMAGENET_MEAN, IMAGENET_STD)
    output = original_logits(model, images)
    yes = output[:, 0] if activation else torch.sigmoid(output[:, 0])
    logits = taken.segmenter.segment(images)
    assert 0.05 < (yes > 0.5).float().mean() < 0.95  # it says both
    assert torch.equal(logits.argmax(dim=1), (yes > 0.5).long())
    torch.testing.assert_close(logits.softmax(dim=1)[:, 1], yes)


def test_a_model_of_one_sigmoid_comes_in_from_the_command_line(
    images: Tensor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = smp_model("fpn", classes=1)
    torch.save(model.state_dict(), tmp_path / "binary.pth")
    (tmp_path / "two.txt").write_text("background\ncrack\n")
    (tmp_path / "three.txt").write_text("background\ncrack\nhole\n")
    known: list[str | Path] = [tmp_path / "binary.pth", *SMALL, "--out", tmp_path / "out", "--classes"]
    assert run("import", *known, tmp_path / "two.txt") == 0
    assert "with 1 class and background" in capsys.readouterr().out
    taken = incseg.load(tmp_path / "out", device="cpu")
    mean, std = taken.segmenter.mean.flatten().tolist(), taken.segmenter.std.flatten().tolist()
    expected = (torch.sigmoid(original_logits(model, images, mean, std)) > 0.5)[:, 0]
    assert torch.equal(taken.segmenter.segment(images).argmax(dim=1), expected.long())
    message = "the model has 1 output channel, but the class list has 3 names: give 'background' and the one class"
    assert message in refused(capsys, *known, tmp_path / "three.txt")


def test_other_networks_are_refused() -> None:
    with pytest.raises(InputError, match="a Conv2d is not a model of segmentation-models-pytorch"):
        from_smp(nn.Conv2d(3, 3, 1), CLASSES)
    with pytest.raises(InputError, match="this Conv2d is not one of torchvision's"):
        from_torchvision(nn.Conv2d(3, 3, 1), CLASSES)
    with pytest.raises(InputError, match="has 3 output channels, but the class list has 2 names"):
        from_smp(smp_model("fpn"), CLASSES[:2])
    with pytest.raises(InputError, match="expects 4 input channels"):
        from_smp(smp_model("fpn", in_channels=4), CLASSES)
    with pytest.raises(InputError, match="differ from the original's in size"):
        from_smp(smp_model("fpn", upsampling=1), CLASSES)
    with pytest.raises(InputError, match="mean must be three numbers"):
        from_smp(smp_model("fpn"), CLASSES, mean=[0.5])
