"""Classes painted over images, and the legend that names them, in figures of matplotlib."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from incseg.colours import Colours, palette
from incseg.fonts import write_in
from incseg.protocol import BACKGROUND

OPACITY = 0.6  # of the classes over the image


def painted(image: NDArray[Any], mask: NDArray[Any], colours: Colours) -> NDArray[np.float64]:
    """(H, W, 3) bytes under (H, W) ids → (H, W, 3) in 0 … 1; void is pale, background is left as it is."""
    plain = image / 255
    over: NDArray[np.float64] = (1 - OPACITY) * plain + OPACITY * palette(colours)[mask] / 255
    return np.where((mask != BACKGROUND)[..., None], over, plain)


def add_legend(figure: Figure, names: Mapping[int, str], colours: Colours) -> None:
    """Colours and names by id; a name that no installed font can draw is replaced by its id."""
    patches = [Patch(facecolor=palette(colours)[id_] / 255, edgecolor="grey", label=str(id_)) for id_ in names]
    legend = figure.legend(handles=patches, loc="outside lower center", ncols=8, frameon=False, fontsize=7)
    for text, (id_, name) in zip(legend.get_texts(), names.items(), strict=True):
        write_in(text, name, f"class {id_}")
