"""Folders of pictures on the command line: read as data, and written as pairs."""

__all__ = ["check_folder_for_pictures", "opened", "write_pictures"]

import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from torchspot.data.images import PictureFolder, image_files
from torchspot.data.sources import as_sampler
from torchspot.errors import InvalidArgument
from torchspot.plots import plot_sheet, to_bytes
from torchspot.types import Sampler, Samples

_ON_SHEET = 64


def opened(sources: Sequence[Path], size: int | None, skip_corrupt: bool) -> tuple[list[Path | Sampler], list[str]]:
    """The data sets: folders of pictures read at one size, anything else as it is; and what is to be said of them."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data = [_opened(source, size, skip_corrupt) for source in sources]
    return data, [str(warning.message) for warning in said]


def _opened(source: Path, size: int | None, skip_corrupt: bool) -> Path | Sampler:
    if source.is_dir() and not any(source.glob("*.parquet")) and image_files(source):
        return as_sampler(PictureFolder(source, size, skip_corrupt), name=str(source))
    if size is not None:
        raise InvalidArgument(f"--size is for folders of pictures, and {source} is none. Leave it out.")
    return source


def check_folder_for_pictures(out: Path) -> None:
    """Whether pairs can be written there: a new folder, or an empty one."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidArgument(f"{out} is there already. Give a new folder for the pictures with --out.")


def write_pictures(out: Path, samples: Samples) -> None:
    """One folder a marginal, 1/, 2/, …, in which pictures of the same name belong together; and a contact sheet.

    Values are in [0, 1]. The folder is there as a whole or not at all.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    digits = len(str(len(samples[0]) - 1))
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as place:
        new = Path(place) / "pictures"
        for k, x in enumerate(samples, start=1):
            (new / str(k)).mkdir(parents=True)
            for row, picture in enumerate(to_bytes(x).permute(0, 2, 3, 1).numpy()):
                image = Image.fromarray(picture if x.shape[1] > 1 else picture[..., 0])
                image.save(new / str(k) / f"{row:0{digits}}.png")
        plot_sheet(tuple(x[:_ON_SHEET] for x in samples), new / "sheet.png")
        if out.exists():
            out.rmdir()
        shutil.move(new, out)
