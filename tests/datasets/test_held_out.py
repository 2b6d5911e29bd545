import numpy as np
import pytest

from incseg.datasets.held_out import choose_validation


def test_every_class_with_two_images_is_in_both_parts() -> None:
    presence = (
        [frozenset({1})] * 40 + [frozenset({2})] * 2 + [frozenset({3, 1})] * 3 + [frozenset({4})] + [frozenset()] * 4
    )
    chosen = choose_validation(presence, 0.2)
    kept = [presence[index] for index in chosen]
    left = [presence[index] for index in range(50) if index not in chosen]
    for name in (1, 2, 3):
        assert any(name in shown for shown in kept), name
        assert any(name in shown for shown in left), name
    assert any(4 in shown for shown in left)  # a single image is for learning
    assert len(chosen) == 10


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_about_the_share_is_chosen_of_all_images_and_of_each_class(share: float) -> None:
    generator = np.random.default_rng(1)
    presence = [frozenset(np.flatnonzero(generator.random(6) < 0.3).tolist()) for _ in range(200)]
    chosen = choose_validation(presence, share)
    assert abs(len(chosen) - share * 200) <= 0.12 * 200
    for name in range(6):
        total = sum(name in shown for shown in presence)
        assert sum(name in presence[index] for index in chosen) >= 0.95 * share * total
    assert choose_validation(presence, share) == chosen


def test_the_last_image_of_a_class_is_never_taken() -> None:
    assert choose_validation([frozenset({1}), frozenset({2})], 0.5) == set()
    assert len(choose_validation([frozenset({1}), frozenset({1})], 0.01)) == 1
    triangle = [frozenset({1, 3}), frozenset({1, 2}), frozenset({2, 3})]  # no choice puts all three into both parts
    assert len(choose_validation(triangle, 0.9)) == 1
    assert choose_validation([], 0.2) == set()
