"""Folders of pictures: one size, one mode, and files that are no pictures."""

import numpy as np
import pytest
from PIL import Image

from torchspot.data import PictureFolder, as_sampler
from torchspot.errors import CorruptFile, InvalidArgument


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (20, 10), (255, 0, 0)).save(tmp_path / "a.png")
    Image.new("L", (7, 7), 100).save(tmp_path / "b.png")
    Image.new("RGBA", (9, 30), (0, 255, 0, 255)).save(tmp_path / "c.png")
    return tmp_path


def test_pictures_of_any_size_and_mode_are_brought_to_one(folder):
    pictures = PictureFolder(folder, 8).read()
    assert pictures.shape == (3, 3, 8, 8) and pictures.dtype == np.uint8
    assert pictures[0, :, 4, 4].tolist() == [255, 0, 0]
    assert pictures[1, :, 4, 4].tolist() == [100, 100, 100]
    assert pictures[2, :, 4, 4].tolist() == [0, 255, 0]
    sampler = as_sampler(PictureFolder(folder, 8))
    assert sampler.shape == (3, 8, 8) and sampler.scale == 1 / 255


def test_the_middle_is_cut_out(tmp_path):
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert PictureFolder(tmp_path, 10).read().min() == 255


def test_grey_folders_stay_grey(tmp_path):
    for name in "ab":
        Image.new("L", (6, 6), 7).save(tmp_path / f"{name}.png")
    assert PictureFolder(tmp_path).read().shape == (2, 1, 6, 6)


def test_a_picture_that_lies_on_its_side_is_turned(tmp_path):
    picture = np.zeros((4, 8), dtype=np.uint8)
    picture[:, :4] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.fromarray(picture).save(tmp_path / "a.jpg", exif=exif, quality=100)
    upright = PictureFolder(tmp_path).read()[0, 0]
    assert upright.shape == (8, 4)
    assert upright[1].mean() > 200
    assert upright[6].mean() < 50


def test_bad_files_are_named_and_skipped_only_if_asked(folder):
    whole = (folder / "a.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "words.jpg").write_text("no picture")
    with pytest.raises(CorruptFile, match=r"2 of 5 files .*cut\.png.*words\.jpg.*--skip-corrupt"):
        PictureFolder(folder, 8).read()
    with pytest.warns(UserWarning, match=r"2 of 5 files .*They are left out"):
        assert len(PictureFolder(folder, 8, skip_corrupt=True).read()) == 3


def test_nothing_to_read_is_an_error(tmp_path):
    with pytest.raises(InvalidArgument, match="holds no pictures"):
        PictureFolder(tmp_path).read()
    (tmp_path / "a.png").write_bytes(b"no")
    with pytest.warns(UserWarning), pytest.raises(CorruptFile, match="none of the 1 pictures"):
        PictureFolder(tmp_path, skip_corrupt=True).read()
    with pytest.raises(InvalidArgument, match="at least 1"):
        PictureFolder(tmp_path, 0)


def test_deep_grey_is_brought_to_bytes(tmp_path):
    ramp = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    pictures = PictureFolder(tmp_path).read()
    assert pictures.shape == (1, 1, 8, 8)
    assert np.array_equal(pictures[0, 0], (ramp >> 8).astype(np.uint8))


def test_paths_may_be_words_and_must_be_there(folder):
    assert PictureFolder(str(folder), 8).read().shape == (3, 3, 8, 8)
    with pytest.raises(InvalidArgument, match="there is no folder"):
        PictureFolder(folder / "none")
