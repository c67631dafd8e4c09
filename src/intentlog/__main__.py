"""`python -m intentlog`: the command line."""

import sys

from intentlog.cli import main

sys.exit(main())
