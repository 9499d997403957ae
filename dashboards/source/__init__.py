"""Where the dashboards are written: `python -m dashboards.source` makes the JSON files beside it from here."""
