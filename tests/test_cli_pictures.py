"""The command line on folders of pictures: fit, watch, resume, sample, evaluate."""

import json

import numpy as np
import pytest
from PIL import Image

from test_cli import run


@pytest.fixture
def folders(tmp_path):
    rng = np.random.default_rng(0)
    for name, mode in (("grey", "L"), ("coloured", "RGB")):
        (tmp_path / name).mkdir()
        for k in range(120):
            pixels = np.zeros((14, 14, 3), dtype=np.uint8) + rng.integers(0, 90, 3, dtype=np.uint8)
            pixels[:, k % 10 : k % 10 + 3] = 220
            Image.fromarray(pixels).convert(mode).save(tmp_path / name / f"{k:03}.png")
    return tmp_path / "grey", tmp_path / "coloured"


def fit(folders, out, *more):
    return ("fit", *folders, "--cost", "contour", "--size", 12, "--steps", 4, "--batch", 8, "--out", out, *more)


def test_fit_sample_evaluate(folders, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    code, text = run(monkeypatch, capsys, *fit(folders, out))
    assert code == 0, text
    assert "expected cost (contour)" in text and "twice the mean cost of unpaired samples" in text
    assert "sheet.png shows pairs as they stand" in text
    assert {"sheet.png", "pairs.png", "plan.safetensors", "convergence.png"} <= {f.name for f in out.iterdir()}
    with Image.open(out / "sheet.png") as sheet:
        assert sheet.size == (8 * (2 * 12 + 2), 4 * (12 + 2))
    code, text = run(monkeypatch, capsys, "sample", out, "-n", 11, "--seed", 1, "--out", tmp_path / "pairs")
    assert code == 0, text
    for k, mode in ((1, "L"), (2, "RGB")):
        files = sorted((tmp_path / "pairs" / str(k)).iterdir())
        assert [f.name for f in files] == [f"{row:02}.png" for row in range(11)]
        with Image.open(files[0]) as picture:
            assert (picture.size, picture.mode) == ((12, 12), mode)
    assert (tmp_path / "pairs" / "sheet.png").exists()
    code, text = run(monkeypatch, capsys, "sample", out, "--out", tmp_path / "pairs")
    assert code == 2 and "is there already" in text
    code, text = run(monkeypatch, capsys, "evaluate", out, *folders, "--no-certificate")
    assert code == 0, text
    assert json.loads((out / "evaluation.json").read_text())["marginals"]


def test_resume_asks_for_the_same_size(folders, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    assert run(monkeypatch, capsys, *fit(folders, out))[0] == 0
    code, text = run(monkeypatch, capsys, *fit(folders, out, "--resume"))
    assert code == 0, text
    other = [14 if word == 12 else word for word in fit(folders, out, "--resume")]
    code, text = run(monkeypatch, capsys, *other)
    assert code == 2 and "begun with size = 12" in text


def test_corrupt_pictures_are_named_and_skipped_only_if_asked(folders, tmp_path, monkeypatch, capsys):
    (folders[0] / "bad.png").write_bytes(b"no picture")
    code, text = run(monkeypatch, capsys, *fit(folders, tmp_path / "run"))
    assert code == 1 and "bad.png" in text and "--skip-corrupt" in text
    code, text = run(monkeypatch, capsys, *fit(folders, tmp_path / "run", "--skip-corrupt"))
    assert code == 0 and "Note: 1 of 121 files" in text


def test_pictures_of_two_sizes_say_how_to_make_one(folders, tmp_path, monkeypatch, capsys):
    Image.new("L", (20, 20)).save(folders[0] / "large.png")
    arguments = [word for word in fit(folders, tmp_path / "run") if word not in ("--size", 12)]
    code, text = run(monkeypatch, capsys, *arguments)
    assert code == 2 and "--size 64" in text
    np.save(tmp_path / "x.npy", np.zeros((200, 3)))
    code, text = run(monkeypatch, capsys, *fit((tmp_path / "x.npy",) * 2, tmp_path / "other"))
    assert code == 2 and "a size is for folders of pictures" in text


def test_maps_of_pictures_remember_their_size(folders, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    both = (folders[1], folders[1])
    code, text = run(monkeypatch, capsys, *fit(both, out, "--map", "forward"))
    assert code == 0, text
    for arguments in (
        ("sample", out, "-n", 3, "--out", tmp_path / "drawn"),
        ("evaluate", out, *both, "--no-certificate"),
        ("transport", out, folders[1], "--out", tmp_path / "moved"),
        ("transport", out, folders[1], "--out", tmp_path / "moved.npz"),
    ):
        code, text = run(monkeypatch, capsys, *arguments)
        assert code == 0, text
    with Image.open(tmp_path / "moved" / "2" / "000.png") as picture:
        assert picture.size == (12, 12)


def test_written_pictures_have_the_brightness_of_the_data(tmp_path, monkeypatch, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(100):
            dark = np.random.default_rng(k).integers(0, 60, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(dark).save(tmp_path / name / f"{k}.png")
    arguments = ("--steps", 2, "--batch", 8, "--out", tmp_path / "run")
    assert run(monkeypatch, capsys, "fit", tmp_path / "a", tmp_path / "b", *arguments)[0] == 0
    assert run(monkeypatch, capsys, "sample", tmp_path / "run", "-n", 4, "--out", tmp_path / "pairs")[0] == 0
    with Image.open(tmp_path / "pairs" / "1" / "0.png") as picture:
        assert np.asarray(picture).max() <= 60


def test_arrays_with_four_channels_are_fitted_and_not_drawn(tmp_path, monkeypatch, capsys):
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).random((150, 4, 9, 9)))
    out = tmp_path / "run"
    files = (tmp_path / "a.npy", tmp_path / "b.npy")
    code, text = run(monkeypatch, capsys, "fit", *files, "--steps", 2, "--batch", 8, "--out", out)
    assert code == 0, text
    code, text = run(monkeypatch, capsys, "sample", out, "-n", 4, "--out", tmp_path / "pairs")
    assert code == 2 and "one or three channels" in text
