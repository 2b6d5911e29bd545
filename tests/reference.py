"""The slow twins: every loss once more, as float64 loops that a reader can hold against the papers.

Nothing here shares code with ``incseg.losses``; agreement is evidence.
"""

import itertools
import math
from collections.abc import Callable, Sequence

Vector = Sequence[float]


def softmax(logits: Vector) -> list[float]:
    top = max(logits)
    exps = [math.exp(z - top) for z in logits]
    return [e / sum(exps) for e in exps]


def cosine(u: Vector, v: Vector) -> float:
    """δ(u, v) below UCD eq. 8; a zero vector is orthogonal to everything."""
    norms = math.sqrt(sum(x * x for x in u)) * math.sqrt(sum(x * x for x in v))
    return sum(x * y for x, y in zip(u, v, strict=True)) / norms if norms > 0 else 0.0


def extended_pixel(truth: int, teacher: Vector, num_classes: int) -> tuple[int, list[float]]:
    """UCD eq. 2 and eq. 9 for one pixel."""
    if truth not in (0, 255):
        return truth, [1.0 if c == truth else 0.0 for c in range(num_classes)]
    padded = list(teacher) + [0.0] * (num_classes - len(teacher))
    return (255 if truth == 255 else max(range(len(teacher)), key=lambda c: teacher[c])), padded


def contrastive_distillation(
    anchors: Sequence[Vector],
    anchor_labels: Sequence[int],
    teacher: Sequence[Vector],
    teacher_labels: Sequence[int],
    anchor_probs: Sequence[Vector] | None,
    teacher_probs: Sequence[Vector] | None,
    temperature: float,
    denominator: str,
    paired_only: bool = False,
) -> float:
    """UCD eq. 5–8, 10, 11: sum over anchors, over positives, of σ · −log-contrast.

    The mean is over all anchors; ``paired_only``: over those that have a positive, as in the authors' release.
    """
    features = list(anchors) + list(teacher)
    labels = list(anchor_labels) + list(teacher_labels)
    probs = None if anchor_probs is None or teacher_probs is None else list(anchor_probs) + list(teacher_probs)
    in_r = [a for a in range(len(anchors)) if anchor_labels[a] >= 0]
    total, paired = 0.0, 0
    for a in in_r:
        contrast = [j for j in range(len(features)) if j != a and labels[j] >= 0]
        positives = [j for j in contrast if labels[j] == labels[a]]
        negatives = [j for j in contrast if labels[j] != labels[a]]
        paired += bool(positives)
        if not positives or not negatives:
            continue
        inner = 0.0
        for g in positives:
            delta = cosine(features[a], features[g]) / temperature
            scores = [cosine(features[a], features[j]) / temperature for j in negatives]
            if denominator == "pair":
                scores.append(delta)
            top = max(scores)
            log_denominator = top + math.log(sum(math.exp(s - top) for s in scores))
            sigma = 1.0 if probs is None else sum(p * q for p, q in zip(probs[a], probs[g], strict=True))
            inner += sigma * -(delta - log_denominator)
        total += inner / len(positives)
    counted = paired if paired_only else len(in_r)
    return total / counted if counted else 0.0


def cross_entropy(pixels: Sequence[Vector], labels: Sequence[int]) -> float:
    """Over all pixels of the image, the ignored ones among them at no cost."""
    kept = [(z, y) for z, y in zip(pixels, labels, strict=True) if y != 255]
    return sum(-math.log(softmax(z)[y]) for z, y in kept) / len(labels)


def balanced_cross_entropy(pixels: Sequence[Vector], labels: Sequence[int], power: float) -> float:
    """A weighted mean over the labelled pixels; the weight is the class' number of pixels to the power of −power."""
    kept = [(z, y) for z, y in zip(pixels, labels, strict=True) if y != 255]
    weights = [math.pow(labels.count(y), -power) for _, y in kept]
    costs = [-math.log(softmax(z)[y]) for z, y in kept]
    return sum(w * cost for w, cost in zip(weights, costs, strict=True)) / sum(weights)


def unbiased_cross_entropy(pixels: Sequence[Vector], labels: Sequence[int], old_classes: int) -> float:
    """UCD eq. 13 and 14: background takes the probability of everything learnt before."""
    kept = [(softmax(z), y) for z, y in zip(pixels, labels, strict=True) if y != 255]
    losses = [-math.log(p[y] if y >= old_classes else sum(p[:old_classes])) for p, y in kept]
    return sum(losses) / len(labels)


def unbiased_distillation(
    student: Sequence[Vector], teacher: Sequence[Vector], labels: Sequence[int] | None = None
) -> float:
    """UCD eq. 15 and 16, over the number of old classes as in MiB's code; labels may tell which pixels are new."""
    total = 0.0
    for index, (z_student, z_teacher) in enumerate(zip(student, teacher, strict=True)):
        p, q = softmax(z_student), softmax(z_teacher)
        label = 255 if labels is None else labels[index]
        if len(q) <= label < 255:
            continue
        is_old = label == 0
        for c in range(len(q)):
            merged = p[0] + sum(p[len(q) :]) if c == 0 and not is_old else p[c]
            total -= q[c] * math.log(merged)
    return total / (len(student) * len(teacher[0])) if student else 0.0


def class_means(features: Sequence[Vector], labels: Sequence[int], num_classes: int) -> dict[int, list[float]]:
    """The mean of the features of each class that is there."""
    found = {}
    for c in range(num_classes):
        members = [f for f, y in zip(features, labels, strict=True) if y == c]
        if members:
            found[c] = [sum(column) / len(members) for column in zip(*members, strict=True)]
    return found


def binary_cross_entropy(
    pixels: Sequence[Vector],
    labels: Sequence[int],
    classes: Sequence[int],
    positive_weight: float = 1.0,
    hidden_in_background: Sequence[int] = (),
) -> float:
    """iCaRL's classification loss, with all classes, and DKD's, with the new ones: every class answers for itself.

    A class that background may hide does not answer there.
    """
    total = 0.0
    for z, y in zip(pixels, labels, strict=True):
        for c in classes:
            if y == 255 or (y == 0 and c in hidden_in_background):
                continue
            total -= positive_weight * math.log(sigmoid(z[c])) if c == y else math.log(sigmoid(-z[c]))
    return total / len(labels)


def decomposed_logits(feature: Vector, weight: Sequence[Vector]) -> tuple[list[float], list[float]]:
    """DKD: every channel's contribution to a class' logit, the positive ones added up, and the negative ones."""
    terms = [[w * f for w, f in zip(row, feature, strict=True)] for row in weight]
    return [sum(t for t in row if t > 0) for row in terms], [sum(t for t in row if t < 0) for row in terms]


def at_most_one_yes(logits: Vector) -> list[float]:
    """Independent answers of foreground classes, given that at most one is yes: of no yes, then of each class alone."""
    outcomes = list(itertools.product([False, True], repeat=len(logits)))
    chance = {yes: math.prod(sigmoid(z if y else -z) for z, y in zip(logits, yes, strict=True)) for yes in outcomes}
    possible = {yes: p for yes, p in chance.items() if sum(yes) <= 1}
    return [possible[tuple(c == wanted for c in range(len(logits)))] / sum(possible.values())
            for wanted in range(-1, len(logits))]  # fmt: skip


def sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def output_distillation(student: Sequence[Vector], teacher: Sequence[Vector]) -> float:
    """LwF: cross-entropy of the two softmaxes over the old classes, over their number."""
    total = 0.0
    for z, t in zip(student, teacher, strict=True):
        p, q = softmax(z[: len(t)]), softmax(t)
        total -= sum(a * math.log(b) for a, b in zip(q, p, strict=True))
    return total / (len(student) * len(teacher[0])) if student else 0.0


def sigmoid_distillation(student: Sequence[Vector], teacher: Sequence[Vector]) -> float:
    """LwF-MC: the same for answers by sigmoid."""
    total = 0.0
    for z, t in zip(student, teacher, strict=True):
        for a, b in zip(z, t, strict=False):
            total -= sigmoid(b) * math.log(sigmoid(a)) + sigmoid(-b) * math.log(sigmoid(-a))
    return total / (len(student) * len(teacher[0])) if student else 0.0


def local_pod(channel: Sequence[Vector], scales: Sequence[int]) -> list[float]:
    """PLOP: of one channel of one image, the means over width, then over height, of every window of every scale."""
    found: list[float] = []
    for scale in scales:
        rows, columns = len(channel) // scale, len(channel[0]) // scale
        windows = [
            [line[j * columns : (j + 1) * columns] for line in channel[i * rows : (i + 1) * rows]]
            for i in range(scale)
            for j in range(scale)
        ]
        for window in windows:
            found += [sum(line) / columns for line in window]
            found += [sum(column) / rows for column in zip(*window, strict=True)]
    return found


def pod_distance(student: Sequence[Sequence[Sequence[Vector]]], teacher: Sequence[Sequence[Sequence[Vector]]]) -> float:
    """PLOP: per image, the Euclidean distance of the pooled squares of all channels; their mean."""

    def pooled(image: Sequence[Sequence[Vector]]) -> list[float]:
        return [v for channel in image for v in local_pod([[x * x for x in line] for line in channel], (1, 2, 4))]

    distances = [math.dist(pooled(a), pooled(b)) for a, b in zip(student, teacher, strict=True)]
    return sum(distances) / len(distances)


def released_uncertainty(probs: Vector, num_classes: int) -> float:
    """PLOP's code: the mean, not the sum, of −p ln p over the old classes, over ln K and over ln C."""
    mean = sum(-p * math.log(p + 1e-8) for p in probs) / len(probs)
    return mean / math.log(len(probs) + 1e-8) / math.log(num_classes)


def released_median(histogram: Sequence[int]) -> float:
    """PLOP's code: walk up the bins with a sum that grows by a bin's number where it should grow by its count."""
    if not sum(histogram):
        return 0.0
    half, walked = sum(histogram) / 2, 0.0
    for number in range(len(histogram)):
        edge = number / len(histogram)
        here = histogram[int(edge * len(histogram))]
        if walked <= half <= walked + here:
            break
        walked += number
    missing = half - walked
    if here == 0:
        return math.nan if missing == 0 else math.copysign(math.inf, missing)
    return edge + missing / here / len(histogram)


def squared_distance(u: Vector, v: Vector) -> float:
    return sum((x - y) ** 2 for x, y in zip(u, v, strict=True))


def attraction(features: Sequence[Vector], labels: Sequence[int], prototypes: Sequence[Vector]) -> float:
    """SDR: mean over classes of the mean squared distance (per channel) of their pixels to the class' prototype."""
    per_class = []
    for c, prototype in enumerate(prototypes):
        members = [f for f, y in zip(features, labels, strict=True) if y == c]
        if members:
            per_class.append(sum(squared_distance(f, prototype) / len(f) for f in members) / len(members))
    return sum(per_class) / len(per_class) if per_class else 0.0


def repulsion(means: Sequence[Vector]) -> float:
    """SDR: mean inverse distance between different class means."""
    pairs = [(i, j) for i in range(len(means)) for j in range(len(means)) if i != j]
    return sum(1 / math.sqrt(squared_distance(means[i], means[j])) for i, j in pairs) / len(pairs) if pairs else 0.0


def sparsity(features: Sequence[Vector], labels: Sequence[int], num_classes: int) -> float:
    """SDR: mean over pixels of Σ exp / Σ of the channels, scaled by the largest value in the pixel's class."""
    ratios = []
    for f, y in zip(features, labels, strict=True):
        if not 0 <= y < num_classes:
            continue
        largest = max(x for g, other in zip(features, labels, strict=True) if other == y for x in g)
        scaled = [x / (largest + 1e-15) for x in f]
        if sum(scaled) != 0:
            ratios.append(sum(math.exp(x) for x in scaled) / (sum(scaled) + 1e-15))
    return sum(ratios) / len(ratios) if ratios else 0.0


Grid = Sequence[Sequence[Vector]]  # rows of cells of channels


def resampled(grid: Grid, stride: int, wanted: int) -> list[list[list[float]]]:
    """A feature map on another grid: finer cells are averaged, coarser ones interpolated between their centres."""
    height, width, channels = len(grid), len(grid[0]), range(len(grid[0][0]))
    rows, columns = height * stride // wanted, width * stride // wanted

    def mean_at(i: int, j: int) -> list[float]:
        side = range(wanted // stride)
        inside = [grid[i * len(side) + a][j * len(side) + b] for a in side for b in side]
        return [sum(cell[c] for cell in inside) / len(inside) for c in channels]

    def neighbours(i: int, size: int) -> tuple[int, int, float]:
        place = max(0.0, (i + 0.5) * wanted / stride - 0.5)
        low = min(int(place), size - 1)
        return low, min(low + 1, size - 1), place - low

    def between(i: int, j: int) -> list[float]:
        top, bottom, down = neighbours(i, height)
        left, right, across = neighbours(j, width)
        return [
            (1 - down) * ((1 - across) * grid[top][left][c] + across * grid[top][right][c])
            + down * ((1 - across) * grid[bottom][left][c] + across * grid[bottom][right][c])
            for c in channels
        ]

    return [[(mean_at if stride <= wanted else between)(i, j) for j in range(columns)] for i in range(rows)]


def surroundings(grid: list[list[list[float]]], side: int) -> list[list[list[float]]]:
    """Of every cell, the mean of the unit vectors in a window around it, as far as the window lies on the grid."""
    height, width, reach = len(grid), len(grid[0]), side // 2
    units = [[[value / (math.hypot(*cell) or 1.0) for value in cell] for cell in row] for row in grid]

    def around(i: int, j: int) -> list[float]:
        rows, columns = range(max(0, i - reach), i + reach + 1), range(max(0, j - reach), j + reach + 1)
        inside = [units[k][m] for k in rows if k < height for m in columns if m < width]
        return [sum(values) / len(inside) for values in zip(*inside, strict=True)]

    return [[around(i, j) for j in range(width)] for i in range(height)]


def random_features(vectors: Sequence[Vector], projection: Sequence[Vector]) -> list[float]:
    """φ = relu(R [u; v; …; 1]), every vector divided by its length and multiplied by 16; a zero vector stays."""
    lengths = [math.sqrt(sum(x * x for x in vector)) or 1.0 for vector in vectors]
    scaled = [16 * x / length for vector, length in zip(vectors, lengths, strict=True) for x in vector] + [1.0]
    return [max(0.0, sum(r * x for r, x in zip(row, scaled, strict=True))) for row in projection]


def cell_target(pixels: Sequence[Sequence[int]], num_classes: int, soft: bool) -> list[float]:
    """y of one cell: the label at its centre, or the share of each class among its pixels."""
    middle = len(pixels) // 2
    seen = [label for row in pixels for label in row] if soft else [pixels[middle][middle]]
    return [sum(label == c for label in seen) / len(seen) for c in range(num_classes)]


def completed_target(target: Vector, scores: Vector, certainty: float) -> list[float]:
    """Background goes to the class that the head before finds, weighted by the margin to the second."""
    order = sorted(range(len(scores)), key=lambda c: -scores[c])
    margin = min(1.0, scores[order[0]] - scores[order[1]]) if len(order) > 1 else 1.0
    completed = [0.0, *target[1:]]
    completed[order[0]] += target[0] * math.pow(margin, certainty)
    return completed


def closed_form_sums(
    features: Sequence[Vector], targets: Sequence[Vector], weights: Vector
) -> tuple[list[list[float]], list[list[float]]]:
    """A = Σ a φ φᵀ and B = Σ φ (w ⊙ y)ᵀ with a = w · y."""
    width, classes = len(features[0]), len(weights)
    gram, cross = [[0.0] * width for _ in range(width)], [[0.0] * classes for _ in range(width)]
    for phi, y in zip(features, targets, strict=True):
        amount = sum(w * share for w, share in zip(weights, y, strict=True))
        for i in range(width):
            for j in range(width):
                gram[i][j] += amount * phi[i] * phi[j]
            for c in range(classes):
                cross[i][c] += phi[i] * weights[c] * y[c]
    return gram, cross


Tensors = dict[str, list[float]]


def scaled_to_unit(values: Vector) -> list[float]:
    """Min-max as in MiB's code: 1e-8 joins the spread."""
    return [(x - min(values)) / (max(values) - min(values) + 1e-8) for x in values]


def regularised_descent(
    kind: str, steps: Sequence[tuple[Tensors, Sequence[Tensors]]], weight: float, rate: float
) -> Tensors:
    """θ after plain gradient descent with MiB's EWC, PI or RW, tensor by tensor, over several steps.

    A step is the tensors that are new in it and, per iteration, the minimum c of its loss ½‖θ − c‖². Each step builds
    its regulariser anew from what the last one saved (F, score), and calls it with the gradient of the loss alone.
    """
    theta: Tensors = {}
    fisher: Tensors = {}
    score: Tensors = {}
    for new, targets in steps:
        before = {n: list(v) for n, v in theta.items()}
        firmness = {n: [0.0] * len(v) for n, v in before.items()}
        for source in [fisher] * (kind in ("ewc", "rw")) + [score] * (kind in ("pi", "rw")):
            for n in before:
                firmness[n] = [a + b for a, b in zip(firmness[n], scaled_to_unit(source[n]), strict=True)]
        theta = {**theta, **{n: list(v) for n, v in new.items()}}
        start = {n: list(v) for n, v in theta.items()}
        fisher = {n: fisher.get(n, [1.0] * len(v)) for n, v in theta.items()}
        path = {n: [0.0] * len(v) for n, v in theta.items()}
        last: Tensors = {}
        for iteration, target in enumerate(targets):
            for n, values in theta.items():
                g = [x - c for x, c in zip(values, target[n], strict=True)]
                if kind == "pi" or iteration % 10 == 0:
                    for i in range(len(g)) if n in last else ():
                        moved = last[n][i] - values[i]
                        scale = 1.0 if kind == "pi" else 0.5 * fisher[n][i] * moved**2 + 1e-8
                        path[n][i] += g[i] * moved / scale
                    last[n] = list(values)
                fisher[n] = [0.9 * x * x + 0.1 * f for x, f in zip(g, fisher[n], strict=True)]
                held = before.get(n, values)
                pull = [2 * weight * w * (x - b) for w, x, b in zip(firmness.get(n, g), values, held, strict=True)]
                theta[n] = [x - rate * (a + b) for x, a, b in zip(values, g, pull, strict=True)]
        for n, values in theta.items():
            gained = path[n]
            if kind == "pi":
                gained = [p / ((x - s) ** 2 + 1e-20) for p, x, s in zip(path[n], values, start[n], strict=True)]
            gained = [max(0.0, p) for p in gained]
            if n in score:
                gained = [a + b for a, b in zip(gained, score[n], strict=True)]
                gained = [x / 2 for x in gained] if kind == "rw" else gained
            score[n] = gained
    return theta


def bilinear(grid: Sequence[Vector], height: int, width: int, align_corners: bool) -> list[list[float]]:
    """One channel at another size: every pixel between the four nearest of the given ones, by their distance.

    Pixels are squares whose centres are half a pixel from the border, or with aligned corners points of which the first
    and the last lie on those of the given grid. Outside the outermost centres nothing changes any more.
    """

    def neighbours(place: int, given: int, wanted: int) -> tuple[int, int, float]:
        if align_corners:
            at = place * (given - 1) / (wanted - 1) if wanted > 1 else 0.0
        else:
            at = (place + 0.5) * given / wanted - 0.5
        at = min(max(at, 0.0), given - 1.0)
        low = math.floor(at)
        return low, min(low + 1, given - 1), at - low

    found = []
    for y in range(height):
        top, bottom, down = neighbours(y, len(grid), height)
        row = []
        for x in range(width):
            left, right, across = neighbours(x, len(grid[0]), width)
            above = (1 - across) * grid[top][left] + across * grid[top][right]
            below = (1 - across) * grid[bottom][left] + across * grid[bottom][right]
            row.append((1 - down) * above + down * below)
        found.append(row)
    return found


def channel_importance(
    pixels: Sequence[Vector], probs: Sequence[Vector], weights: Sequence[Vector]
) -> list[list[float]]:
    """NeST's B of one new class: a channel of an old class speaks for a pixel if it raises that class' logit there."""
    found = [[0.0] * len(weights[0]) for _ in weights]
    for pixel, prob in zip(pixels, probs, strict=True):
        for o, row in enumerate(weights):
            for d, weight in enumerate(row):
                if weight * pixel[d] > 0:
                    found[o][d] += prob[o]
    return found


def combined_head(matrix: Sequence[Vector], vector: Vector, weights: Sequence[Vector]) -> list[float]:
    """NeST's weights of one new class."""
    channels = range(len(weights[0]))
    return [sum(vector[o] * matrix[o][d] * weights[o][d] for o in range(len(weights))) for d in channels]


Map = Sequence[Sequence[Sequence[float]]]  # channels, rows, columns


def _norm_of_gap(student: Map, teacher: Map, members: Callable[[int, int, int], list[tuple[int, int, int]]], size: int,
                 places: Sequence[tuple[int, int, int]]) -> float:  # fmt: skip
    """‖·‖₂ over places of the difference of mean squares; members beyond the map are zeros and count in the mean."""
    inside = (len(student), len(student[0]), len(student[0][0]))
    total = 0.0
    for place in places:
        gap = 0.0
        for c, y, x in members(*place):
            if 0 <= c < inside[0] and 0 <= y < inside[1] and 0 <= x < inside[2]:
                gap += (student[c][y][x] ** 2 - teacher[c][y][x] ** 2) / size
        total += gap * gap
    return math.sqrt(total)


def spatial_cube_distance(student: Sequence[Map], teacher: Sequence[Map], windows: Sequence[int]) -> float:
    """RCIL's L_spatial of one layer: squares averaged in k×k windows with k/2 zeros around the map, mean over k."""
    total = 0.0
    for k, (s, t) in itertools.product(windows, list(zip(student, teacher, strict=True))):
        heights, widths = (range(-(k // 2), len(side) + k // 2 - k + 1) for side in (s[0], s[0][0]))
        places = list(itertools.product(range(len(s)), heights, widths))

        def window(c: int, y: int, x: int, k: int = k) -> list[tuple[int, int, int]]:
            return [(c, y + i, x + j) for i in range(k) for j in range(k)]

        total += _norm_of_gap(s, t, window, k * k, places)
    return total / len(windows) / len(student)


def channel_cube_distance(student: Sequence[Map], teacher: Sequence[Map]) -> float:
    """RCIL's L_channel of one layer: squares averaged over three neighbouring channels."""
    total = 0.0
    for s, t in zip(student, teacher, strict=True):
        places = list(itertools.product(range(len(s)), range(len(s[0])), range(len(s[0][0]))))
        total += _norm_of_gap(s, t, lambda c, y, x: [(c - 1, y, x), (c, y, x), (c + 1, y, x)], 3, places)
    return total / len(student)


def label_guided_distillation(student: Sequence[Vector], teacher: Sequence[Vector], labels: Sequence[int]) -> float:
    """MBS: on the pixels of a new class the teacher's background counts for that class."""
    total = 0.0
    for z, t, y in zip(student, teacher, labels, strict=True):
        p, q = softmax(z), softmax(t)
        takes = y if len(t) <= y < len(z) else 0
        total -= q[0] * math.log(p[takes]) + sum(q[c] * math.log(p[c]) for c in range(1, len(t)))
    return total / (len(student) * len(student[0]))


def selective_label(truth: int, teacher: Vector, confidence: float) -> int:
    """MBS: what a pixel is learnt as; the teacher's probabilities decide on background only."""
    if truth != 0:
        return truth
    best = max(range(len(teacher)), key=lambda c: teacher[c])
    if best != 0 and teacher[best] >= confidence:
        return best
    return 255 if teacher[0] < sum(teacher[1:]) else 0


def trust(target: int, old_classes: int, background: float) -> float:
    """MBS: how much the features of a pixel follow the teacher's."""
    return background if target == 0 else 1.0 if target < old_classes else 0.0


def weighted_feature_distillation(student: Sequence[Vector], teacher: Sequence[Vector], weights: Vector) -> float:
    """MBS: a mean over the entries of the pixels whose weight is not zero."""
    counted, total = 0, 0.0
    for f, t, w in zip(student, teacher, weights, strict=True):
        counted += len(f) * (w > 0)
        total += w * sum((a - b) ** 2 for a, b in zip(f, t, strict=True))
    return total / counted


def unknown_label(
    truth: int, teacher: Vector | None, confidence: float, unknown: int, salient: bool | None = None
) -> int:
    """SSUL: the teacher's scores decide on background. Where they do not, it is unknown: on VOC only if it is salient
    (the published code marks it so before it asks the teacher, who may then claim either), without maps always.
    """
    if truth != 0:
        return truth
    if teacher is not None:
        best = max(range(len(teacher)), key=lambda c: teacher[c])
        if best != 0 and sigmoid(teacher[best]) >= confidence:
            return best
    return 0 if salient is False else unknown
