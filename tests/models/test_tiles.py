from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from conftest import coloured_patches, solved
from incseg.models import Architecture, Segmenter, tiles
from incseg.models.tiles import predict_ids, predict_maps, spans
from incseg.sizes import resize_images, resize_nearest


class Local(nn.Module):
    """A network that looks 24 pixels far, on a grid of 4: tiles can give exactly what the whole image gives."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mean = torch.zeros(1)
        self.architecture = Architecture()
        self.seen: list[tuple[int, ...]] = []
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=4, padding=2),
            nn.Tanh(),
            nn.Conv2d(8, 5, 5, padding=2),
            nn.Upsample(scale_factor=4),
        )

    @torch.no_grad()
    def segment(self, images: Tensor) -> Tensor:
        self.seen.append(tuple(images.shape[-2:]))
        logits: Tensor = self.layers(images.double() / 255)
        return logits


@pytest.fixture
def local() -> Any:
    return Local().double()


@pytest.mark.parametrize("length", [320, 352, 608, 640, 1024, 2016])
def test_weights_of_all_tiles_add_up_to_one(length: int) -> None:
    total = torch.zeros(length)
    settled = 0
    for span in spans(length, tile=320, overlap=128):
        total[span.start : span.stop] += span.weight
        assert span.start % 32 == 0
        assert span.start == settled
        settled = span.settled
    assert settled == length
    assert torch.allclose(total, torch.ones(length))


def test_a_head_solved_in_closed_form_sees_in_tiles_what_it_sees_in_the_whole_image() -> None:
    torch.manual_seed(0)
    segmenter = solved(Segmenter(Architecture(encoder="test_resnet", decoder="unet"), [4]))
    image = coloured_patches(1, 3, 300, 650)
    whole, tiled = (predict_ids(segmenter, image, tile=tile, overlap=128)[0] for tile in (1024, 320))
    assert tiled.shape == (300, 650)
    assert len(tiled.unique()) > 1
    assert (tiled == whole).float().mean() > 0.98


@pytest.mark.parametrize(("height", "width"), [(480, 900), (353, 320), (160, 1111), (700, 64)])
def test_tiles_say_what_the_whole_image_says(local: Any, height: int, width: int) -> None:
    image = torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8)
    padded = nn.functional.pad(image.float(), (0, -width % 32, 0, -height % 32), mode="replicate")
    whole = local.segment(padded)[0, :, :height, :width].argmax(dim=0)
    local.seen.clear()
    tiled = predict_ids(cast(Segmenter, local), image, tile=320, overlap=128)[0]
    assert torch.equal(tiled.long(), whole)
    assert max(max(size) for size in local.seen) == 320
    assert len(whole.unique()) > 2


def test_all_that_is_kept_of_the_scores_is_put_together_from_tiles(local: Any) -> None:
    image = torch.randint(0, 256, (1, 3, 353, 700), dtype=torch.uint8)
    padded = nn.functional.pad(image.float(), (0, -700 % 32, 0, -353 % 32), mode="replicate")
    whole = local.segment(padded)[0, :, :353, :700].softmax(dim=0)
    ((probabilities, highest),) = predict_maps(
        cast(Segmenter, local), image, lambda s: (s.softmax(1), s.softmax(1).amax(1)), tile=320, overlap=128
    )
    torch.testing.assert_close(probabilities, whole.float())
    torch.testing.assert_close(highest, whole.float().amax(dim=0))


def test_an_edge_that_counted_would_be_seen(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: without margins, what a tile misses behind its edge shows."""
    monkeypatch.setattr(tiles, "MARGIN", 0)
    monkeypatch.setattr(tiles, "_ramp", lambda length: (torch.arange(length) >= 1).float())
    image = torch.randint(0, 256, (1, 3, 320, 1184), dtype=torch.uint8)
    tiled = predict_ids(cast(Segmenter, local), image, tile=320, overlap=32)[0]
    assert not torch.equal(tiled.long(), local.segment(image)[0].argmax(dim=0))


def test_what_is_kept_between_tiles_is_bounded(local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a tall image no more than one row's overlap is carried on."""
    largest = 0
    join = torch.cat

    def watched(parts: Any, **options: Any) -> Tensor:
        nonlocal largest
        joined = join(parts, **options)
        largest = max(largest, joined.numel())
        return joined

    monkeypatch.setattr(torch, "cat", watched)
    predict_ids(cast(Segmenter, local), torch.zeros(1, 3, 3200, 640, dtype=torch.uint8), tile=320, overlap=128)
    assert 0 < largest <= 5 * 640 * (128 + 32)


def test_images_beyond_the_longest_side_are_reduced_and_predictions_have_their_own_size(local: Any) -> None:
    images = coloured_patches(2, 3, 128, 256)
    local.architecture = Architecture(longest_side=64)
    ids = predict_ids(cast(Segmenter, local), images)
    assert local.seen == [(32, 64)]
    small = local.segment(resize_images(images, (32, 64))).argmax(dim=1).byte()
    assert torch.equal(ids, resize_nearest(small, (128, 256)))
    local.architecture = Architecture(longest_side=256)
    assert torch.equal(predict_ids(cast(Segmenter, local), images), local.segment(images).argmax(dim=1))


def test_images_that_fit_are_seen_together(local: Any) -> None:
    predict_ids(cast(Segmenter, local), torch.zeros(4, 3, 320, 64, dtype=torch.uint8), tile=320)
    assert local.seen == [(320, 64)]
