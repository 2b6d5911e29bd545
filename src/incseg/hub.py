"""Models on the Hugging Face Hub: ``hf://user/name``, or ``hf://user/name@revision``.

Only such an address uses the network: a path never does. Nothing but tensors and descriptions is fetched, and a model
is read from its files as any other, checksum included.
"""

import re
from pathlib import Path

from incseg.errors import IncompleteError, InputError

ADDRESS = re.compile(r"hf:/{1,2}([^/@]+/[^/@]+)(?:@([\w./-]+))?")  # as a path, // becomes /
FETCHED = ["*.safetensors", "config.json", "README.md"]


def is_address(path: str | Path) -> bool:
    """Whether a person means the Hub, and not a file here."""
    return Path(path).as_posix().startswith("hf:/")


def fetched(path: Path) -> Path:
    """The folder into which a model on the Hub was downloaded; any other path as it is."""
    if not is_address(path):
        return path
    found = ADDRESS.fullmatch(path.as_posix())
    if found is None:
        raise InputError(
            f"'{path.as_posix()}' is no model on the Hub: write hf://user/name or hf://user/name@revision."
        )
    import huggingface_hub  # noqa: PLC0415 - takes a while, and most models are files
    from huggingface_hub import errors  # noqa: PLC0415

    repository, revision = found[1], found[2]
    try:
        return Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=FETCHED))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        at = f" with the revision '{revision}'" if revision else ""
        raise InputError(
            f"the Hub has no model '{repository}'{at} that you may read ({_first_line(error)}); for a private one log "
            "in with: hf auth login."
        ) from None
    except Exception as error:  # of the Hub, of its HTTP library, of the machine
        raise IncompleteError(f"'{repository}' could not be fetched from the Hub: {_first_line(error)}") from None


def name_on_hub(folder: Path) -> str | None:
    """The name of the repository that a folder was fetched from; None for any other folder."""
    found = re.fullmatch(r"models--.+?--(.+)", folder.parent.parent.name) if folder.parent.name == "snapshots" else None
    return found[1] if found else None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
