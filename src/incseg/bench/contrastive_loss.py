"""``incseg bench contrastive``: every implementation of the UCD loss, side by side, in one run on the same tensors."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from incseg.bench.measure import device_to_measure, hardware, matmul_rate, median_milliseconds, peak_extra_bytes
from incseg.console import Console, publish
from incseg.engine.captured import captured
from incseg.errors import InputError
from incseg.files import usable_folder
from incseg.losses import contrastive_distillation

CHANNELS, CLASSES, TEMPERATURE = 256, 20, 0.07
GPU_SIZES = (2048, 4096, 8192, 16384, 24576, 49152)
CPU_SIZES = (1024, 2048, 4096)
SMALLEST = 2  # anchors; the teacher then has one pixel
LARGEST = 1 << 20  # 43 of the largest batches of the paper: time grows with the square
CAPTURED = "triton, captured"  # recorded as one CUDA graph: what the device needs, without the host's launches
# N×(N+M) float32 matrices alive at once in the dense implementations, which are skipped where these cannot fit.
DENSE_MATRICES = 8

Inputs = dict[str, Tensor]
Loss = Callable[[Inputs], Tensor]


@dataclass(frozen=True)
class Measurement:
    """One implementation at one size, or why it was not run."""

    implementation: str
    anchors: int
    teacher: int
    milliseconds: float = float("nan")
    extra_bytes: int | None = None
    skipped: str = ""

    @property
    def tflops(self) -> float:
        """Rate of the three products that linear memory needs: similarities, the same again, gradients times rows."""
        return 6 * self.anchors * (self.anchors + self.teacher) * CHANNELS / self.milliseconds / 1e9


def benchmark_contrastive(
    out: Path = Path("benchmarks/results"), sizes: tuple[int, ...] | None = None, device: str = "auto"
) -> None:
    """Time and memory of forward + backward of every implementation of the UCD loss, as a Markdown table and a plot.

    Args:
        out: folder for ``DATE-contrastive-HARDWARE.md`` and ``.png``.
        sizes: numbers of anchors N; the teacher has 3N/4 pixels.
        device: ``cuda``, ``cpu``, or ``auto`` for a GPU if there is one.
    """
    place = device_to_measure(device)
    if sizes and min(sizes) < SMALLEST:
        raise InputError(f"--sizes {min(sizes)} is too small to measure: give {SMALLEST} anchor pixels or more.")
    if sizes and max(sizes) > LARGEST:
        raise InputError(f"--sizes {max(sizes)} is too large to measure: give at most {LARGEST} anchor pixels.")
    usable_folder(out)
    console = Console()
    ceiling = matmul_rate(place)
    found: list[Measurement] = []
    for n in sorted(sizes or (GPU_SIZES if place.type == "cuda" else CPU_SIZES)):
        inputs = random_inputs(n, n * 3 // 4, place)
        for name, loss in implementations(place).items():
            found.append(measure(name, loss, inputs))
            console.say(_row(found[-1], ceiling))
    stem = f"{datetime.now(UTC):%Y-%m-%d}-contrastive-{hardware(place).slug}"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{stem}.md").write_text(report(found, place, ceiling, f"{stem}.png"), encoding="utf-8")
    plot(found, place, out / f"{stem}.png")
    publish(measured=[asdict(each) for each in found], written=[f"{out / stem}.md", f"{out / stem}.png"])
    console.say(f"written: {out / stem}.md and .png")


def implementations(device: torch.device) -> dict[str, Loss]:
    """Losses by name, from the authors' formulation to our fastest."""

    def backend(name: str) -> Loss:
        settings: Any = {"temperature": TEMPERATURE, "backend": name}
        return lambda inputs: contrastive_distillation(**{**inputs, **settings})

    losses = {"release (dense)": release_loss, "eager": backend("eager"), "chunked": backend("chunked")}
    on_gpu = {"triton": backend("triton"), CAPTURED: backend("triton")}
    return losses | on_gpu if device.type == "cuda" else losses


def release_loss(inputs: Inputs) -> Tensor:
    """The loss as the authors' release computes it, from its description: dense, contrast side detached.

    The positive joins its denominator after a shift by the row's maximum that the sum of negatives does not get, and
    the mean is over anchors with a positive. Its value is therefore not the paper's; its cost is what is measured.
    """
    student = torch.nn.functional.normalize(inputs["anchors"].float(), dim=1)
    teacher = torch.nn.functional.normalize(inputs["teacher"].float(), dim=1)
    contrast = torch.cat([student, teacher]).detach()
    labels = torch.cat([inputs["anchor_labels"], inputs["teacher_labels"]])
    probs = torch.cat([inputs["anchor_probs"], inputs["teacher_probs"]])
    similarity = student @ contrast.T / TEMPERATURE
    shifted = similarity - similarity.max(dim=1, keepdim=True).values.detach()
    same = (inputs["anchor_labels"][:, None] == labels[None, :]).float()
    others = torch.ones_like(same)
    others.fill_diagonal_(0)
    positive = same * others
    negatives = (torch.exp(similarity) * (1 - same)).sum(dim=1, keepdim=True)
    log_probability = shifted - torch.log(torch.exp(shifted) + negatives)
    sigma = inputs["anchor_probs"] @ probs.T
    per_anchor = (positive * sigma * log_probability).sum(dim=1) / positive.sum(dim=1)
    return -per_anchor.mean()


def random_inputs(n: int, m: int, device: torch.device) -> Inputs:
    """Features (float16 on a GPU, as under autocast) of foreground pixels; P̄ has 20 classes and background."""
    rng = torch.Generator(device).manual_seed(n)
    here: Any = {"device": device, "generator": rng}
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    return {
        "anchors": torch.randn(n, CHANNELS, **here).to(dtype).requires_grad_(),
        "anchor_labels": torch.randint(1, CLASSES + 1, (n,), **here),
        "teacher": torch.randn(m, CHANNELS, **here).to(dtype),
        "teacher_labels": torch.randint(1, CLASSES + 1, (m,), **here),
        "anchor_probs": torch.softmax(3 * torch.randn(n, CLASSES + 1, **here), dim=1),
        "teacher_probs": torch.softmax(3 * torch.randn(m, CLASSES + 1, **here), dim=1),
    }


def measure(name: str, loss: Loss, inputs: Inputs) -> Measurement:
    """Forward + backward of one implementation: median time, and peak memory beyond the inputs."""
    anchors = inputs["anchors"]
    n, m = len(anchors), len(inputs["teacher"])
    dense = name in ("release (dense)", "eager")
    needed = DENSE_MATRICES * n * (n + m) * 4
    if dense and needed > hardware(anchors.device).memory:
        return Measurement(name, n, m, skipped=f"needs {needed / 2**30:.0f} GiB")

    def step() -> None:
        torch.autograd.grad(loss(inputs), anchors)

    try:
        extra = peak_extra_bytes(step, anchors.device)
        measured = _as_graph(step, anchors.device) if name == CAPTURED else step
        return Measurement(name, n, m, median_milliseconds(measured, anchors.device), extra)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return Measurement(name, n, m, skipped="out of memory")


def _as_graph(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    nothing = torch.empty(0, device=device)
    replay = captured(lambda _: step(), nothing)
    return lambda: replay(nothing)


def report(found: list[Measurement], device: torch.device, ceiling: float, picture: str) -> str:
    """The measurements as a Markdown page."""
    machine = hardware(device)
    on_gpu = device.type == "cuda"
    kind = "float16" if on_gpu else "float32"
    lines = [
        "# The UCD loss: forward + backward",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {machine.name}, {machine.software}. `incseg bench contrastive`, one run.",
        "",
        f"N anchors, M = 3N/4 teacher pixels, D = {CHANNELS}, {CLASSES} classes, σ from {CLASSES + 1} probabilities,",
        f"τ = {TEMPERATURE}, {kind} features. Time: median. Memory: peak beyond the inputs.",
        f"TFLOP/s: 6·N·(N+M)·D over the time, for all of them; a {kind} matrix product in the same run: {ceiling:.4g}.",
        "`release (dense)` follows the description of the authors' code; its value differs, its cost is comparable.",
        *([f"`{CAPTURED}`: recorded as one CUDA graph, what the device needs without the host."] if on_gpu else []),
        "",
        "| N | M | implementation | time, ms | extra memory, GiB | TFLOP/s | of the product |",
        "|---:|---:|---|---:|---:|---:|---:|",
        *(_row(x, ceiling) for x in found),
        "",
        f"![time and memory over N]({picture})",
        "",
    ]
    return "\n".join(lines)


def _row(x: Measurement, ceiling: float) -> str:
    if x.skipped:
        return f"| {x.anchors} | {x.teacher} | {x.implementation} | not run: {x.skipped} | | | |"
    memory = "–" if x.extra_bytes is None else f"{x.extra_bytes / 2**30:.3f}"
    numbers = f"{x.milliseconds:.3f} | {memory} | {x.tflops:.3g} | {x.tflops / ceiling:.0%}"
    return f"| {x.anchors} | {x.teacher} | {x.implementation} | {numbers} |"


def plot(found: list[Measurement], device: torch.device, path: Path) -> None:
    """Time and memory over N, one line per implementation."""
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow to import)

    figure = Figure(figsize=(11.5, 4), layout="constrained")
    time_axes, memory_axes = figure.subplots(1, 2)
    for name in dict.fromkeys(x.implementation for x in found):
        rows = [x for x in found if x.implementation == name and not x.skipped]
        time_axes.plot([x.anchors for x in rows], [x.milliseconds for x in rows], marker="o", label=name)
        known = [(x.anchors, max(x.extra_bytes, 2**20) / 2**30) for x in rows if x.extra_bytes is not None]
        memory_axes.plot([n for n, _ in known], [gib for _, gib in known], marker="o", label=name)
    for axes, title in ((time_axes, "forward + backward, ms"), (memory_axes, "extra memory, GiB")):
        axes.set(xscale="log", yscale="log", xlabel="anchors N (teacher: 3N/4)", title=title)
        sizes = sorted({x.anchors for x in found})
        axes.set_xticks(sizes, [str(n) for n in sizes], rotation=45)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    figure.legend(*time_axes.get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(f"UCD loss, {hardware(device).name}")
    figure.savefig(path, dpi=120)
