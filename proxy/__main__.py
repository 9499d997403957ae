"""`python -m proxy` is `safepost`."""

import sys

from proxy.cli import main

sys.exit(main())
