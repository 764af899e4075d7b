"""Plans as one file: what several have in common, then the network of each."""

__all__ = ["KIND", "VERSION", "plan_file", "save"]

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchspot import costs, latents, storage
from torchspot.data.arrays import HeldOut
from torchspot.networks.specification import to_spec

KIND, VERSION = "pushforward plan", 2


def plan_file(path: Path) -> Path:
    """The file itself, or where it is in a folder."""
    return path if path.suffix == ".safetensors" else path / "plan.safetensors"


def save(path: Path, plans: Sequence[Any]) -> Path:
    """Writes push-forward plans of one problem, atomically."""
    file, first = plan_file(path), plans[0]
    state = {
        "cost": costs.to_spec(first.cost),
        "latent": latents.to_spec(first.latent),
        "generator": to_spec(first.generator.generator),
        "dtype": str(first.generator.units.dtype).removeprefix("torch."),
        "support": [{"rows": s.rows, "reach": s.reach} for s in getattr(first, "support", ())],
        "held_out": [_held_out_state(rows) for rows in first.held_out],
        "runs": [_run_state(plan) for plan in plans],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    storage.write(file, KIND, VERSION, state)
    return file


def _run_state(plan: Any) -> dict[str, Any]:
    units, weights = plan.generator.units, plan.generator.generator.state_dict()
    return {"means": list(units.means), "scale": units.scale, "weights": weights, "facts": plan.facts}


def _held_out_state(rows: HeldOut | None) -> dict[str, Any] | None:
    return None if rows is None else {"fingerprint": rows.fingerprint, "rows": torch.from_numpy(np.array(rows.rows))}
