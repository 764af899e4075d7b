"""Pictures are drawn and hold what they should; the eye judges the rest."""

import numpy as np
import pytest
import torch
from PIL import Image

from torchspot.errors import InvalidArgument
from torchspot.evaluation import Audit, Certificate, MarginalAudit
from torchspot.plots import plot_barycenter, plot_convergence, plot_density, plot_evaluation, plot_pairs, plot_sheet
from torchspot.types import Estimate, Reading


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_pairs(dim, tmp_path):
    x = torch.randn(50, dim, generator=torch.Generator().manual_seed(0))
    file = plot_pairs((x, x + 3, x - 3), tmp_path / "new" / "pairs.png", data=(x, x + 3), title="t")
    with Image.open(file) as image:
        assert (np.asarray(image.convert("L")) < 60).sum() > 500
    with pytest.raises(InvalidArgument, match="two or more batches"):
        plot_pairs((x,), tmp_path / "pairs.png")


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_barycenter(dim, tmp_path):
    x = torch.randn(50, dim, generator=torch.Generator().manual_seed(0))
    pictures = []
    for weights in ((0.8, 0.1, 0.1), (0.1, 0.1, 0.8)):
        with Image.open(plot_barycenter((x, x + 3, x - 3), weights, tmp_path / "b.png", data=(x, x + 3))) as image:
            pictures.append(np.asarray(image.convert("L")))
    assert min((picture < 60).sum() for picture in pictures) > 500
    assert (pictures[0] != pictures[1]).sum() > 500
    with pytest.raises(InvalidArgument, match="3 marginals and 2 weights"):
        plot_barycenter((x, x, x), (0.5, 0.5), tmp_path / "b.png")


def test_density_with_the_data_beside_it(tmp_path):
    x, y = np.linspace(-3, 3, 40), np.linspace(-2, 2, 30)
    density = np.exp(-(x[:, None] ** 2) - y**2)
    data = tuple(torch.randn(500, 1, generator=torch.Generator().manual_seed(k)) for k in range(2))
    pictures = []
    for more in ((), data):
        with Image.open(plot_density(x, y, density, tmp_path / "d.png", data=more, title="t")) as image:
            pictures.append(np.asarray(image.convert("L")))
    assert (pictures[0] < 100).sum() > 500
    assert (pictures[0] != pictures[1]).sum() > 500


def test_convergence(tmp_path):
    history = [
        {"step": k, "cost": 5 + 1 / (k + 1), "objective": 5.0, "marginal_error": 0.1, "marginal_error_1": 0.1}
        for k in range(10)
    ]
    with Image.open(plot_convergence(history, tmp_path / "c.png", truth=5.0)) as image:
        assert image.size[0] > 500


def test_evaluation(tmp_path):
    reading = Reading(0.2, 0.1, 0.02)
    marginal = MarginalAudit(1000, True, reading, reading, reading, reading, reading, 1.0, 1.0)
    judged = Audit(Estimate(5.1, 0.01), (marginal, marginal))
    certificate = Certificate(4.9, 5.2, "population", "m", 0.95, Estimate(5.1, 0.01), None, 5.15, 0.3, 1000)
    with Image.open(plot_evaluation(judged, tmp_path / "a.png", certificate=certificate, truth=5.0)) as image:
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    blue = (np.abs(colours - np.array([31, 119, 180])).max(1) < 10).sum()
    assert blue > 300
    assert plot_evaluation(judged, tmp_path / "b.png").exists()


def test_sheet_shows_pairs_in_order_and_real_pictures_beside(tmp_path):
    x, y = torch.zeros(10, 1, 8, 8), torch.zeros(10, 3, 8, 8)
    x[0] = 1
    y[9, 0] = 1
    with Image.open(plot_sheet((x, y), tmp_path / "new" / "sheet.png", data=(x, y), columns=4)) as image:
        pixels = np.asarray(image)
    assert pixels.shape == (3 * 10, 4 * 18 + 6 + 2 * 10 + 6 + 2 * 10, 3)
    assert pixels[4, 4].tolist() == [255, 255, 255] and pixels[4, 12].tolist() == [0, 0, 0]
    assert pixels[24, 18 + 12].tolist() == [255, 0, 0]
    with pytest.raises(InvalidArgument, match="batches of pictures with one or three channels"):
        plot_sheet((torch.zeros(3, 2),), tmp_path / "sheet.png")
