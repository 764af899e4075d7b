"""A folder of pictures as an array of bytes."""

__all__ = ["image_files", "read_images"]

from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from torchspot.errors import CorruptFile, InvalidArgument

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}


def image_files(folder: Path) -> list[Path]:
    """The picture files of a folder, by name."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES)


def read_images(folder: Path) -> UInt8[np.ndarray, "rows channels height width"]:
    """All pictures of a folder; grey ones have one channel, others three. They must agree in size."""
    files = image_files(folder)
    pictures = [_read(file) for file in files]
    for file, picture in zip(files, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            raise InvalidArgument(
                f"{file.name} has shape {picture.shape} and {files[0].name} has {pictures[0].shape} "
                "(channels, height, width). Bring all pictures of a folder to one size and one mode first."
            )
    return np.stack(pictures)


def _read(file: Path) -> UInt8[np.ndarray, "channels height width"]:
    try:
        with Image.open(file) as image:
            pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    except (UnidentifiedImageError, OSError) as error:
        raise CorruptFile(f"{file} is not a readable picture: {error}. Remove or replace it.") from error
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
