"""When several processes train together: what only one of them should do."""

from collections.abc import Callable

import torch.distributed as dist

from incseg.errors import InputError


def done_by_one(do: Callable[[], None]) -> None:
    """Have the first process do something while the others wait; what it refuses, all refuse in the same words."""
    if not (dist.is_available() and dist.is_initialized()):
        do()
        return
    refusal: list[str | None] = [None]
    if dist.get_rank() == 0:
        try:
            do()
        except InputError as error:
            refusal = [str(error)]
    dist.broadcast_object_list(refusal, src=0)
    if refusal[0] is not None:
        raise InputError(refusal[0])
