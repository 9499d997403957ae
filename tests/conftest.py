"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no fault of the product's: what a property takes is not judged, only what it says.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
