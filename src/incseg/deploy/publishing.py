"""A model as a folder for others: ``save_pretrained``, ``push_to_hub`` and ``incseg push``."""

import re
import tempfile
from pathlib import Path

from incseg.deploy.model import Model
from incseg.deploy.model_card import model_card
from incseg.errors import IncompleteError, InputError
from incseg.files import make_folder, replacing
from incseg.run_folder import MODEL_FILE, statistics_file

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def save_pretrained(model: Model, folder: Path, name: str = "", license: str | None = None) -> Path:
    """Write the model, its statistics if it has any, and its card as README.md, which is what the Hub shows."""
    make_folder(folder)
    model.save(folder / MODEL_FILE)
    place = Path(f"hf://{name}") if name else folder
    with replacing(folder / "README.md") as temporary:
        temporary.write_text(model_card(model, place, license=license), encoding="utf-8")
    return folder


def push_to_hub(model: Model, repository: str, *, private: bool = False, license: str | None = None) -> str:
    """Upload a model; returns where it can be seen. The repository is made if there is none."""
    if not REPOSITORY.fullmatch(repository):
        raise InputError(f"'{repository}' is no repository of the Hub: write user/name.")
    import huggingface_hub  # noqa: PLC0415 - takes a while

    hub = huggingface_hub.HfApi(library_name="incseg")
    with tempfile.TemporaryDirectory() as place:
        folder = save_pretrained(model, Path(place) / "model", repository, license)
        try:
            place_there = hub.create_repo(repository, private=private, exist_ok=True)
            # Statistics of the model that was there before would stay beside this one if it has none.
            earlier = statistics_file(folder / MODEL_FILE).name
            hub.upload_folder(
                repo_id=repository, folder_path=folder, commit_message="Model of incseg", delete_patterns=[earlier]
            )
        except Exception as error:  # of the Hub, of its HTTP library, of the machine
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise IncompleteError(
                f"the model could not be pushed to '{repository}' ({reason}); log in with: hf auth login."
            ) from None
    return str(place_there)
