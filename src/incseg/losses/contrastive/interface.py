"""Contrastive distillation: pull pixels of one class together and push the others apart, across two networks."""

from functools import cache, lru_cache
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from incseg.losses.contrastive import chunked
from incseg.losses.contrastive.backend import ContrastSets, ContrastSettings, StreamedBackend
from incseg.losses.contrastive.dense import dense_loss
from incseg.losses.contrastive.streamed import Plan, streamed_loss
from incseg.losses.processes import sum_over_processes
from incseg.losses.triton_support import builds, has_triton, runs_triton

Denominator = Literal["negatives", "pair"]
Backend = Literal["auto", "eager", "chunked", "triton"]
DENOMINATORS, BACKENDS = get_args(Denominator), get_args(Backend)

# Similarities up to which the dense form is the fastest on a CPU.
DENSE_ON_CPU = 1 << 20
# Channels up to which the kernels beat plain PyTorch: their backward repeats the similarities per block of channels.
LONGEST_TRITON_ROW = 1024


def contrastive_distillation(
    anchors: Tensor,
    anchor_labels: Tensor,
    teacher: Tensor,
    teacher_labels: Tensor,
    *,
    anchor_probs: Tensor | None = None,
    teacher_probs: Tensor | None = None,
    temperature: float = 0.07,
    denominator: Denominator = "negatives",
    detach_contrast: bool = False,
    backend: Backend = "auto",
) -> Tensor:
    """Uncertainty-aware contrastive distillation between student and teacher pixels (UCD, eq. 5–8, 10 and 11).

    ``1/|R| Σ_a 1/|G(a)| Σ_{g∈G(a)} σ_ag (L_a − s_ag)`` where
    ``s_aj = cos(f_a, f_j)/τ``, ``L_a = log Σ_{j: label differs} exp s_aj`` and ``σ_ag = P̄_a · P̄_g``.
    The anchors are R; each is contrasted with the other anchors and all teacher pixels, and its positives G(a) are
    those of its own label. An anchor without a positive or without a negative contributes 0 and counts in |R|.

    A negative label takes a pixel out of its set, so that a mask costs no host–device synchronisation. A zero feature
    vector has cosine 0 with everything and receives no gradient.

    Args:
        anchors: (N, D) student features, of any length: they are normalised here.
        anchor_labels: (N,) integer class ids up to 65535; below 0: not an anchor.
        teacher: (M, D) features of the frozen teacher; no gradient flows into them.
        teacher_labels: (M,) integer class ids; below 0: not in the contrast set.
        anchor_probs: (N, C) extended probabilities P̄ of the anchors, or None for σ = 1 (plain CD).
        teacher_probs: (M, C) the same for the teacher's pixels.
        temperature: τ > 0.
        denominator: ``"negatives"`` is eq. 8; ``"pair"`` adds the positive itself to its denominator (InfoNCE).
        detach_contrast: stop the gradient on the contrast side, as the authors' release does; the paper does not.
        backend: ``"eager"`` materialises the N×(N+M) similarities and is the definition; ``"chunked"`` is plain PyTorch
            with memory linear in N + M; ``"triton"`` is the same on a CUDA device at the speed of its matrix units;
            ``"auto"`` picks. Float32 features are compared with float32's accuracy by all three, unless TF32 is
            allowed (``torch.set_float32_matmul_precision("high")``).

    Returns:
        A scalar, float32 or wider; 0 with zero gradient when there is no anchor.
    """
    sets = ContrastSets(anchors, anchor_labels, teacher.detach(), teacher_labels, anchor_probs, teacher_probs)
    settings = _settings(temperature, denominator, detach_contrast)
    return _loss(sets, settings, backend, group=None, world=1)


def contrastive_distillation_global(
    anchors: Tensor,
    anchor_labels: Tensor,
    teacher: Tensor,
    teacher_labels: Tensor,
    *,
    anchor_probs: Tensor | None = None,
    teacher_probs: Tensor | None = None,
    temperature: float = 0.07,
    denominator: Denominator = "negatives",
    detach_contrast: bool = False,
    backend: Backend = "auto",
    group: dist.ProcessGroup | None = None,
    only_members: bool = True,
) -> Tensor:
    """``contrastive_distillation`` whose contrast set is the batch of all processes ("each pixel in a minibatch").

    Every process passes its own rows, all of them equally many (take pixels out with negative labels, not by slicing).
    Each computes the terms of its own anchors against everybody's rows, over the |R| of all processes, and returns
    them **times the number of processes**. Hence the mean of the returned values over the processes is the loss of the
    joined batch, and the mean of the parameters' gradients, which is what ``DistributedDataParallel`` computes, is its
    gradient. Gradients reach the process that owns a feature, also for its role in other processes' contrast sets.

    Without an initialised process group, or in a group of one, this is ``contrastive_distillation``. Forward and
    backward are collective: all processes of the group must call both.

    Args and returns: as ``contrastive_distillation``; ``group`` defaults to all processes. ``backend="eager"`` is the
    definition for one process and is refused with several. ``only_members=False`` keeps ``"auto"`` from leaving out, on
    a CPU, the pixels that take no part before it begins, which gives the same to rounding.
    """
    sets = ContrastSets(anchors, anchor_labels, teacher.detach(), teacher_labels, anchor_probs, teacher_probs)
    settings = _settings(temperature, denominator, detach_contrast)
    world = dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1
    return _loss(sets, settings, backend, group=group, world=world, only_members=only_members)


def share_with_positive(anchor_labels: Tensor, teacher_labels: Tensor, *, num_classes: int) -> Tensor:
    """|R⁺|/|R|, the share of the anchors of all processes that have a positive.

    ``contrastive_distillation`` divided by it is a mean over the anchors that have one, as in the authors' release.

    Args:
        anchor_labels: (N,) integer class ids below C; below 0: not an anchor.
        teacher_labels: (M,) the same for the rest of the contrast set.
        num_classes: C.

    Returns:
        A float32 scalar in (0, 1]; 1 where no anchor has a positive, since the loss is then 0.
    """
    own, rest = (labels.new_zeros(num_classes, dtype=torch.int64) for labels in (anchor_labels, teacher_labels))
    for counts, labels in ((own, anchor_labels), (rest, teacher_labels)):
        counts.scatter_add_(0, labels.clamp_min(0).long(), (labels >= 0).long())
    anchors, others = sum_over_processes(torch.stack([own, rest]))
    paired = anchors.where(anchors + others > 1, 0).sum()
    return torch.where(paired > 0, paired / anchors.sum().clamp_min(1), 1.0)


def _loss(
    sets: ContrastSets,
    settings: ContrastSettings,
    backend: Backend,
    *,
    group: dist.ProcessGroup | None,
    world: int,
    only_members: bool = True,
) -> Tensor:
    _check(*[None if x is None else x.shape for x in sets])
    if only_members and backend == "auto" and world == 1 and sets.anchors.device.type == "cpu":
        sets = _members(sets)
    chosen = _choose(sets, backend, world)
    if sets.anchors.shape[0] == 0:
        return sets.anchors.to(torch.promote_types(sets.anchors.dtype, torch.float32)).sum()
    if chosen == "eager":
        with torch.autocast(sets.anchors.device.type, enabled=False):
            return dense_loss(sets, settings)
    return streamed_loss(Plan(_streamed_backend(chosen), settings, group, world), sets)


def _members(sets: ContrastSets) -> ContrastSets:
    """Only the rows in their sets, mostly a small part; a CPU knows how many there are without waiting for a device."""
    own, rest = ((labels >= 0).nonzero()[:, 0] for labels in (sets.anchor_labels, sets.contrast_labels))
    members = ContrastSets(
        sets.anchors[own], sets.anchor_labels[own], sets.contrast[rest], sets.contrast_labels[rest], None, None
    )
    if sets.anchor_probs is None or sets.contrast_probs is None:
        return members
    return members._replace(anchor_probs=sets.anchor_probs[own], contrast_probs=sets.contrast_probs[rest])


def _settings(temperature: float, denominator: Denominator, detach_contrast: bool) -> ContrastSettings:
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if denominator not in DENOMINATORS:
        raise ValueError(f'denominator must be "negatives" or "pair", got {denominator!r}')
    return ContrastSettings(float(temperature), denominator == "pair", detach_contrast)


def _choose(sets: ContrastSets, backend: Backend, world: int) -> Backend:
    """The backend to use; a request that cannot be met is refused with the reason."""
    if backend not in BACKENDS:
        raise ValueError(f'backend must be "auto", "eager", "chunked" or "triton", got {backend!r}')
    if backend == "triton" and (obstacle := _triton_obstacle(sets)):
        raise ValueError(f'backend "triton" cannot be used: {obstacle}; use backend="auto" or "chunked"')
    if backend == "eager" and world > 1:
        raise ValueError('backend "eager" sees one process only; across processes use "auto", "chunked" or "triton"')
    if backend != "auto":
        return backend
    if sets.anchors.is_cuda and sets.anchors.shape[1] <= LONGEST_TRITON_ROW and not _triton_obstacle(sets):
        return "triton" if _builds(sets.anchors.device, sets.anchors.dtype, sets.contrast.dtype) else "chunked"
    dense = world == 1 and len(sets.anchors) * (len(sets.anchors) + len(sets.contrast)) <= DENSE_ON_CPU
    return "eager" if dense else "chunked"


def _triton_obstacle(sets: ContrastSets) -> str:
    """Why Triton cannot be used for these tensors, or nothing; found out without importing it."""
    if not has_triton():
        return "Triton is not installed"
    if torch.version.hip is not None:
        return "its kernels are for NVIDIA devices"
    if torch.float64 in (sets.anchors.dtype, sets.contrast.dtype):
        return "its kernels compute in float32 and the features are float64"
    if not all(x is None or runs_triton(x) for x in sets):
        return f"it needs CUDA tensors and the anchors are on {sets.anchors.device}"
    return ""


@cache
def _builds(device: torch.device, dtype: torch.dtype, teacher_dtype: torch.dtype) -> bool:
    """Whether Triton can build the kernels; tried on two classes of a few rows."""

    @torch.enable_grad()
    def both_passes() -> None:
        rows = torch.eye(4, 32, device=device, dtype=dtype, requires_grad=True)
        labels, probs = torch.arange(4, device=device) // 2, torch.ones(4, 3, device=device)
        sets = ContrastSets(rows, labels, rows.detach().to(teacher_dtype), labels, probs, probs)
        streamed_loss(Plan(_streamed_backend("triton"), _settings(0.07, "negatives", False), None, 1), sets).backward()

    return builds(both_passes, "pixels are contrasted without kernels")


@cache
def _streamed_backend(backend: Backend) -> StreamedBackend:
    if backend == "triton":
        from incseg.losses.contrastive import triton_launch  # noqa: PLC0415 - Triton is only imported when it is used

        return triton_launch
    return chunked


@lru_cache(maxsize=256)  # a training asks for the same shapes again and again
def _check(
    anchors: torch.Size,
    anchor_labels: torch.Size,
    teacher: torch.Size,
    teacher_labels: torch.Size,
    anchor_probs: torch.Size | None,
    teacher_probs: torch.Size | None,
) -> None:
    """Refuse shapes that do not belong together, saying which."""
    if len(anchors) != 2 or len(teacher) != 2 or anchors[1] != teacher[1]:
        raise ValueError(
            f"anchors and teacher must be (N, D) and (M, D) with one D: got {tuple(anchors)} and {tuple(teacher)}"
        )
    for name, labels, features in (("anchor", anchor_labels, anchors), ("teacher", teacher_labels, teacher)):
        if labels != features[:1]:
            raise ValueError(f"{name}_labels must have one label per row: got {tuple(labels)} for {features[0]}")
    if (anchor_probs is None) != (teacher_probs is None):
        raise ValueError("give anchor_probs and teacher_probs together (UCD), or neither (CD)")
    if anchor_probs is not None and teacher_probs is not None:
        if anchor_probs[:1] != anchors[:1] or teacher_probs[:1] != teacher[:1]:
            raise ValueError("anchor_probs and teacher_probs must have one row per feature")
        if anchor_probs[1:] != teacher_probs[1:] or len(anchor_probs) != 2:
            raise ValueError(
                "anchor_probs and teacher_probs must be (N, C) and (M, C) with one C: "
                f"got {tuple(anchor_probs)} and {tuple(teacher_probs)}"
            )
