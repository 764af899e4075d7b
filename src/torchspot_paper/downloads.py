"""Fetching the public originals of the data sets, where there is internet, into the project's own plain form."""

__all__ = ["fetch"]

import io
import shutil
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from scipy.io import loadmat
from sklearn.datasets import fetch_openml

from torchspot.errors import TorchspotError
from torchspot.storage import replacing

Arrays = dict[str, np.ndarray]

_SVHN = "http://ufldl.stanford.edu/housenumbers/train_32x32.mat"
_BSDS = "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/BSR/BSR_bsds500.tgz"
_MONET = "https://efrosgans.eecs.berkeley.edu/cyclegan/datasets/monet2photo.zip"
_SHOES = "https://efrosgans.eecs.berkeley.edu/pix2pix/datasets/edges2shoes.tar.gz"
_SIZE, _EVERY = 64, 8
_TRAIN_DIGITS = {"mnist": 60_000, "usps": 7291}


def fetch(name: str, folder: Path) -> None:
    """Downloads one data set and writes it into the folder; what was there is replaced only when all is read.

    Raises:
        TorchspotError: if it cannot be reached or is not what was expected.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if name == "bsds500":
            with _downloaded(_BSDS) as file:
                write_photographs(file, folder)
            return
        arrays = _READERS[name]()
    except (OSError, ValueError, KeyError, EOFError, HTTPException, tarfile.TarError, zipfile.BadZipFile) as error:
        raise TorchspotError(f"{name} could not be fetched: {error}. Is there internet? Try again later.") from error
    with replacing(folder / f"{name}.npz") as temporary, temporary.open("wb") as out:
        np.savez(out, **arrays)  # type: ignore[arg-type]


def _openml(name: str) -> Callable[[], Arrays]:
    def read() -> Arrays:
        found = fetch_openml(data_id={"mnist": 554, "usps": 41082}[name], as_frame=False)
        return from_openml(name, np.asarray(found.data), np.asarray(found.target))

    return read


def from_openml(name: str, values: np.ndarray, labels: np.ndarray) -> Arrays:
    """Rows in official order, the training digits first. USPS comes in [−1, 1] with labels from 1."""
    side = round(values.shape[1] ** 0.5)
    digits = labels.astype(np.int64) - (name == "usps")
    pixels = ((values + 1) / 2 * 255 if name == "usps" else values).astype(np.uint8).reshape(-1, side, side)
    cut = _TRAIN_DIGITS[name]
    parts = {"train": slice(None, cut), "test": slice(cut, None)}
    return {f"{part}_images": pixels[rows] for part, rows in parts.items()} | {
        f"{part}_labels": digits[rows].astype(np.uint8) for part, rows in parts.items()
    }


def _svhn() -> Arrays:
    with _downloaded(_SVHN) as file:
        return from_svhn(loadmat(file))


def from_svhn(mat: Arrays) -> Arrays:
    """(32, 32, 3, n) and labels of which 10 is the digit 0."""
    return {
        "train_images": np.ascontiguousarray(mat["X"].transpose(3, 0, 1, 2)),
        "train_labels": (mat["y"].reshape(-1) % 10).astype(np.uint8),
    }


def _monet() -> Arrays:
    with _downloaded(_MONET) as file, zipfile.ZipFile(file) as archive:
        return from_monet({entry: archive.read(entry) for entry in archive.namelist() if entry.endswith(".jpg")})


def from_monet(files: dict[str, bytes]) -> Arrays:
    """Folders trainA, testA (paintings), trainB, testB (photographs), brought to 64 pixels."""
    kinds = {"monet_train": "trainA", "monet_test": "testA", "photo_train": "trainB", "photo_test": "testB"}
    return {
        name: np.stack(
            [_small(files[file], "RGB") for file in sorted(files) if PurePosixPath(file).parent.name == kind]
        )
        for name, kind in kinds.items()
    }


def _shoes() -> Arrays:
    with _downloaded(_SHOES) as file, tarfile.open(file) as archive:
        train = (m for m in archive if m.isfile() and PurePosixPath(m.name).parent.name == "train")
        return from_shoes((m.name, _content(archive, m)) for m in train if _number(m.name) % _EVERY == 1)


def from_shoes(files: Iterable[tuple[str, bytes]]) -> Arrays:
    """Pictures that hold the edges on their left and the shoe on their right; every eighth is taken, by number."""
    edges, shoes, ids = [], [], []
    for name, content in sorted(files, key=lambda file: _number(file[0])):
        picture = Image.open(io.BytesIO(content))
        half = picture.width // 2
        edges.append(_small(picture.crop((0, 0, half, picture.height)), "L"))
        shoes.append(_small(picture.crop((half, 0, picture.width, picture.height)), "RGB"))
        ids.append(_number(name))
    return {"edges": np.stack(edges), "shoes": np.stack(shoes), "ids": np.array(ids, dtype=np.int32)}


def write_photographs(archive: Path, folder: Path) -> None:
    """All 200 training photographs and every fourth of the 200 for testing, by number."""
    with tarfile.open(archive) as opened, tempfile.TemporaryDirectory(dir=folder) as new:
        photos = [m for m in opened if m.isfile() and m.name.endswith(".jpg")]
        for split, every in (("train", 1), ("test", 4)):
            place = Path(new) / "bsds500" / split
            place.mkdir(parents=True)
            own = sorted(
                (m for m in photos if PurePosixPath(m.name).parent.name == split), key=lambda m: _number(m.name)
            )
            for member in own[::every]:
                (place / PurePosixPath(member.name).name).write_bytes(_content(opened, member))
        shutil.rmtree(folder / "bsds500", ignore_errors=True)
        (Path(new) / "bsds500").rename(folder / "bsds500")


def _small(picture: bytes | Image.Image, mode: str) -> np.ndarray:
    opened = Image.open(io.BytesIO(picture)) if isinstance(picture, bytes) else picture
    return np.asarray(opened.convert(mode).resize((_SIZE, _SIZE), Image.Resampling.BOX))


def _number(name: str) -> int:
    return int("".join(c for c in PurePosixPath(name).stem.split("_")[0] if c.isdigit()))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    if file is None:
        raise ValueError(f"{member.name} is no file")
    return file.read()


@contextmanager
def _downloaded(address: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "download"
        with urllib.request.urlopen(address, timeout=60) as answer, file.open("wb") as out:
            shutil.copyfileobj(answer, out)
        yield file


_READERS: dict[str, Callable[[], Arrays]] = {
    "mnist": _openml("mnist"),
    "usps": _openml("usps"),
    "svhn": _svhn,
    "monet2photo": _monet,
    "edges2shoes": _shoes,
}
