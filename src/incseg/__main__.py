"""``python -m incseg``."""

import sys
from pathlib import Path

import incseg

# Python looks for modules in the working folder first if it is started with -m; what lies there may come from anyone.
if not sys.flags.safe_path and Path(sys.path[0] or ".").resolve() != Path(incseg.__file__).resolve().parents[1]:
    del sys.path[0]

from incseg.cli import main

sys.exit(main())
