"""Write the dashboards' JSON files. `--check` writes nothing and exits 1 if a file is not as it would be."""

from __future__ import annotations

import sys

from dashboards.source.files import stale, write

if "--check" in sys.argv[1:]:
    sys.exit("\n".join(stale()) or None)
write()
