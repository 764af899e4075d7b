"""`torchspot adapt` and `torchspot predict`, as a user calls them."""

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from torchspot.cli import app
from torchspot.cli.adaptation import read_labels
from torchspot.errors import InvalidArgument
from torchspot_paper.tabular import domains


@pytest.fixture
def files(tmp_path):
    data = domains("moons 20", 0)
    pd.DataFrame(data.source[0], columns=["a", "b"]).to_parquet(tmp_path / "source.parquet")
    names = np.array(["lower", "upper"])
    pd.DataFrame({"label": names[data.source[1]]}).to_csv(tmp_path / "labels.csv", index=False)
    np.save(tmp_path / "target.npy", data.target[0])
    return tmp_path, data


def call(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def test_adapt_and_predict(files):
    folder, data = files
    paths = (folder / "source.parquet", folder / "labels.csv", folder / "target.npy")
    said = call("adapt", *paths, "--out", folder / "run", "--steps", 400)
    assert "predicted in the target" in said and "torchspot predict" in said
    assert (folder / "run" / "labels.png").stat().st_size > 1000
    call("predict", folder / "run", folder / "target.npy", "--out", folder / "out.csv")
    table = pd.read_csv(folder / "out.csv")
    assert (table["label"] == np.array(["lower", "upper"])[data.target[1]]).mean() > 0.95
    assert table["probability"].between(0.5, 1).all()
    call("predict", folder / "run", folder / "target.npy", "--out", folder / "out.parquet", "--as-source")
    assert (pd.read_parquet(folder / "out.parquet")["label"] != table["label"]).any()
    call("adapt", *paths, "--out", folder / "run", "--steps", 400, "--resume")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("adapt", "source.parquet", "nothing.csv", "target.npy", "--out", "run"), "there is no file"),
        (("adapt", "source.parquet", "source.parquet", "target.npy", "--out", "run"), "has 2 columns"),
        (("adapt", "source.parquet", "short.npy", "target.npy", "--out", "run"), "1000 source rows and 3 labels"),
        (("adapt", "source.parquet", "labels.csv", "wide.npy", "--out", "run"), r"target samples \(3,\)"),
        (("adapt", "source.parquet", "labels.csv", "target.npy", "--out", "run", "--preset", "x"), "no preset 'x'"),
        (
            ("adapt", "source.parquet", "labels.csv", "turned.csv", "--out", "run"),
            "has the columns b, a, and the source a, b",
        ),
        (("adapt", "source.parquet", "gap.csv", "target.npy", "--out", "run"), "label of row 1 is missing"),
        (("predict", "begun", "target.npy", "--out", "labels.csv"), "has not ended"),
        (("predict", "run", "target.npy", "--out", "labels.txt"), "no file type of --out '.txt'"),
        (("predict", "run", "target.npy", "--out", "labels.csv"), "there is no file"),
    ],
)
def test_bad_input_is_named(files, arguments, message, monkeypatch):
    folder, _ = files
    monkeypatch.chdir(folder)
    np.save("short.npy", np.arange(3))
    np.save("wide.npy", np.zeros((5, 3)))
    pd.read_parquet("source.parquet")[["b", "a"]].to_csv("turned.csv", index=False)
    pd.DataFrame({"label": ["x", None, *["y"] * 998]}).to_csv("gap.csv", index=False)
    (folder / "begun").mkdir()
    (folder / "begun" / "run.json").write_text("{}")
    with pytest.raises(InvalidArgument, match=message):
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_labels_are_read_from_all_kinds_of_files(tmp_path):
    labels = np.array(["b", "a", "b"])
    np.save(tmp_path / "l.npy", labels)
    np.savez(tmp_path / "l.npz", labels)
    pd.DataFrame({"l": labels}).to_parquet(tmp_path / "l.parquet")
    for name in ("l.npy", "l.npz", "l.parquet"):
        assert read_labels(tmp_path / name).tolist() == labels.tolist()
    (tmp_path / "l.npy").write_bytes(b"no array")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_labels(tmp_path / "l.npy")
    (tmp_path / "l.txt").write_text("a")
    with pytest.raises(InvalidArgument, match="labels are read from"):
        read_labels(tmp_path / "l.txt")
