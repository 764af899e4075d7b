"""Reading, making, checking and converting the real data sets, on small files of the same form; and the real ones."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from torchspot.errors import CorruptFile, InvalidArgument
from torchspot_paper import datasets, downloads
from torchspot_paper.__main__ import app


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)

    def some(*shape):
        return rng.integers(0, 256, shape, dtype=np.uint8)

    digits = {
        "train_images": some(6, 28, 28),
        "train_labels": some(6) % 10,
        "test_images": some(4, 28, 28),
        "test_labels": some(4) % 10,
    }
    np.savez(tmp_path / "mnist.npz", **digits)
    np.savez(
        tmp_path / "edges2shoes.npz", edges=some(7, 64, 64), shoes=some(7, 64, 64, 3), ids=np.arange(7, dtype=np.int32)
    )
    np.savez(
        tmp_path / "monet2photo.npz",
        monet_train=some(3, 64, 64, 3),
        monet_test=some(2, 64, 64, 3),
        photo_train=some(5, 64, 64, 3),
        photo_test=some(2, 64, 64, 3),
    )
    for split in ("train", "test"):
        place = tmp_path / "bsds500" / split
        place.mkdir(parents=True)
        for k in range(2):
            Image.fromarray(some(40, 50, 3)).save(place / f"{k}.jpg")
    return tmp_path


def test_mnistm_is_a_patch_inverted_where_the_digit_is(folder):
    mnist, made = datasets.digits("mnist", folder), datasets.mnistm(folder)
    assert made.train.shape == (6, 3, 28, 28) and made.train.dtype == np.uint8
    assert np.array_equal(made.train_labels, mnist.train_labels)
    for split, images, coloured in (("train", mnist.train, made.train), ("test", mnist.test, made.test)):
        photos = [p.transpose(2, 0, 1).astype(int) for p in datasets.photographs(folder, split)]
        for digit, picture in zip(images, coloured, strict=True):
            patch = np.abs(picture.astype(int) - 255 * (digit > 0))
            found = [
                np.array_equal(patch, photo[:, a : a + 28, b : b + 28])
                for photo in photos
                for a in range(photo.shape[1] - 27)
                for b in range(photo.shape[2] - 27)
            ]
            assert any(found)


def test_mnistm_is_seeded(folder):
    assert np.array_equal(datasets.mnistm(folder).test, datasets.mnistm(folder).test)
    assert not np.array_equal(datasets.mnistm(folder).test, datasets.mnistm(folder, seed=1).test)


def test_shoes_are_unpaired_in_training(folder):
    with np.load(folder / "edges2shoes.npz") as arrays:
        edges, shoes = arrays["edges"], arrays["shoes"]
    unpaired = datasets.edges2shoes(folder)
    assert np.array_equal(unpaired.train[0][:, 0], edges[:3])
    assert np.array_equal(unpaired.train[1].transpose(0, 2, 3, 1), shoes[3:])
    assert np.array_equal(unpaired.test[1].transpose(0, 2, 3, 1), shoes[:3])


def test_pictures_stay_bytes_until_they_are_drawn(folder):
    source = datasets.as_source(datasets.monet2photo(folder).train[0])
    assert source.values.dtype == np.uint8
    drawn = source.draw(4, torch.Generator().manual_seed(0))
    assert drawn.shape == (4, 3, 64, 64) and drawn.dtype == torch.float32
    assert float(drawn.min()) >= 0 and float(drawn.max()) <= 1


def test_resizing_keeps_flat_colours():
    flat = np.full((2, 3, 8, 8), 77, dtype=np.uint8)
    assert np.array_equal(datasets.resized(flat, 20), np.full((2, 3, 20, 20), 77, dtype=np.uint8))


def test_what_is_missing_or_damaged_says_how_to_get_it(folder, monkeypatch):
    with pytest.raises(InvalidArgument, match=rf"python -m torchspot_paper data --fetch usps --data {folder}"):
        datasets.digits("usps", folder)
    whole = (folder / "mnist.npz").read_bytes()
    (folder / "mnist.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptFile, match="Remove it and get it again"):
        datasets.digits("mnist", folder)
    monkeypatch.delenv("TORCHSPOT_DATA", raising=False)
    with pytest.raises(InvalidArgument, match="--data DIR or TORCHSPOT_DATA=DIR"):
        datasets.data_folder()
    assert datasets.data_folder(folder) == folder


def test_the_command_lists_and_checks(folder):
    result = CliRunner().invoke(app, ["data", "--data", str(folder)], env={"COLUMNS": "300"})
    assert result.exit_code == 0
    assert "mnist: there, but not the copy that results are from" in result.output
    assert "usps: usps (digits from envelopes" in result.output
    assert CliRunner().invoke(app, ["data", "cifar", "--data", str(folder)]).exit_code == 2


@pytest.mark.parametrize("command", ["fig5", "fig7", "data"])
def test_without_data_commands_say_once_how_to_get_it(command, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHSPOT_DATA", raising=False)
    place = [] if command == "data" else ["--out", str(tmp_path)]
    result = CliRunner().invoke(app, [command, *place], env={"COLUMNS": "300"})
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert result.output.count("python -m torchspot_paper data --fetch --data DIR") == 1


def test_a_missing_set_is_named_with_the_command_that_gets_it(tmp_path):
    arguments = ["fig7", "--only", "edges-shoes", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    assert result.exit_code == 1
    assert f"python -m torchspot_paper data --fetch edges2shoes --data {tmp_path}" in result.output
    assert "This was the setting edges-shoes/seed=0." in result.output


def test_fetching_what_cannot_be_reached_fails_and_keeps_what_is_there(folder, monkeypatch):
    def unreachable(*args, **kwargs):
        raise OSError("no route")

    monkeypatch.setattr(downloads.urllib.request, "urlopen", unreachable)
    before = (folder / "mnist.npz").read_bytes()
    result = CliRunner().invoke(app, ["data", "svhn", "--fetch", "--data", str(folder)], env={"COLUMNS": "300"})
    assert result.exit_code == 1
    assert "svhn could not be fetched: no route" in result.output
    assert (folder / "mnist.npz").read_bytes() == before


class TestDownloads:
    def test_openml(self):
        rows = np.linspace(-1, 1, 9298 * 256).reshape(9298, 256)
        labels = np.array([str(1 + k % 10) for k in range(9298)])
        made = downloads.from_openml("usps", rows, labels)
        assert made["train_images"].shape == (7291, 16, 16) and made["test_images"].shape == (2007, 16, 16)
        assert made["train_images"].min() == 0 and made["test_images"].max() == 255
        assert made["train_labels"][:3].tolist() == [0, 1, 2]

    def test_svhn(self):
        made = downloads.from_svhn(
            {"X": np.zeros((32, 32, 3, 5), np.uint8), "y": np.array([[10], [1], [2], [9], [10]])}
        )
        assert made["train_images"].shape == (5, 32, 32, 3)
        assert made["train_labels"].tolist() == [0, 1, 2, 9, 0]

    def test_monet(self):
        files = {
            f"monet2photo/{kind}/{k}.jpg": jpeg(256, 256)
            for kind in ("trainA", "testA", "trainB", "testB")
            for k in (1, 2)
        }
        made = downloads.from_monet(files)
        assert {name: array.shape for name, array in made.items()} == dict.fromkeys(
            ("monet_train", "monet_test", "photo_train", "photo_test"), (2, 64, 64, 3)
        )

    def test_shoes_are_cut_in_two(self):
        made = downloads.from_shoes([("train/9_AB.jpg", jpeg(512, 256)), ("train/1_AB.jpg", jpeg(512, 256))])
        assert made["edges"].shape == (2, 64, 64) and made["shoes"].shape == (2, 64, 64, 3)
        assert made["ids"].tolist() == [1, 9]

    def test_photographs_of_both_splits(self, tmp_path):
        archive = tmp_path / "photos.tgz"
        with tarfile.open(archive, "w:gz") as out:
            for split, count in (("train", 3), ("test", 5), ("val", 2)):
                for k in range(count):
                    content = jpeg(60, 40)
                    entry = tarfile.TarInfo(f"BSR/images/{split}/{k}.jpg")
                    entry.size = len(content)
                    out.addfile(entry, io.BytesIO(content))
        downloads.write_photographs(archive, tmp_path)
        assert sorted(f.name for f in (tmp_path / "bsds500" / "train").iterdir()) == ["0.jpg", "1.jpg", "2.jpg"]
        assert sorted(f.name for f in (tmp_path / "bsds500" / "test").iterdir()) == ["0.jpg", "4.jpg"]


def jpeg(width, height):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)).save(out, "JPEG")
    return out.getvalue()


@pytest.mark.skipif("TORCHSPOT_DATA" not in os.environ, reason="needs the real data sets in TORCHSPOT_DATA")
class TestRealData:
    @pytest.mark.parametrize("name", datasets.SETS)
    def test_is_the_copy_that_results_are_from(self, name):
        assert datasets.check(name, Path(os.environ["TORCHSPOT_DATA"])) == "ok"

    def test_shapes_are_as_documented(self):
        folder = Path(os.environ["TORCHSPOT_DATA"])
        assert datasets.digits("usps", folder).test.shape == (2007, 1, 16, 16)
        made = datasets.mnistm(folder)
        assert made.train.shape == (60_000, 3, 28, 28) and made.test.shape == (10_000, 3, 28, 28)
        assert datasets.monet2photo(folder).train[1].shape == (1072, 3, 64, 64)
        assert datasets.edges2shoes(folder).train[1].shape == (2991, 3, 64, 64)
