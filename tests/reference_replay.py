"""The slow twins of STAR, Adapter and a mixture's update: float64 loops that share no code with ``incseg.losses``."""

import math
from collections.abc import Sequence

Vector = Sequence[float]


def length(v: Vector) -> float:
    return math.sqrt(sum(x * x for x in v))


def unit(v: Vector) -> list[float]:
    return [x / length(v) for x in v]


def mean(vectors: Sequence[Vector]) -> list[float]:
    return [sum(column) / len(vectors) for column in zip(*vectors, strict=True)]


def softplus(z: float) -> float:
    return math.log(1 + math.exp(z))


def class_model(features: Sequence[Vector]) -> tuple[list[float], list[float], float, float]:
    """STAR's memory of one class: prototype, noise per channel, mean and deviation of the norm."""
    units, lengths = [unit(f) for f in features], [length(f) for f in features]
    prototype = unit(mean(units))
    noise = [math.sqrt(sum((u[d] - prototype[d]) ** 2 for u in units) / len(units)) for d in range(len(prototype))]
    average = sum(lengths) / len(lengths)
    return prototype, noise, average, math.sqrt(sum((n - average) ** 2 for n in lengths) / len(lengths))


def replayed(
    image_loss: float,
    features: Sequence[Vector],
    cells: Sequence[Vector],
    background: Sequence[bool],
    count: float,
    repeats: float,
) -> float:
    """STAR's classification loss: (L + w_f L_fake + w_b L_bg)/(1 + w_f + w_b); all are logits of the new classes."""
    w_f, w_b = count / len(cells), repeats * sum(background) / len(cells)
    fake = sum(softplus(z) for f in features for z in f) / len(features)
    repeated = [cell for cell, is_background in zip(cells, background, strict=True) if is_background]
    again = sum(softplus(z) for cell in repeated for z in cell) / len(repeated)
    return (image_loss + w_f * fake + w_b * again) / (1 + w_f + w_b)


def maintained(student: Sequence[Vector], teacher: Sequence[Vector]) -> float:
    """OCFM on the pixels of old classes."""
    errors = [(a - b) ** 2 for s, t in zip(student, teacher, strict=True) for a, b in zip(s, t, strict=True)]
    return sum(errors) / len(errors)


def separated(centres: Sequence[Vector], old: Sequence[Vector]) -> float:
    """SAD: for every new class one over its distance to the nearest old one."""
    nearest = [min(length([a - b for a, b in zip(c, o, strict=True)]) for o in old) for c in centres]
    return sum(1 / d for d in nearest) / len(nearest)


def hesitation(probs: Sequence[Vector], labels: Sequence[int]) -> float:
    """UAC."""
    costs = []
    for p, y in zip(probs, labels, strict=True):
        ranked = sorted(p, reverse=True)
        if 0 <= y < len(p) and p.index(ranked[0]) != y and ranked[0] <= 0.7:
            costs.append((1 - (ranked[0] - ranked[1])) ** 2)
    return sum(costs) / len(costs) if costs else 0.0


def drifted(prototype: Vector, noise: Vector, shift: Vector, agreed: float, stored: float) -> tuple[list[float], ...]:
    """ADC for one class."""
    moved = [min(agreed / stored, 1) * s for s in shift]
    return unit([p + m for p, m in zip(prototype, moved, strict=True)]), [
        n + abs(m) for n, m in zip(noise, moved, strict=True)
    ]


def normal(x: float, mu: float, sigma: float) -> float:
    return math.exp(-((x - mu) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))


def mixture_update(
    features: Sequence[Vector], shares: Vector, means: Sequence[Vector], stds: Sequence[Vector], least: float
) -> list[tuple[float, list[float], list[float]]]:
    """Textbook expectation and maximisation of Gaussians with diagonal covariances."""
    explained = []
    for f in features:
        density = [
            share * math.prod(normal(x, m, s) for x, m, s in zip(f, mu, sigma, strict=True))
            for share, mu, sigma in zip(shares, means, stds, strict=True)
        ]
        explained.append([d / sum(density) for d in density])
    found = []
    for k in range(len(shares)):
        weight = sum(r[k] for r in explained)
        mu = [sum(r[k] * f[d] for r, f in zip(explained, features, strict=True)) / weight for d in range(len(means[k]))]
        variance = [
            sum(r[k] * (f[d] - mu[d]) ** 2 for r, f in zip(explained, features, strict=True)) / weight
            for d in range(len(mu))
        ]
        found.append((weight / len(features), mu, [max(math.sqrt(v), least) for v in variance]))
    return found


def star_steps(
    stored: Sequence[float], found_in: Sequence[Sequence[float]], new_in: Sequence[int], *, overlap: bool
) -> list[tuple[list[float], float]]:
    """Of every later step: the cells of each old class that it lacks, and how often background is repeated.

    As the authors' trainer counts: ``stored`` are the cells of step 0, ``found_in`` what the old network finds in the
    background of each step, and each of ``new_in`` new classes has 10 cells. Where images overlap, the background of
    earlier steps loses 1 % per new class and is taken as half seen, and what old classes lose is what is found of them.
    """
    counts, steps = list(stored), []
    for found, new in zip(found_in, new_in, strict=True):
        background = counts[0] * (1 - 0.01 * new) if overlap else counts[0]
        lacking = [max(n - (f if overlap else 0), 0) for n, f in zip(counts[1:], found[1:], strict=True)]
        ratio = background / found[0]
        steps.append((lacking, max(ratio - 0.5, 0) if overlap else ratio))
        if overlap:
            counts[0] = background + 0.5 * found[0]
        else:
            counts = [n + f for n, f in zip(counts, found, strict=True)]
        counts += [10.0] * new
    return steps
