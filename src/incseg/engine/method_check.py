"""What refuses the method in a run's settings, by the modules that declare it, which import PyTorch."""

from incseg import methods
from incseg.config import RunConfig


def check_method(config: RunConfig) -> None:
    """Refuse a method, or settings of it, that cannot be, or not with this kind of head."""
    methods.require_head(methods.parse(config.method, config.settings), config.model.head)
