"""The signals by which a system asks a process to stop: not every system has all of them."""

import signal


def known_signals(*names: str) -> list[signal.Signals]:
    """Those of these signals that this system has."""
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


REQUESTS_TO_STOP = known_signals("SIGINT", "SIGTERM", "SIGUSR1")
