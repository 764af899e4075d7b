"""Folders of pictures on the command line: read as data, and written as pairs."""

__all__ = ["check_folder_for_pictures", "opened", "points_at", "write_pictures"]

import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from torchspot.data.arrays import Rows
from torchspot.data.images import PictureFolder, image_files
from torchspot.data.parquet import parquet_files
from torchspot.errors import InvalidArgument
from torchspot.plots import plot_sheet, to_bytes, unit_range
from torchspot.types import Samples, Shape

_ON_SHEET = 64


def opened(sources: Sequence[Path], size: int | None, skip_corrupt: bool) -> tuple[list[Path | Rows], list[str]]:
    """The data sets: folders of pictures read at one size, anything else as it is; and what is to be said of them."""
    if size is not None and not any(map(_of_pictures, sources)):
        raise InvalidArgument("a size is for folders of pictures, and none of the data sets is one. Leave out --size.")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data = [points_at(source, size, skip_corrupt) for source in sources]
    return data, [str(warning.message) for warning in said]


def points_at(source: Path, size: int | None, skip_corrupt: bool) -> Path | Rows:
    """A folder of pictures as rows, read at this size if one is given; anything else as it is."""
    if not _of_pictures(source):
        return source
    return Rows(PictureFolder(source, size, skip_corrupt).read(), name=str(source), scale=1 / 255)


def _of_pictures(source: Path) -> bool:
    return source.is_dir() and not parquet_files(source) and bool(image_files(source))


def check_folder_for_pictures(out: Path, shapes: Sequence[Shape]) -> None:
    """Whether pictures of these shapes can be written there: a new folder, or an empty one."""
    if any(shape[0] not in (1, 3) for shape in shapes):
        raise InvalidArgument(f"pictures have one or three channels, and these {shapes}. Give a file: --out pairs.npz.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidArgument(f"{out} is there already. Give a new folder for the pictures with --out.")


def write_pictures(out: Path, samples: Samples, numbers: Sequence[int] | None = None) -> None:
    """One folder a marginal, 1/, 2/, … (or of these numbers), in which pictures of the same name belong together.

    A contact sheet lies beside. The folder is there as a whole or not at all.
    """
    samples = unit_range(samples)
    out.parent.mkdir(parents=True, exist_ok=True)
    digits = len(str(len(samples[0]) - 1))
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as place:
        new = Path(place) / "pictures"
        for k, x in zip(numbers or range(1, len(samples) + 1), samples, strict=True):
            (new / str(k)).mkdir(parents=True)
            for row, picture in enumerate(to_bytes(x).permute(0, 2, 3, 1).numpy()):
                image = Image.fromarray(picture if x.shape[1] > 1 else picture[..., 0])
                image.save(new / str(k) / f"{row:0{digits}}.png")
        plot_sheet(tuple(x[:_ON_SHEET] for x in samples), new / "sheet.png")
        if out.exists():
            out.rmdir()
        shutil.move(new, out)
