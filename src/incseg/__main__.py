"""``python -m incseg``."""

import sys

from incseg.cli import main

sys.exit(main())
