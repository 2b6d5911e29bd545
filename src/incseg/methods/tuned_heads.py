"""NeST: new heads are formed from the old ones and tuned on the step's images before the step is trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from incseg import losses
from incseg.batch import Outputs, in_float32
from incseg.errors import InputError
from incseg.methods.finetune import CrossEntropy
from incseg.methods.parsing import register_method
from incseg.methods.part import Context, Count, Part, Weight, default
from incseg.methods.pixels import labels_on_grid
from incseg.methods.unbiased import BalancedInitialisation
from incseg.models import Segmenter

STRIDE = 4  # pixels of the image per pixel on which importance is measured, as in the authors' code


class OldHeads(NamedTuple):
    """The classifier of the teacher: (O, D) weights and (O,) biases, background first."""

    weights: Tensor
    biases: Tensor

    @classmethod
    def of(cls, teacher: Segmenter) -> "OldHeads":
        """All its heads, joined."""
        heads = [head for head in teacher.trained_head.heads if isinstance(head, nn.Conv2d)]
        biases = [head.bias for head in heads if head.bias is not None]
        return cls(torch.cat([head.weight.flatten(1) for head in heads]), torch.cat(biases))


class HeadTuning(nn.Module):
    """What is tuned: how the old heads are combined for each new class, its bias, and a rescaling of background."""

    def __init__(self, old: OldHeads, importance: Tensor):
        super().__init__()
        self.old = old
        self.matrices = nn.Parameter(importance.clone())
        self.vectors = nn.Parameter(importance.sum(dim=2).softmax(dim=1))
        self.biases = nn.Parameter(old.biases[:1].repeat(len(importance)))
        self.scales = nn.Parameter(torch.ones_like(old.weights[:1]))

    def new_weights(self) -> Tensor:
        """(C, D) of the new classes."""
        return losses.combined_heads(self.matrices, self.vectors, self.old.weights)

    def background_weights(self) -> Tensor:
        """(1, D)."""
        return self.scales * self.old.weights[:1]

    def forward(self, embedding: Tensor) -> Tensor:
        """(B, D, h, w) → (B, O + C, h, w) logits of old and new classes."""
        weights = torch.cat([self.background_weights(), self.old.weights[1:], self.new_weights()])
        return F.conv2d(embedding, weights[:, :, None, None], torch.cat([self.old.biases, self.biases]))

    @torch.no_grad()
    def write_into(self, student: Segmenter) -> None:
        """Set the newest head and background, new classes as long as old ones on average, background as it was."""
        heads, (weights, _) = student.trained_head.heads, self.old
        new = losses.with_mean_norm(self.new_weights(), weights)
        heads[-1].get_parameter("weight").copy_(new[:, :, None, None])
        heads[-1].get_parameter("bias").copy_(self.biases)
        background = losses.with_mean_norm(self.background_weights(), weights[:1])
        heads[0].get_parameter("weight")[:1].copy_(background[:, :, None, None])


@dataclass
class TunedInitialisation(BalancedInitialisation):
    """New classes begin as combinations of all old ones, not of background alone.

    One pass over the step's images measures which channels of which old classes speak for a new class. That is where
    the combinations begin; some more passes tune them, on the teacher's embeddings, by unbiased cross-entropy.
    """

    needs_new_classes: ClassVar[bool] = True
    epochs: int = 5
    rate: float = 1.0

    def check_network(self, student: Segmenter) -> None:
        """Refuse heads that look at more than a pixel: their channels have no sign of their own."""
        if student.architecture.classifier_kernel != 1:
            raise InputError(
                f"'{self.origin}' combines heads of 1×1 convolutions, and this network has "
                f"{student.architecture.classifier_kernel}×{student.architecture.classifier_kernel}: leave it out."
            )

    def begin(self, context: Context) -> None:
        """Form and tune the new heads; step 0 has no old ones."""
        if context.teacher is None:
            return
        old = OldHeads.of(context.teacher)
        importance, batches = _importance(context, context.teacher, old)
        tuning, iterations = HeadTuning(old, importance), batches * self.epochs
        context.say(f"step {context.step.index}: the new heads are tuned first, for {iterations} iterations")
        self._tune(context, context.teacher, tuning, iterations)
        tuning.write_into(context.student)

    def _tune(self, context: Context, teacher: Segmenter, tuning: HeadTuning, iterations: int) -> None:
        optim, step = context.optim, context.step
        sgd = torch.optim.SGD(
            tuning.parameters(),
            momentum=optim.momentum,
            weight_decay=optim.weight_decay,
            nesterov=optim.momentum > 0,
        )
        for iteration, batch in enumerate(context.batches(self.epochs)):
            sgd.param_groups[0]["lr"] = self.rate * optim.learning_rate_at(step.index, iteration / iterations)
            outputs = _outputs(teacher, batch.images)
            scores = outputs._replace(logits=tuning(outputs.embedding)).scores_for(batch.labels)
            loss = losses.unbiased_cross_entropy(
                losses.enlarge(scores, fused=context.fused),
                batch.labels,
                old_classes=step.old_classes,
                learn_labelled_old=bool(step.labelled_old),
            )
            sgd.zero_grad()
            loss.backward()
            for parameter in tuning.parameters():
                assert parameter.grad is not None
                parameter.grad = losses.sum_over_processes(parameter.grad) / losses.process_count()
            sgd.step()


@torch.no_grad()
def _outputs(teacher: Segmenter, images: Tensor) -> Outputs:
    return in_float32(teacher(images))


@torch.no_grad()
def _importance(context: Context, teacher: Segmenter, old: OldHeads) -> tuple[Tensor, int]:
    """(C, O, D) the mean importance of the old channels for each new class, and the batches of an epoch.

    A class without a pixel has none: it begins at 0.
    """
    new = context.step.new
    total, counts = old.weights.new_zeros(len(new), *old.weights.shape), old.weights.new_zeros(len(new))
    batches = 0
    for batch in context.batches(1):
        batches += 1
        outputs = _outputs(teacher, batch.images)
        height, width = (-(-side // STRIDE) for side in batch.labels.shape[-2:])
        labels = labels_on_grid(batch.labels, (height, width))
        maps = [F.interpolate(m, (height, width), mode="bilinear") for m in (outputs.embedding, outputs.logits)]
        for index, channel in enumerate(new):
            features, logits = (m.movedim(1, -1)[labels == channel] for m in maps)
            total[index] += losses.channel_importance(features, logits.softmax(dim=1), old.weights)
            counts[index] += len(features)
    total, counts = losses.sum_over_processes(total), losses.sum_over_processes(counts)
    return total / counts.clamp_min(1)[:, None, None], batches


@register_method(
    "nest",
    "form new heads from all old ones and tune them before each step; composes, as in mib+nest",
    paper="Xie et al., Early Preparation Pays Off: New Classifier Pre-tuning for Class Incremental Semantic "
    "Segmentation, ECCV 2024",
)
def nest(epochs: Count = 5, rate: Weight = 1.0) -> Sequence[Part]:
    """The objective of what it is summed with, cross-entropy if alone.

    ``epochs`` of tuning before each step, at ``rate`` times the learning rate of the step.
    """
    return [default(CrossEntropy()), TunedInitialisation(epochs, rate)]
