"""`python -m poly`."""

import sys

from poly.cli import main

sys.exit(main())
