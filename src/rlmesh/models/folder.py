"""What a Hugging Face model folder says about itself, read without transformers."""

from __future__ import annotations

import json
from pathlib import Path


def eos_token_ids(model_path: str | Path) -> frozenset[int]:
    """Every token that ends a sequence: config.json and generation_config.json may each name one or several."""
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = Path(model_path) / name
        ids = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        found.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(found)
