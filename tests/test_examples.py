"""The examples as their pages show them, at a small size."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def photograph(file, colour, seed):
    """Noise around one colour."""
    rng = np.random.default_rng(seed)
    Image.fromarray((np.array(colour) + 25 * rng.normal(size=(40, 30, 3))).clip(0, 255).astype(np.uint8)).save(file)
    return file


def test_colour_transfer(tmp_path, capsys, monkeypatch):
    module = example("plot_colour_transfer")
    drawn = []
    monkeypatch.setattr(module, "draw", lambda *given: drawn.append(given) or draw(*given))
    draw = example("plot_colour_transfer").draw
    red = photograph(tmp_path / "red.png", (200, 60, 60), 0)
    blue = photograph(tmp_path / "blue.png", (60, 60, 200), 1)
    module.main([str(red), str(blue), "--out", str(tmp_path / "out.png"), "--steps", "150"])
    said = capsys.readouterr().out
    assert "1200 and 1200 pixels" in said
    (pictures, moved, file) = drawn[0]
    assert np.abs(moved[0].mean((0, 1)) - pictures[1].mean((0, 1))).max() < 0.03
    assert np.abs(moved[1].mean((0, 1)) - pictures[0].mean((0, 1))).max() < 0.03
    assert np.corrcoef(moved[0][..., 1].ravel(), pictures[0][..., 1].ravel())[0, 1] > 0.9  # each pixel stays itself
    with Image.open(file) as image:
        assert image.size[0] > 1000
    with pytest.raises(SystemExit):
        module.main([str(red)])
    assert "two photographs" in capsys.readouterr().err
