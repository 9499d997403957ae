"""The admin listener: health, metrics, the ledger."""
