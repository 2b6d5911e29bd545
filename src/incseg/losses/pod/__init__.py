"""Local POD, the distance of feature maps pooled in strips: plain PyTorch, and kernels that read every map once."""

from incseg.losses.pod.pooling import local_pod, pod_distance

__all__ = ["local_pod", "pod_distance"]
