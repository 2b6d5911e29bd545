"""What the process does first whose copies are the runs of a study; see ``children.py``.

It ends with the command that it belongs to. Requests to stop are for the runs: one that comes to a copy before it
listens waits there until it does, which an ignored one would not. Python gives that process nothing to do but import,
so it is importing this that does it; in any other process, which may import all there is, this does nothing.
"""

import os
import signal

from incseg.study.children import COPIED_FOR, stop_with_parent
from incseg.system_signals import REQUESTS_TO_STOP

if os.environ.get(COPIED_FOR) == str(os.getppid()):
    stop_with_parent(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS_TO_STOP)
