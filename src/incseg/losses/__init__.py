"""The mathematics: pure functions of tensors, free of engine, data and configuration."""

from incseg.losses.coarse import enlarge
from incseg.losses.contrastive import (
    contrastive_distillation,
    contrastive_distillation_global,
    share_with_positive,
)
from incseg.losses.distillation import (
    decomposed_logits,
    feature_distillation,
    label_guided_distillation,
    merge_new_into_background,
    output_distillation,
    sigmoid_distillation,
    unbiased_distillation,
)
from incseg.losses.feature_maps import channel_cube_distance, spatial_cube_distance, weighted_feature_distillation
from incseg.losses.importance import min_max, weighted_distance
from incseg.losses.mixture import Mixture, fit_mixture, mixture_update
from incseg.losses.new_heads import channel_importance, combined_heads, with_mean_norm
from incseg.losses.pod import local_pod, pod_distance
from incseg.losses.processes import (
    gathered_over_processes,
    max_over_processes,
    process_count,
    process_rank,
    sum_over_processes,
)
from incseg.losses.prototypes import attraction, class_means, prototype_matching, repulsion, sparsity
from incseg.losses.remembered_features import (
    SURE,
    FeatureModel,
    class_sums,
    drifted,
    feature_model,
    feature_sums,
    hesitation,
    made_up_features,
    masked_distillation,
    similarity_separation,
    with_replayed_negatives,
)
from incseg.losses.segmentation import (
    balanced_cross_entropy,
    binary_cross_entropy,
    class_counts,
    cross_entropy,
    cross_entropy_per_image,
    unbiased_cross_entropy,
)
from incseg.losses.teacher_labels import (
    BINS,
    class_histogram,
    extended_labels,
    extended_map,
    median_of_histogram,
    normalised_entropy,
    prediction,
    prediction_with_entropy,
    released_entropy,
    released_median,
)
from incseg.upsampling import CoarseLogits

__all__ = [
    "BINS",
    "SURE",
    "CoarseLogits",
    "FeatureModel",
    "Mixture",
    "attraction",
    "balanced_cross_entropy",
    "binary_cross_entropy",
    "channel_cube_distance",
    "channel_importance",
    "class_counts",
    "class_histogram",
    "class_means",
    "class_sums",
    "combined_heads",
    "contrastive_distillation",
    "contrastive_distillation_global",
    "cross_entropy",
    "cross_entropy_per_image",
    "decomposed_logits",
    "drifted",
    "enlarge",
    "extended_labels",
    "extended_map",
    "feature_distillation",
    "feature_model",
    "feature_sums",
    "fit_mixture",
    "gathered_over_processes",
    "hesitation",
    "label_guided_distillation",
    "local_pod",
    "made_up_features",
    "masked_distillation",
    "max_over_processes",
    "median_of_histogram",
    "merge_new_into_background",
    "min_max",
    "mixture_update",
    "normalised_entropy",
    "output_distillation",
    "pod_distance",
    "prediction",
    "prediction_with_entropy",
    "process_count",
    "process_rank",
    "prototype_matching",
    "released_entropy",
    "released_median",
    "repulsion",
    "share_with_positive",
    "sigmoid_distillation",
    "similarity_separation",
    "sparsity",
    "spatial_cube_distance",
    "sum_over_processes",
    "unbiased_cross_entropy",
    "unbiased_distillation",
    "weighted_distance",
    "weighted_feature_distillation",
    "with_mean_norm",
    "with_replayed_negatives",
]
