"""The whole state of a run in one file, so that a run ended at any moment goes on to the same result."""

__all__ = ["KIND", "VERSION", "checkpoint_file", "load_checkpoint", "save_checkpoint"]

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchspot import storage
from torchspot.errors import CorruptFile, InvalidArgument
from torchspot.training.loop import Training

KIND, VERSION = "checkpoint", 3


def checkpoint_file(folder: Path) -> Path:
    """Where the checkpoint of a run in this folder is."""
    return folder / "checkpoint.safetensors"


def save_checkpoint(folder: Path, training: Training, companions: Sequence[Any] = ()) -> None:
    """Writes the training and whatever goes with it (callbacks that remember something), atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    remembering = {name: c.state_dict() for name, c in _named(companions) if hasattr(c, "state_dict")}
    state = {"training": training.state_dict(), "companions": remembering}
    storage.write(checkpoint_file(folder), KIND, VERSION, state)


def load_checkpoint(folder: Path, training: Training, companions: Sequence[Any] = ()) -> bool:
    """Puts everything back as it was saved; False if the folder has no checkpoint yet."""
    file = checkpoint_file(folder)
    if not file.exists():
        return False
    state = storage.read(file, KIND, VERSION)
    try:
        for name, companion in _named(companions):
            if name in state["companions"]:
                companion.load_state_dict(state["companions"][name])
        training.load_state_dict(state["training"])
    except InvalidArgument:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CorruptFile(
            f"{file} does not fit this run ({error}). Resume with the same data, networks and options it began with."
        ) from error
    return True


def _named(companions: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """What a companion's state is filed under: callbacks may come and go when a run is resumed."""
    seen: Counter[str] = Counter()
    for companion in companions:
        kind = type(companion).__name__
        yield f"{kind} {seen[kind]}", companion
        seen[kind] += 1
