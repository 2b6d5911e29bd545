import copy

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from conftest import coloured_patches, decided
from incseg.models import Architecture, Segmenter
from incseg.models.synchronised import SynchronisedNorm, synchronise

SMALL = Architecture(encoder="test_resnet", decoder_options={"decoder_channels": 16})


def images(height: int = 64, width: int = 96, batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)


def test_the_papers_network_has_a_256_channel_embedding_at_stride_16() -> None:
    segmenter = Segmenter(Architecture(encoder="resnet18"), [16, 5]).eval()
    with torch.no_grad():
        outputs = segmenter(images(), with_stages=True)
        assert list(segmenter(images()).stages) == []
    assert outputs.embedding.shape == (2, 256, 4, 6)
    assert outputs.logits.shape == (2, 21, 4, 6)
    assert [stage.shape[1] for stage in outputs.stages] == [64, 64, 128, 256, 512]
    assert not [m for m in segmenter.modules() if isinstance(m, torch.nn.Dropout) and m.p > 0]


@pytest.mark.parametrize("decoder", ["deeplabv3", "deeplabv3plus", "fpn", "unet", "upernet"])
@pytest.mark.parametrize("encoder", ["resnet18", "test_resnet", "tf_efficientnet_lite0"])
def test_any_decoder_on_any_encoder(decoder: str, encoder: str) -> None:
    segmenter = Segmenter(Architecture(encoder=encoder, decoder=decoder), [3]).eval()
    logits = segmenter.segment(images(64, 64, 1))
    assert logits.shape == (1, 3, 64, 64)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (50, 75), (33, 97), (1, 1)])
def test_images_of_any_size_are_segmented_at_that_size(height: int, width: int) -> None:
    segmenter = Segmenter(SMALL, [3]).eval()
    assert segmenter.segment(images(height, width, 1)).shape == (1, 3, height, width)


def test_an_image_alone_and_in_a_batch_is_segmented_alike() -> None:
    segmenter = Segmenter(SMALL, [3]).eval()
    batch = images(40, 56, 3)
    torch.testing.assert_close(segmenter.segment(batch)[1:2], segmenter.segment(batch[1:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("encoder", ["resnet18", "tf_efficientnet_lite0"])
def test_synchronised_normalisation_is_the_same_network(encoder: str) -> None:
    segmenter, batch = Segmenter(Architecture(encoder=encoder), [3]), images(64, 64, 2)
    converted = copy.deepcopy(segmenter)
    synchronise(converted)
    norms = [module for module in converted.modules() if isinstance(module, _BatchNorm)]
    assert norms
    assert all(isinstance(module, SynchronisedNorm) for module in norms)
    for training in (True, False):
        found, expected = (network.train(training)(batch).logits for network in (converted, segmenter))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_normalisation_is_that_of_the_encoders_weights() -> None:
    plain, lite = (Segmenter(Architecture(encoder=e), [2]) for e in ("resnet18", "tf_efficientnet_lite0"))
    white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    assert plain.normalise(white).flatten().tolist() == pytest.approx([2.2489, 2.4286, 2.64], abs=1e-3)
    assert lite.normalise(white).flatten().tolist() == pytest.approx([1, 1, 1])


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_a_network_that_never_predicts_background_ranks_the_classes_as_before(head: str) -> None:
    torch.manual_seed(0)
    usual = decided(Segmenter(SMALL.model_copy(update={"head": head}), [3, 1]))
    if head == "sigmoid":
        usual.get_parameter("classifier.heads.0.bias").data.fill_(-100)
        usual.get_parameter("classifier.heads.1.bias").data.fill_(-100)
    never = copy.copy(usual)
    never.architecture = usual.architecture.model_copy(update={"never_background": True})
    batch = coloured_patches(2, 3, 50, 75)
    expected, found = usual.segment(batch), never.segment(batch)
    torch.testing.assert_close(found[:, 1:], expected[:, 1:])
    assert (expected.argmax(dim=1) == 0).any()
    assert torch.equal(found.argmax(dim=1), 1 + expected[:, 1:].argmax(dim=1))
    assert found.softmax(dim=1)[:, 0].max() < 1e-12
    batch = batch[..., :32, :64]
    assert torch.equal(never(batch).logits, usual(batch).logits)  # a teacher's background is as it was
