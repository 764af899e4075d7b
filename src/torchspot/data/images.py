"""A folder of pictures as an array of bytes."""

__all__ = ["PictureFolder", "image_files", "read_images"]

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from torchspot.errors import CorruptFile, InvalidArgument

Picture = UInt8[np.ndarray, "channels height width"]

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
_NAMED = 5
"""So many bad files are named; of more, the number is said."""


@dataclass(frozen=True)
class PictureFolder:
    """The pictures of a folder, brought to one size: a source of data wherever one is taken."""

    path: Path
    size: int | None = None
    """Height and width: the largest square in the middle is cut out and resized. None takes pictures as they are."""
    skip_corrupt: bool = False
    """Whether files that cannot be read are left out with a warning; if not, they are an error."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not self.path.is_dir():
            raise InvalidArgument(f"there is no folder {self.path}. Check the path.")
        if self.size is not None and not self.size >= 1:
            raise InvalidArgument(f"the size of pictures must be at least 1, and is {self.size}.")

    def read(self) -> UInt8[np.ndarray, "rows channels height width"]:
        """All of them, by name; grey if all are, else in colour."""
        return read_images(self.path, size=self.size, skip_corrupt=self.skip_corrupt)


def image_files(folder: Path) -> list[Path]:
    """The picture files of a folder, by name."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)


def read_images(
    folder: Path, *, size: int | None = None, skip_corrupt: bool = False
) -> UInt8[np.ndarray, "rows channels height width"]:
    """All pictures of a folder; one channel if all are grey, else three. Without a size they must agree in theirs."""
    files = image_files(folder)
    if not files:
        raise InvalidArgument(f"the folder {folder} holds no pictures ({', '.join(sorted(_SUFFIXES))}).")
    pictures, bad = {}, []
    for file in files:
        try:
            pictures[file] = _read(file, size)
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            bad.append((file, error))
    if bad:
        _refuse_or_warn(bad, len(files), skip_corrupt)
    if not pictures:
        raise CorruptFile(f"none of the {len(files)} pictures in {folder} can be read.")
    grey = all(picture.ndim == 2 for picture in pictures.values())
    first, shape = next((file, picture.shape[:2]) for file, picture in pictures.items())
    for file, picture in pictures.items():
        if picture.shape[:2] != shape:
            raise InvalidArgument(
                f"{file.name} is {picture.shape[1]} × {picture.shape[0]} pixels and {first.name} is {shape[1]} × "
                f"{shape[0]}. Bring all to one size: --size 64, or data.PictureFolder(path, 64)."
            )
    return np.stack([_channels_first(picture, grey) for picture in pictures.values()])


def _read(file: Path, size: int | None) -> np.ndarray:
    """(height, width) of a grey picture, (height, width, 3) of any other."""
    with Image.open(file) as image:
        turned = ImageOps.exif_transpose(image)
        if turned.mode.startswith("I;16"):
            turned = Image.fromarray((np.asarray(turned) >> 8).astype(np.uint8))
        if turned.mode in ("I", "F"):
            raise ValueError(f"its pixels are of type {turned.mode}, not bytes")
        flat = turned if turned.mode in ("L", "RGB") else turned.convert("L" if turned.mode in ("1", "LA") else "RGB")
        if size is not None:
            flat = ImageOps.fit(flat, (size, size), Image.Resampling.LANCZOS)
        return np.asarray(flat)


def _refuse_or_warn(bad: Sequence[tuple[Path, Exception]], total: int, skip: bool) -> None:
    """Names the files that cannot be read: as a warning if they are to be skipped, else as an error."""
    named = "; ".join(f"{file}: {error}" for file, error in bad[:_NAMED])
    more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    said = f"{len(bad)} of {total} files are not readable pictures ({named}{more})"
    if not skip:
        raise CorruptFile(
            f"{said}. Remove or replace them, or leave them out: --skip-corrupt, "
            "or data.PictureFolder(path, skip_corrupt=True)."
        )
    warnings.warn(f"{said}. They are left out.", stacklevel=4)


def _channels_first(picture: np.ndarray, grey: bool) -> Picture:
    if grey:
        return picture[None]
    coloured = np.repeat(picture[..., None], 3, axis=2) if picture.ndim == 2 else picture
    return np.ascontiguousarray(coloured.transpose(2, 0, 1))
