"""Gathering statistics against its definition, cell by cell in float64, and the properties that follow from it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
from incseg.batch import Batch
from incseg.errors import InputError
from incseg.models import Architecture, Segmenter, closed_form
from incseg.models import gather as gathering
from incseg.models.closed_form import RandomFeatures, Statistics
from incseg.models.gather import Fit, feature_layout, gather, solved_head

CLASSES, WIDTH = 4, 12
CELLS_OF = torch.tensor([60.0, 12.0, 20.0, 7.0], dtype=torch.float64)  # n_c
NETWORKS = {
    "deeplabv3": Architecture(encoder="test_resnet", decoder="deeplabv3", decoder_options={"decoder_channels": 6}),
    "deeplabv3plus": Architecture(
        encoder="test_resnet", decoder="deeplabv3plus", decoder_options={"decoder_channels": 6}
    ),
    "unet": Architecture(
        encoder="test_resnet", decoder="unet", decoder_options={"decoder_channels": (12, 10, 8, 6, 4)}
    ),
    "fpn": Architecture(
        encoder="test_resnet", decoder="fpn", decoder_options={"decoder_segmentation_channels": 32}
    ),
}  # fmt: skip


def network(decoder: str = "deeplabv3") -> Segmenter:
    torch.manual_seed(0)
    return Segmenter(NETWORKS[decoder], [CLASSES]).double().eval()


def batch_of(seed: int, images: int = 2, height: int = 50, width: int = 70, labels: Sequence[int] = (0, 1, 2)) -> Batch:
    """Noise with labels in patches of 5 pixels, some of them ignored; neither side is a multiple of 32."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (images, 3, height, width), dtype=torch.uint8, generator=generator)
    choices = torch.tensor([*labels, 255])
    coarse = choices[torch.randint(0, len(choices), (images, height // 5, width // 5), generator=generator)]
    return Batch(pixels, coarse.repeat_interleave(5, 1).repeat_interleave(5, 2))


def single_images(*batches: Batch) -> list[Batch]:
    return [
        Batch(image[None], labels[None])
        for images, masks, *_ in batches
        for image, labels in zip(images, masks, strict=True)
    ]


def empty(segmenter: Segmenter, **layout: Any) -> Statistics:
    found = feature_layout(segmenter, CLASSES, width=WIDTH, **layout)
    return Statistics.empty(found).with_classes(CELLS_OF)


def twin(
    segmenter: Segmenter, statistics: Statistics, batches: Sequence[Batch], fit: Fit, before: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A and B of these images, by the loops of ``reference.py``; only the network is shared."""
    layout = statistics.layout
    projection = RandomFeatures(layout).projection.double().tolist()
    reference_cells = CELLS_OF.mean().item()
    weights = [(reference_cells / count) ** fit.balance for count in CELLS_OF.tolist()]
    features, targets = [], []
    for image, labels, *_ in single_images(*batches):
        below, right = -image.shape[-2] % 32, -image.shape[-1] % 32
        pixels = np.pad(image[0].numpy(), ((0, 0), (0, below), (0, right)), mode="edge")
        mask = np.pad(labels[0].numpy(), ((0, below), (0, right)), constant_values=255)
        for step in (1, -1) if fit.mirrored else (1,):
            shown, truth = torch.tensor(pixels[:, :, ::step].copy())[None], mask[:, ::step]
            with torch.no_grad():
                embedding, _ = segmenter.features(shown)
            own = segmenter.encoder(segmenter.normalise(shown))
            maps = [embedding, *reversed(own[len(own) - layout.stages :])]
            if layout.original:
                assert segmenter.original is not None
                maps += reversed(segmenter.original(segmenter.normalise(shown))[-layout.original :])
            grids = [
                reference.resampled(each[0].permute(1, 2, 0).tolist(), stride, layout.stride)
                for each, stride in zip(maps, layout.strides[: len(maps)], strict=True)
            ]
            if layout.context:
                averaged = 1 + layout.stages if layout.original else min(1, layout.stages)
                grids.append(reference.surroundings(grids[averaged], layout.context))
            for i in range(truth.shape[0] // layout.stride):
                for j in range(truth.shape[1] // layout.stride):
                    rows = slice(i * layout.stride, (i + 1) * layout.stride)
                    columns = slice(j * layout.stride, (j + 1) * layout.stride)
                    phi = reference.random_features([grid[i][j] for grid in grids], projection)
                    y = reference.cell_target(truth[rows, columns].tolist(), CLASSES, fit.soft)
                    if before is not None:
                        scores = (torch.tensor(phi, dtype=torch.float64) @ before).tolist()
                        y = reference.completed_target(y, scores, fit.certainty)
                    features.append(phi)
                    targets.append(y)
    gram, cross = reference.closed_form_sums(features, targets, weights)
    return torch.tensor(gram, dtype=torch.float64), torch.tensor(cross, dtype=torch.float64)


def assert_sums(found: Statistics, gram: Tensor, cross: Tensor) -> None:
    torch.testing.assert_close(found.gram.triu(), gram.triu(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.cross, cross, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stages", [0, 1, 2])
@pytest.mark.parametrize("decoder", NETWORKS)
def test_every_network_gives_the_sums_written_out(decoder: str, stages: int) -> None:
    """Embeddings at strides 1, 4 and 16, last stages at 16 and 32."""
    segmenter, batch, fit = network(decoder), batch_of(1), Fit(mirrored=False)
    start = empty(segmenter, stages=stages)
    assert len(start.layout.channels) == 1 + stages
    assert_sums(gather(segmenter, start, [batch], fit), *twin(segmenter, start, [batch], fit))


def test_two_stages_are_seen_of_one_encoder_and_one_beside_the_two_of_the_original() -> None:
    segmenter = network()
    assert (feature_layout(segmenter, CLASSES).stages, feature_layout(segmenter, CLASSES).original) == (2, 0)
    segmenter.keep_original(network().encoder)
    assert (feature_layout(segmenter, CLASSES).stages, feature_layout(segmenter, CLASSES).original) == (1, 2)
    unseen = feature_layout(segmenter, CLASSES, original=0)
    assert (unseen.stages, unseen.original) == (2, 0)


@pytest.mark.parametrize(("stages", "original"), [(1, 2), (0, 1), (2, 0)])
def test_the_original_encoder_gives_features_too(stages: int, original: int) -> None:
    segmenter, batch, fit = network(), batch_of(1), Fit(mirrored=False)
    torch.manual_seed(1)
    segmenter.keep_original(Segmenter(NETWORKS["unet"], [1]).double().encoder)  # other weights, and another stride
    start = empty(segmenter, stages=stages, original=original)
    assert (start.layout.stages, start.layout.original) == (stages, original)
    assert_sums(gather(segmenter, start, [batch], fit), *twin(segmenter, start, [batch], fit))
    segmenter.use_head(solved_head(gather(segmenter, start, [batch], fit), [CLASSES], ridge=1.0).double())
    random = RandomFeatures(start.layout).double()(*segmenter.features(batch.images[..., :32, :64]))
    scores = (random @ segmenter.classifier.weight).movedim(-1, 1)
    torch.testing.assert_close(segmenter(batch.images[..., :32, :64]).logits, scores)


@pytest.mark.parametrize(("stages", "original", "averaged"), [(0, 0, "embedding"), (2, 0, "own"), (1, 2, "original")])
@pytest.mark.parametrize("side", [1, 3, 31])
def test_a_cell_sees_the_mean_of_its_surroundings(stages: int, original: int, averaged: str, side: int) -> None:
    segmenter, batch, fit = network(), batch_of(1), Fit()
    torch.manual_seed(1)
    segmenter.keep_original(Segmenter(NETWORKS["unet"], [1]).double().encoder if original else None)
    start = empty(segmenter, stages=stages, original=original, context=side)
    assert (start.layout.stages, start.layout.original, start.layout.context) == (stages, original, side)
    embedding, found = segmenter.features(batch.images[..., :32, :64])
    maps = {"embedding": embedding, "own": found[-1], "original": found[len(found) // 2 - 1]}
    assert start.layout.channels[-1] == maps[averaged].shape[1]
    assert_sums(gather(segmenter, start, [batch], fit), *twin(segmenter, start, [batch], fit))


def test_the_networks_of_this_test_are_as_different_as_it_says() -> None:
    strides = {name: feature_layout(network(name), CLASSES, stages=1).strides for name in NETWORKS}
    assert strides == {"deeplabv3": (16, 16), "deeplabv3plus": (4, 16), "unet": (1, 32), "fpn": (4, 32)}


@pytest.mark.parametrize(
    ("fit", "stride"),
    [
        (Fit(mirrored=True), 16),
        (Fit(balance=0.0, mirrored=False), 16),
        (Fit(balance=1.0, soft=True), 16),
        (Fit(soft=True, mirrored=False), 8),
        (Fit(mirrored=False), 8),
        (Fit(mirrored=False), 32),
    ],
)
def test_every_rule_gives_the_sums_written_out(fit: Fit, stride: int) -> None:
    segmenter, batch = network(), batch_of(2)
    start = empty(segmenter, stride=stride)
    assert_sums(gather(segmenter, start, [batch], fit), *twin(segmenter, start, [batch], fit))


@pytest.mark.parametrize("fit", [Fit(mirrored=False), Fit(certainty=2.0), Fit(certainty=0.5, soft=True)])
def test_a_later_step_completes_its_background_by_the_head_before(fit: Fit) -> None:
    segmenter, first, second = network(), batch_of(3), batch_of(4, labels=(0, 3))
    start = empty(segmenter)
    gram, cross = twin(segmenter, start, [first], fit)
    known = gather(segmenter, start, [first], fit)
    before = torch.linalg.solve(gram + fit.ridge * torch.eye(WIDTH, dtype=torch.float64), cross)[:, :3]
    more = twin(segmenter, start, [second], fit, before)
    assert_sums(gather(segmenter, known, [second], fit), gram + more[0], cross + more[1])


def test_a_class_without_a_cell_is_never_a_pseudo_label() -> None:
    """Its column of H is 0, which exceeds the scores of the old classes wherever these are all negative."""
    segmenter = network()
    start = replace(empty(segmenter), cross=-torch.ones(WIDTH, CLASSES, dtype=torch.float64))
    start.gram.diagonal().add_(1)
    start.cross[:, 3] = 0
    found = gather(segmenter, start, [batch_of(5, labels=(0,))], Fit(certainty=0.0))
    assert not found.cross[:, 3].any()
    assert (found.cross != start.cross)[:, :3].any()


def test_only_background_gets_a_pseudo_label() -> None:
    segmenter = network()
    start = gather(segmenter, empty(segmenter), [batch_of(6)], Fit())
    labelled = batch_of(7, labels=(3,))  # no background: the head before has no say
    later, alone = (gather(segmenter, each, [labelled], Fit()) for each in (start, start.nothing()))
    assert_sums(later, start.gram + alone.gram, start.cross + alone.cross)


@pytest.mark.parametrize("balance", [0.0, 0.7])
def test_any_order_and_any_cut_of_completely_labelled_images_gives_the_same_head(balance: float) -> None:
    segmenter, fit = network(), Fit(balance=balance)
    batches = [batch_of(seed, labels=(0, 1, 2, 3)) for seed in range(3)]
    start = empty(segmenter)
    whole = gather(segmenter, start, batches, fit)
    singles = single_images(*batches)
    assert_close_heads(gather(segmenter, start, singles[::-1], fit), whole)
    one, two = (gather(segmenter, start, half, fit) for half in (singles[:2], singles[2:]))
    assert_close_heads(one.plus(two), whole)


def test_any_cut_into_steps_without_background_gives_the_same_head() -> None:
    segmenter, fit = network(), Fit()
    steps = [batch_of(seed, labels=labels) for seed, labels in enumerate([(1, 2), (3,), (1, 3)])]
    whole = gather(segmenter, empty(segmenter), steps, fit)
    for order in ([0, 1, 2], [2, 1, 0]):
        found = empty(segmenter)
        for index in order:
            found = gather(segmenter, found, [steps[index]], fit)
        assert_close_heads(found, whole)


def assert_close_heads(one: Statistics, two: Statistics) -> None:
    torch.testing.assert_close(one.solve(1.0), two.solve(1.0), rtol=1e-6, atol=1e-9)


def test_in_float32_the_sums_are_those_of_float64_to_rounding() -> None:
    """Cells are added in float64 in any case; what differs is the network and the products of one block."""
    segmenter, batches = network(), [batch_of(8, images=4)]
    exact = gather(segmenter, empty(segmenter), batches, Fit())
    found = gather(segmenter.float(), empty(segmenter), batches, Fit())
    assert found.gram.dtype == torch.float64
    assert ((found.gram - exact.gram).norm() / exact.gram.norm()).item() < 1e-5
    assert ((found.cross - exact.cross).norm() / exact.cross.norm()).item() < 1e-5


def sizes_given_to(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[int]:
    """How many images or cells each call of a method gets, from here on."""
    sizes, method = list[int](), getattr(owner, name)

    def watched(self: object, given: Tensor) -> Any:
        sizes.append(len(given))
        return method(self, given)

    monkeypatch.setattr(owner, name, watched)
    return sizes


def test_memory_is_bounded_whatever_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    segmenter = network()
    batches = [batch_of(9, images=3), batch_of(10, images=1, height=100, width=90)]
    start = empty(segmenter)
    whole = gather(segmenter, start, batches, Fit(mirrored=True))
    monkeypatch.setattr(gathering, "PIXELS", 2 * 50 * 70 + 1)
    monkeypatch.setattr(gathering, "CELLS", 10)
    monkeypatch.setattr(closed_form, "BLOCK", 5)
    seen = sizes_given_to(monkeypatch, Segmenter, "features")
    projected = sizes_given_to(monkeypatch, RandomFeatures, "project")
    found = gather(segmenter, start, batches, Fit(mirrored=True))
    assert seen == [2, 2, 1, 1, 1, 1]  # each time as it is and mirrored; the larger image alone
    assert set(projected[:-1]) == {10}
    assert 0 < projected[-1] <= 10
    assert_close_heads(found, whole)


def test_images_wait_for_others_of_their_padded_size_but_not_in_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(64, 96), (64, 96), (128, 96), (64, 96)]
    given = [(torch.full((1, 3, *size), float(i)), torch.full((1, *size), i)) for i, size in enumerate(sizes)]
    found = list(gathering._together(given))
    assert [len(images) for images, _ in found] == [1, 3]
    for images, labels in found:
        assert (images[:, 0] == labels).all(), "each with its own labels"
    assert sorted(int(label[0, 0]) for _, labels in found for label in labels) == [0, 1, 2, 3]
    monkeypatch.setattr(gathering, "MOST_WAITING", 0)
    assert [len(images) for images, _ in gathering._together(given)] == [1, 1, 1, 1]
    monkeypatch.setattr(gathering, "MOST_WAITING", 8)
    monkeypatch.setattr(gathering, "PIXELS", 2 * 64 * 96)
    assert [len(images) for images, _ in gathering._together(given)] == [2, 1, 1]


def test_what_all_processes_found_is_what_join_returns() -> None:
    segmenter, batch = network(), batch_of(11)
    alone = gather(segmenter, empty(segmenter), [batch], Fit())
    twice = gather(segmenter, empty(segmenter), [batch], Fit(), join=lambda own: own * 2)
    assert torch.equal(twice.gram, 2 * alone.gram)
    assert torch.equal(twice.cross, 2 * alone.cross)


def test_nothing_to_gather_leaves_everything_as_it_was() -> None:
    segmenter = network()
    start = gather(segmenter, empty(segmenter), [batch_of(12)], Fit())
    unlabelled = batch_of(13, labels=())
    for batches in ([], [unlabelled]):
        found = gather(segmenter, start, batches, Fit())
        assert torch.equal(found.gram, start.gram)
        assert torch.equal(found.cross, start.cross)


def test_the_solved_head_finds_what_it_was_shown() -> None:
    """Enough random features for a few cells: the scores are the one-hot targets."""
    segmenter, batch = network().float(), batch_of(14, images=1, height=64, width=64)
    layout = feature_layout(segmenter, CLASSES, width=512)
    start = Statistics.empty(layout).with_classes(CELLS_OF)
    statistics = gather(segmenter, start, [batch], Fit(mirrored=False, ridge=1e-4))
    segmenter.use_head(solved_head(statistics, [CLASSES], ridge=1e-4))
    scores = segmenter(batch.images).logits[0]
    labels = batch.labels[0, 8::16, 8::16]
    assert (scores.argmax(dim=0) == labels)[labels != 255].all()
    assert segmenter.classifier.head_sizes == [CLASSES]


def test_a_solved_head_has_its_cells_centres_whatever_the_head_before_had() -> None:
    segmenter = Segmenter(NETWORKS["deeplabv3"].model_copy(update={"align_corners": True}), [CLASSES])
    segmenter.use_head(solved_head(empty(segmenter), [CLASSES], ridge=1.0))
    assert segmenter.architecture.align_corners is False


def test_what_the_network_does_not_have_is_refused_in_a_sentence() -> None:
    segmenter = network()
    with pytest.raises(InputError, match="a head can see 0 to 5 stages of this encoder, not 6"):
        feature_layout(segmenter, CLASSES, stages=6)
    with pytest.raises(InputError, match="not -1"):
        feature_layout(segmenter, CLASSES, stages=-1)
    for stride in (0, 12, 64):
        with pytest.raises(InputError, match=f"cannot have a stride of {stride}"):
            feature_layout(segmenter, CLASSES, stride=stride)
    with pytest.raises(InputError, match="an odd number of cells along its side, not 4"):
        feature_layout(segmenter, CLASSES, context=4)
    fixed = Segmenter(Architecture(encoder="tu-vit_tiny_patch16_224", decoder="dpt"), [2])
    with pytest.raises(InputError, match="cannot have a closed-form head: it does not take images of 64×64"):
        feature_layout(fixed, 2)


def test_every_label_of_a_large_image_counts_in_exactly_one_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "TILE", 128)
    monkeypatch.setattr(gathering, "CONTEXT", 32)
    batch = batch_of(seed=1, images=2, height=150, width=330)
    batch = batch._replace(labels=torch.arange(2 * 150 * 330).reshape(2, 150, 330) + 1000)  # each its own
    pieces = list(gathering._pieces(batch))
    assert {tuple(labels.shape[-2:]) for _, labels in pieces} > {(128, 128)}
    counted = torch.cat([labels[labels != 255] for _, labels in pieces])
    assert torch.equal(counted.sort().values, batch.labels.flatten())
    for images, labels in pieces:
        position = int(labels[labels != 255][0]) - 1000
        row, column = (int(axis) for axis in (labels[0] != 255).nonzero()[0])
        whole = batch.images[position // (150 * 330), :, position % (150 * 330) // 330, position % 330]
        assert torch.equal(images[0, :, row, column], whole)


def test_a_large_image_gives_nearly_the_sums_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    segmenter, batch = network("unet"), batch_of(seed=1, images=1, height=192, width=384)
    roomy = empty(segmenter).with_classes(torch.ones(3, dtype=torch.float64))
    whole = gather(segmenter, roomy, [batch], Fit(mirrored=False))
    monkeypatch.setattr(gathering, "TILE", 256)
    monkeypatch.setattr(gathering, "CONTEXT", 64)
    tiled = gather(segmenter, roomy, [batch], Fit(mirrored=False))
    assert (tiled.cross - whole.cross).norm() < 0.1 * whole.cross.norm()
    assert not torch.equal(tiled.cross, whole.cross)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU to have two devices")
def test_sums_are_made_where_the_statistics_are() -> None:
    """As for Apple's GPUs, which have no float64: the network is on the device, and the sums are beside it."""
    segmenter, batches = network(), single_images(batch_of(1), batch_of(2))
    nothing = empty(segmenter)
    once = gather(segmenter, nothing, batches, Fit())
    twice = gather(segmenter, once, batches, Fit())  # the second time a head says what lies in the background
    segmenter.cuda()
    for expected, found in (
        (once, gather(segmenter, nothing, batches, Fit())),
        (twice, gather(segmenter, once, batches, Fit())),
    ):
        assert found.gram.device.type == "cpu"
        torch.testing.assert_close((found.gram, found.cross), (expected.gram, expected.cross))
