"""What refuses the names in a run's settings, by the modules that declare them, which import PyTorch."""

from incseg import methods
from incseg.config import RunConfig
from incseg.models.segmenter import check_network


def check_names(config: RunConfig) -> None:
    """Refuse a method or a network that cannot be."""
    check_method(config)
    check_network(config.model)


def check_method(config: RunConfig) -> None:
    """Refuse a method, or settings of it, that cannot be, or not with this kind of head."""
    methods.require_head(methods.parse(config.method, config.settings), config.model.head)
