import numpy as np
import pytest
from pycocotools import mask

from incseg.datasets.formats.painting import Bitmap, Polygon, painted

SIZE = (60, 50)


def by_pycocotools(points: list[tuple[float, float]]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    encoded = mask.merge(mask.frPyObjects([[value for point in points for value in point]], SIZE[1], SIZE[0]))
    return np.asarray(mask.decode(encoded)).astype(bool)


@pytest.mark.parametrize("seed", range(8))
def test_a_polygon_covers_what_pycocotools_covers_but_for_pixels_on_its_edge(seed: int) -> None:
    generator = np.random.default_rng(seed)
    angles = np.sort(generator.uniform(0, 2 * np.pi, 9))
    radius = generator.uniform(8, 30, 9)
    points = [(float(30 + r * np.cos(a)), float(25 + r * np.sin(a))) for r, a in zip(radius, angles, strict=True)]
    ours, theirs = painted([Polygon(1, points)], SIZE, 0) == 1, by_pycocotools(points)
    perimeter = sum(np.hypot(*np.subtract(p, q)) for p, q in zip(points, points[1:] + points[:1], strict=True))
    assert (ours != theirs).sum() < 0.25 * perimeter  # it rounds points to a fifth of a pixel
    assert abs(int(ours.sum()) - int(theirs.sum())) < 0.15 * perimeter


def test_a_pixel_belongs_to_a_polygon_if_its_centre_does() -> None:
    points = [(3.2, 4.1), (40.7, 9.3), (22.0, 44.4)]
    ids = painted([Polygon(7, points)], SIZE, 0)
    for y in range(SIZE[1]):
        for x in range(SIZE[0]):
            turns = [
                (bx - ax) * (y + 0.5 - ay) - (by - ay) * (x + 0.5 - ax)
                for (ax, ay), (bx, by) in zip(points, points[1:] + points[:1], strict=True)
            ]
            assert (ids[y, x] == 7) == all(turn > 0 for turn in turns), (x, y)


def test_a_rectangle_on_whole_numbers_has_exactly_its_area_and_is_cut_off_at_the_image() -> None:
    assert (painted([Polygon.rectangle(1, (15, 20), (5, 5))], SIZE, 0) == 1).sum() == 150
    ids = painted([Polygon.rectangle(1, (-10, -10), (5, 500))], SIZE, 0)
    assert (ids[:, :5] == 1).all()
    assert (ids[:, 5:] == 0).all()
    assert (painted([Polygon.rectangle(1, (-9, -9), (-2, -2))], SIZE, 0) == 0).all()


def test_an_ellipse_has_its_area_and_lies_around_its_centre() -> None:
    ids = painted([Polygon.ellipse(1, (30, 25), (20, 10))], SIZE, 0)
    y, x = np.nonzero(ids)
    assert abs(len(x) - np.pi * 200) < 10
    assert (x.mean() + 0.5, y.mean() + 0.5) == pytest.approx((30, 25))
    assert (x.min(), x.max(), y.min(), y.max()) == (10, 49, 15, 34)


def test_later_shapes_lie_on_top_and_the_rest_is_blank() -> None:
    square = Polygon.rectangle(1, (0, 0), (10, 10))
    ids = painted([square, Bitmap(2, -2, 8, np.ones((4, 4), bool))], SIZE, 255)
    assert (ids[8:12, :2] == 2).all()
    assert (ids[:8, :10] == 1).all()
    assert ids[20, 20] == 255
    assert (ids == 2).sum() == 8


def test_the_area_is_the_shoelace_formulas() -> None:
    assert Polygon(1, [(0, 0), (4, 0), (4, 3)]).area() == 6
