"""The real data sets of the paper, read from one folder of plain files.

The folder (`--data`, or the environment variable TORCHSPOT_DATA) holds, each where it is needed:

    mnist.npz        train_images (60000, 28, 28), train_labels, test_images (10000, 28, 28), test_labels
    usps.npz         the same names, (7291, 16, 16) and (2007, 16, 16): paper 0, ink 255
    svhn.npz         train_images (73257, 32, 32, 3), train_labels (the digit 0 is 0)
    monet2photo.npz  monet_train, monet_test, photo_train, photo_test, each (n, 64, 64, 3)
    edges2shoes.npz  edges (n, 64, 64), shoes (n, 64, 64, 3), ids: row i of both is the same shoe
    bsds500/         train/*.jpg and test/*.jpg, photographs

All arrays are uint8 and stay so in memory: they become floats in [0, 1] where they are used. MNIST-M is not stored but
made from MNIST and the photographs.
"""

__all__ = [
    "SETS",
    "Digits",
    "Known",
    "Unpaired",
    "as_source",
    "check",
    "data_folder",
    "digits",
    "edges2shoes",
    "fingerprint",
    "mnistm",
    "monet2photo",
    "resized",
]

import hashlib
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from torchspot.data.arrays import Rows
from torchspot.errors import CorruptFile, InvalidArgument

Pictures = UInt8[np.ndarray, "rows channels height width"]
Labels = UInt8[np.ndarray, " rows"]

VARIABLE = "TORCHSPOT_DATA"
PATCH = 28


@dataclass(frozen=True)
class Known:
    """A data set as it was when results were measured."""

    arrays: tuple[str, ...]
    """Names in its .npz file; none for a folder of photographs."""
    sha256: str
    about: str


SETS = {
    "mnist": Known(
        ("train_images", "train_labels", "test_images", "test_labels"),
        "1d6326b7b7818613fe6abe427364d0f4ff585f8591c5874ac131819dcd5eeaba",
        "handwritten digits, 28 x 28, grey",
    ),
    "usps": Known(
        ("train_images", "train_labels", "test_images", "test_labels"),
        "a9f1724c6e027549dc9fa6a19c7d623ebef7c51915bbae09b949f09189e2cfb6",
        "digits from envelopes, 16 x 16, grey",
    ),
    "svhn": Known(
        ("train_images", "train_labels"),
        "13cb3b4bbd807df835cba3b1b06c842f998e09f27c619727bc1aeef12beb7a99",
        "house numbers, 32 x 32, colour",
    ),
    "bsds500": Known(
        (),
        "7bb023a907bd3d66dfeeade40c20ec5a326c8e92b7db649022d635d707af9f55",
        "photographs, the backgrounds of MNIST-M",
    ),
    "monet2photo": Known(
        ("monet_train", "monet_test", "photo_train", "photo_test"),
        "5400a9525a3264ac505d9b072e6b900d799d2a2aa2b42306c893b72f5f84a384",
        "paintings and photographs, 64 x 64, colour",
    ),
    "edges2shoes": Known(
        ("edges", "shoes", "ids"),
        "e1ff2c3db1e6d9acfc86da1f3e1952ef8e350bf481321df549f17c20096b735f",
        "shoes and their edges, 64 x 64",
    ),
}


@dataclass(frozen=True)
class Digits:
    """Pictures of digits and what they show, for training and for judging."""

    train: Pictures
    train_labels: Labels
    test: Pictures
    test_labels: Labels


@dataclass(frozen=True)
class Unpaired:
    """Two sets of pictures that do not belong together, for training; and others of the same kinds, for judging."""

    train: tuple[Pictures, Pictures]
    test: tuple[Pictures, Pictures]


def data_folder(given: Path | None = None) -> Path:
    """The folder with the data: the one given, else the one that TORCHSPOT_DATA names."""
    named = os.environ.get(VARIABLE)
    if given is None and not named:
        raise InvalidArgument(
            f"these pictures need real data. Give its folder with --data DIR or {VARIABLE}=DIR; to fill one: "
            "python -m torchspot_paper data --fetch --data DIR"
        )
    return Path(named or "") if given is None else given


def digits(name: str, folder: Path) -> Digits:
    """MNIST, USPS, or SVHN (whose last 10 000 training digits are for judging: it comes without a test set)."""
    arrays = _arrays(name, folder)
    images, labels = _channels_first(arrays["train_images"]), arrays["train_labels"]
    if "test_images" not in arrays:
        return Digits(images[:-10_000], labels[:-10_000], images[-10_000:], labels[-10_000:])
    return Digits(images, labels, _channels_first(arrays["test_images"]), arrays["test_labels"])


def mnistm(folder: Path, *, seed: int = 0) -> Digits:
    """MNIST-M: |patch − 255·[digit > 0]| in each colour, a random patch of a photograph for each digit.

    Train photographs for train and test photographs for test; digits, order and labels are those of MNIST. Digits are
    made black and white first: with grey levels their outline would stay dark, which the original does not show.
    """
    mnist = digits("mnist", folder)
    made = [
        blended(images, photographs(folder, split), np.random.default_rng([seed, k]))
        for k, (split, images) in enumerate((("train", mnist.train), ("test", mnist.test)))
    ]
    return Digits(made[0], mnist.train_labels, made[1], mnist.test_labels)


def blended(images: Pictures, backgrounds: list[np.ndarray], rng: np.random.Generator) -> Pictures:
    """Each digit on a random patch of a random photograph, whose colours it inverts."""
    made = np.empty((len(images), 3, PATCH, PATCH), dtype=np.uint8)
    chosen = rng.integers(len(backgrounds), size=len(images))
    corners = rng.random((len(images), 2))
    for k, picture in enumerate(images):
        photo = backgrounds[chosen[k]]
        top, left = (int(c * (n - PATCH + 1)) for c, n in zip(corners[k], photo.shape[:2], strict=True))
        patch = photo[top : top + PATCH, left : left + PATCH].transpose(2, 0, 1)
        made[k] = np.where(picture > 0, 255 - patch, patch)
    return made


def photographs(folder: Path, split: str) -> list[np.ndarray]:
    """Those of BSDS500, (height, width, 3)."""
    files = sorted((folder / "bsds500" / split).glob("*.jpg"))
    if not files:
        raise _missing("bsds500", folder, folder / "bsds500" / split)
    try:
        return [np.asarray(Image.open(file).convert("RGB")) for file in files]
    except OSError as error:
        raise CorruptFile(
            f"a photograph in {files[0].parent} is damaged ({error}). Remove that folder and get it again: "
            f"python -m torchspot_paper data --fetch bsds500 --data {folder}"
        ) from error


def monet2photo(folder: Path) -> Unpaired:
    """Photographs and paintings by Monet."""
    arrays = {name: _channels_first(array) for name, array in _arrays("monet2photo", folder).items()}
    return Unpaired(
        (arrays["photo_train"], arrays["monet_train"]),
        (arrays["photo_test"], arrays["monet_test"]),
    )


def edges2shoes(folder: Path) -> Unpaired:
    """Edges of one half of the shoes, and the other half of the shoes: no shoe is in both, so nothing is paired.

    For judging, the two sides the other way round: shoes of the first half, edges of the second.
    """
    arrays = _arrays("edges2shoes", folder)
    edges, shoes = _channels_first(arrays["edges"]), _channels_first(arrays["shoes"])
    half = len(edges) // 2
    return Unpaired((edges[:half], shoes[half:]), (edges[half:], shoes[:half]))


def resized(pictures: Pictures, size: int) -> Pictures:
    """Pictures made larger or smaller, pixels in between interpolated."""
    if pictures.shape[2:] == (size, size):
        return pictures
    parts = np.array_split(pictures, max(1, len(pictures) // 4096))
    return np.concatenate([_interpolated(part, size) for part in parts])


def as_source(pictures: Pictures) -> Rows:
    """Bytes that become floats in [0, 1] where they are drawn."""
    return Rows(pictures, scale=1 / 255)


def check(name: str, folder: Path) -> str:
    """In words: whether a set is there, and whether it is the one that results were measured with."""
    try:
        sha256 = fingerprint(name, folder)
    except (InvalidArgument, CorruptFile) as error:
        return str(error)
    return "ok" if sha256 == SETS[name].sha256 else f"there, but not the copy that results are from (sha256 {sha256})"


def fingerprint(name: str, folder: Path) -> str:
    """The sha256 of what a set holds: names, types, shapes and values."""
    digest = hashlib.sha256()
    if not SETS[name].arrays:
        for split in ("test", "train"):
            photographs(folder, split)
            for file in sorted((folder / name / split).glob("*.jpg")):
                digest.update(f"{split}/{file.name}".encode() + file.read_bytes())
        return digest.hexdigest()
    arrays = _arrays(name, folder)
    for key in sorted(arrays):
        array = np.ascontiguousarray(arrays[key])
        digest.update(f"{key} {array.dtype.str} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def _arrays(name: str, folder: Path) -> Mapping[str, np.ndarray]:
    file = folder / f"{name}.npz"
    if not file.exists():
        raise _missing(name, folder, file)
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {key: archive[key] for key in SETS[name].arrays}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise CorruptFile(
            f"{file} is damaged or not what it should be ({error}). Remove it and get it again: "
            f"python -m torchspot_paper data --fetch {name} --data {folder}"
        ) from error


def _missing(name: str, folder: Path, file: Path) -> InvalidArgument:
    return InvalidArgument(
        f"{name} ({SETS[name].about}) is not there: no {file}. Get it with: "
        f"python -m torchspot_paper data --fetch {name} --data {folder}"
    )


def _channels_first(images: np.ndarray) -> Pictures:
    return images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _interpolated(pictures: Pictures, size: int) -> Pictures:
    x = torch.from_numpy(np.ascontiguousarray(pictures)).float()
    larger = torch.nn.functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)
    return larger.round().clamp(0, 255).byte().numpy()
