"""What the process does first whose copies are the runs of a study; see ``children.py``.

It ends with the command that it belongs to. Requests to stop are for the runs: one that comes to a copy before it
listens waits there until it does, which an ignored one would not.
"""

import signal

from incseg.study.children import stop_with_parent
from incseg.system_signals import REQUESTS_TO_STOP

stop_with_parent(signal.SIGKILL)
signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS_TO_STOP)
