"""Finding what a package offers: its modules register themselves when imported."""

import importlib
import pkgutil


def import_modules(package: str) -> None:
    """Import every module of a package; a file dropped into it is thereby found, without a list to keep."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
