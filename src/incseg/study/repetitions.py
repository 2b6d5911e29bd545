"""The seeds of repeated runs."""

from incseg.config import RunConfig
from incseg.errors import InputError


def seeds_from(number: int) -> range:
    """The seeds of that many repetitions: the default one, and those that follow it."""
    if number < 1:
        raise InputError(f"--seeds {number} is not a number of repetitions: give 1 or more.")
    first = RunConfig.model_fields["seed"].default
    return range(first, first + number)
