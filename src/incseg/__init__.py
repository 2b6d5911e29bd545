"""incseg: class-incremental semantic segmentation without the old data and without forgetting."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line must answer at once; PyTorch is loaded where it is needed
    from incseg.console import Console
    from incseg.deploy.model import Model

__version__ = "0.1.0"
__all__ = ["__version__", "extend", "load"]


def load(path: str | Path, step: int | None = None, device: str = "auto") -> "Model":
    """Load a model: ``incseg.load("runs/mine").predict("image.jpg").save("out/image")``.

    Args:
        path: the folder of a run (its last finished step), the ``step-K`` folder of a run, a ``.safetensors`` file, or
            ``hf://user/name`` for a model on the Hugging Face Hub, the only one that is fetched over the network.
        step: which step of a run, instead of the last.
        device: "cpu", "cuda", "cuda:1", "mps", or "auto" for a GPU if there is one.
    """
    from incseg.deploy.model import open_model

    return open_model(path, step, device)


def extend(
    model: "Model | str | Path",
    data: str | Path,
    out: str | Path,
    *,
    method: str | None = None,
    validation: str | Path | None = None,
    replay: str | Path | None = None,
    memory: int | None = None,
    seed: int = 42,
    settings: Mapping[str, Any] | None = None,
    console: "Console | None" = None,
) -> "Model":
    """Teach a model the classes of a folder, keeping those it knows. Interrupted, the same call resumes.

    Args:
        model: a model, or where one lies; it stays as it is.
        data: a folder with ``images/``, ``masks/`` and ``classes.txt`` of the new classes only.
        out: the folder of the run, which can be loaded as a model; a ``MODEL_CARD.md`` in it describes the result.
        method: a method or a sum of methods; see ``incseg list methods``. None: in closed form if the model carries
            statistics of its training images, else trained with ``mib+ucd`` (with ``ucd`` if its head is sigmoid,
            ``ssul`` if it is branched).
        validation: a folder of the same layout on which to measure old or new classes, matched by name.
        replay: a folder of the same layout with old images and their labels, if some are left. A training takes half of
            every batch from it; in closed form they are needed only for a model that carries no statistics.
        memory: at most so many of these old images, balanced by class.
        seed: every random choice follows from it.
        settings: any others, as in ``{"optim": {"epochs": 20}}``; see ``incseg list settings``.
        console: where progress is shown, the terminal by default.
    """
    from lightning.fabric.utilities.rank_zero import rank_zero_only

    from incseg.console import Console
    from incseg.deploy.model_card import write_card
    from incseg.deploy.statistics import choose_method, from_old_images
    from incseg.engine import extend as engine
    from incseg.engine.admission import check_memory

    given = load(model, device="cpu") if isinstance(model, (str, Path)) else model
    console = console or Console()
    old = None if replay is None else Path(replay)
    check_memory(memory, old)
    if method is None:
        method, reason = choose_method(given, has_old_images=old is not None)
        rank_zero_only(console.mention)(reason)
    if old is not None and engine.solves(method, settings or {}):
        given, old, memory = from_old_images(given, old, memory, console), None, None
    engine.extend(
        given,
        Path(data),
        Path(out),
        method=method,
        validation=None if validation is None else Path(validation),
        replay=old,
        memory=memory,
        seed=seed,
        settings=settings or {},
        console=console,
    )
    extended = load(out, device=str(given.device))
    rank_zero_only(write_card)(extended, Path(out), engine.before_and_after(Path(out)))
    return extended
