"""Settings of the model types whose sizes depend on one another in ways of their own."""

from __future__ import annotations

from typing import Any

OVERRIDES: dict[str, dict[str, Any]] = {}
