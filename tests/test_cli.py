"""The command line as a user meets it: output, files, exit codes, killing and going on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

import torchspot
from problems import two_gaussians
from torchspot import cli, storage
from torchspot.cli import fitting
from torchspot.errors import CorruptFile
from torchspot.training import checkpoint


@pytest.fixture
def files(tmp_path):
    names = []
    for name, x in zip("ab", two_gaussians(2000).xs, strict=True):
        np.save(tmp_path / f"{name}.npy", x)
        names.append(str(tmp_path / f"{name}.npy"))
    return names


def run(monkeypatch, capsys, *arguments) -> tuple[int, str]:
    """Exit code and all output of `torchspot …`, in this process."""
    monkeypatch.setattr(sys, "argv", ["torchspot", *map(str, arguments)])
    monkeypatch.setattr(cli.console, "width", 150)
    monkeypatch.setattr(cli.problems, "width", 150)
    with pytest.raises(SystemExit) as stop:
        cli.main()
        sys.exit(0)
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out + captured.err


def test_fit_sample_evaluate(files, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    code, text = run(
        monkeypatch, capsys, "fit", *files, "--cost", "squared_euclidean", "--out", out, "--steps", 40, "--batch", 64
    )
    assert code == 0, text
    for word in (
        "expected cost (squared_euclidean)",
        "noise floor",
        "held-out rows",
        "estimated",
        "steps/s",
        "pairs.png",
    ):
        assert word in text
    assert {f.name for f in out.iterdir()} == {
        "run.json",
        "plan.safetensors",
        "checkpoint.safetensors",
        "history.jsonl",
        "pairs.png",
        "convergence.png",
    }
    history = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert [record["step"] for record in history] == list(range(0, 41, 2))
    assert {"cost", "objective", "marginal_error", "seconds"} <= set(history[0])

    pairs = tmp_path / "pairs"
    for suffix in (".npz", ".parquet", ".csv"):
        code, text = run(monkeypatch, capsys, "sample", out, "-n", 50, "--seed", 1, "--out", pairs.with_suffix(suffix))
        assert code == 0, text
    arrays = np.load(pairs.with_suffix(".npz"))
    expected = torchspot.load(out).sample(50, seed=1)
    assert np.array_equal(arrays["x2"], expected[1].numpy())
    table = pyarrow.parquet.read_table(pairs.with_suffix(".parquet"))
    assert table.column_names == ["x1_0", "x1_1", "x2_0", "x2_1"]
    assert np.array_equal(table["x2_1"].to_numpy(), arrays["x2"][:, 1])
    assert pyarrow.csv.read_csv(pairs.with_suffix(".csv")).num_rows == 50

    code, text = run(monkeypatch, capsys, "evaluate", out, *files)
    assert code == 0, text
    for word in ("optimal cost", "the laws behind the data", "energy distance", "W1, estimated", "rounded to data"):
        assert word in text
    judged = json.loads((out / "evaluation.json").read_text())
    assert judged["marginals"][0]["held_out"]
    assert judged["certificate"]["lower"] <= 25 <= judged["certificate"]["upper"]
    assert judged["certificate"]["target"] == "population"
    assert (out / "evaluation.png").stat().st_size > 5000
    assert judged["cost"]["value"] == pytest.approx(torchspot.load(out).expected_cost().value)


def test_evaluate_shows_the_spread_and_does_without_pot(files, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    code, text = run(monkeypatch, capsys, "fit", *files, "--out", out, "--steps", 2, "--replicas", 2)
    assert code == 0, text
    assert "spread over 2 runs" in text
    monkeypatch.setitem(sys.modules, "ot", None)
    code, text = run(monkeypatch, capsys, "evaluate", out, *files, "--truth", 5)
    assert code == 0, text
    assert "No certificate" in text
    assert "pip install 'torchspot[exact]'" in text
    assert "true value" in text
    judged = json.loads((out / "evaluation.json").read_text())
    assert judged["certificate"] is None
    assert judged["spread"] >= 0
    assert judged["truth"] == 5


def test_evaluate_of_very_few_rows_says_why_there_is_no_certificate(files, tmp_path, monkeypatch, capsys):
    few = []
    for file in files:
        few.append(file.replace(".npy", "_few.npy"))
        np.save(few[-1], np.load(file)[:10])
    assert run(monkeypatch, capsys, "fit", *few, "--out", tmp_path / "r", "--steps", 2)[0] == 0
    code, text = run(monkeypatch, capsys, "evaluate", tmp_path / "r", *few)
    assert code == 0, text
    assert "No certificate: a certificate needs at least 20 rows" in text
    assert (tmp_path / "r" / "evaluation.json").exists()


def test_points_are_moved_by_a_map(files, tmp_path, monkeypatch, capsys):
    out, moved = tmp_path / "run", tmp_path / "moved.parquet"
    fit = ["fit", *files, "--out", out, "--steps", 5, "--cost", "squared_euclidean", "--map"]
    code, text = run(monkeypatch, capsys, *fit, "both")
    assert code == 0, text
    points = np.load(files[0])[:7]
    pyarrow.parquet.write_table(pyarrow.table({"a": points[:, 0], "b": points[:, 1]}), tmp_path / "new.parquet")
    code, text = run(monkeypatch, capsys, "transport", out, tmp_path / "new.parquet", "--out", moved)
    assert code == 0, text
    assert "partners of 7 points" in text
    table = pyarrow.parquet.read_table(moved)
    assert table.column_names == ["x2_0", "x2_1"]
    expected = torchspot.load(out).transport(points)
    assert np.allclose(np.stack([column.to_numpy() for column in table.columns], 1), expected)

    back = tmp_path / "back.npz"
    code, text = run(monkeypatch, capsys, "transport", out, files[1], "--start", 2, "--mean", "--out", back)
    assert code == 0, text
    assert np.load(back)["x1"].shape == (2000, 2)
    code, text = run(monkeypatch, capsys, "transport", out, files[0], "-n", 3, "--out", tmp_path / "n.csv")
    assert code == 0, text
    drawn = pyarrow.csv.read_csv(tmp_path / "n.csv")
    assert drawn["row"].to_pylist()[:5] == [0, 0, 0, 1, 1]

    np.save(tmp_path / "far.npy", points + 1e3)
    code, text = run(monkeypatch, capsys, "transport", out, tmp_path / "far.npy", "--out", back)
    assert code == 0, text
    assert "7 of 7 points lie outside" in text

    code, text = run(monkeypatch, capsys, "sample", out, "-n", 5, "--out", tmp_path / "s.npz")
    assert code == 0, text
    code, text = run(monkeypatch, capsys, "evaluate", out, *files)
    assert code == 0, text
    judged = json.loads((out / "evaluation.json").read_text())
    assert "moves rows of data set 1 and of data set 2" in judged["certificate"]["covers"]


WRONG_MOVES = {
    "a plan of pairs": ([], ["POINTS"], "pairs samples of its own"),
    "the other direction": (
        ["--map", "forward"],
        ["POINTS", "--start", "2"],
        "moves points of data set 1, not of data set 2",
    ),
    "mean and draws": (["--map", "forward"], ["POINTS", "--mean", "-n", "3"], "leave out -n"),
    "points of another size": (["--map", "forward"], ["WIDE"], "data set 1 of the fit had (2,)"),
    "no file": (["--map", "forward"], ["missing.npy"], "missing.npy"),
}


@pytest.mark.parametrize("name", WRONG_MOVES)
def test_moves_that_cannot_be_say_why(name, files, tmp_path, monkeypatch, capsys):
    fit, move, words = WRONG_MOVES[name]
    assert run(monkeypatch, capsys, "fit", *files, "--out", tmp_path / "r", "--steps", 2, *fit)[0] == 0
    np.save(tmp_path / "wide.npy", np.zeros((5, 3)))
    places = {"POINTS": files[0], "WIDE": str(tmp_path / "wide.npy")}
    given = [places.get(word, word) for word in move]
    code, text = run(monkeypatch, capsys, "transport", tmp_path / "r", *given, "--out", tmp_path / "m.npz")
    assert code == 2
    assert words in " ".join(text.split())
    assert not (tmp_path / "m.npz").exists()


def test_a_barycenter_of_three_files(files, tmp_path, monkeypatch, capsys):
    fit = ["fit", *files, files[0], "--out", tmp_path / "r", "--steps", 3]
    code, text = run(monkeypatch, capsys, *fit, "--cost", "barycentric:2,1,1")
    assert code == 0, text
    assert "barycentric(0.5, 0.25, 0.25)" in text
    assert (tmp_path / "r" / "barycenter.png").stat().st_size > 5000
    code, text = run(monkeypatch, capsys, *fit, "--cost", "barycentric:2,x,1")
    assert code == 2
    assert "barycentric needs numbers" in text


def test_three_data_sets_and_a_p_norm(files, tmp_path, monkeypatch, capsys):
    code, text = run(
        monkeypatch, capsys, "fit", *files, files[0], "--cost", "p_norm:1", "--out", tmp_path / "r", "--steps", 3
    )
    assert code == 0, text
    assert "sum_over_pairs(p_norm(1))" in text


def test_demo(tmp_path, monkeypatch, capsys):
    demo = ["demo", "--out", tmp_path / "demo", "--n", 1000, "--steps", 20]
    for more in ([], [], ["--resume"]):
        code, text = run(monkeypatch, capsys, *demo, *more)
        assert code == 0, text
        assert "true value" in text
        (tmp_path / "demo" / "evaluation.json").write_text("{}")
    assert (tmp_path / "demo" / "convergence.png").exists()
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    code, text = run(monkeypatch, capsys, *demo)
    assert code == 2
    assert (tmp_path / "demo" / "plan.safetensors").exists()


def test_a_folder_claimed_by_a_call_that_failed_is_free(files, tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, capsys, "fit", files[0], "missing.npy", "--out", tmp_path / "r", "--steps", 2)[0] == 2
    (tmp_path / "r" / ".run.json.1.part").write_text("half")
    code, text = run(monkeypatch, capsys, "fit", *files, "--out", tmp_path / "r", "--steps", 2)
    assert code == 0, text


BAD = {
    "an unknown cost": (
        ["fit", "A", "B", "--out", "OUT", "--cost", "manhattan"],
        "no cost 'manhattan'. Choose one of: euclidean",
    ),
    "a cost that is no norm": (["fit", "A", "B", "--out", "OUT", "--cost", "p_norm:x"], "p_norm needs numbers"),
    "an unknown preset": (
        ["fit", "A", "B", "--out", "OUT", "--preset", "best"],
        "no preset 'best'. Choose one of: default, paper",
    ),
    "no such device": (["fit", "A", "B", "--out", "OUT", "--device", "cuda:9"], "no device 'cuda:9' here"),
    "no such file": (["fit", "A", "missing.npy", "--out", "OUT"], "no file or folder missing.npy"),
    "a type of file that cannot be written": (
        ["sample", "RUN", "--out", "pairs.docx"],
        "Choose one of: .npz, .parquet, .csv",
    ),
    "no run": (["evaluate", "nowhere", "A", "B"], "there is no file nowhere/plan.safetensors"),
    "no output folder": (["fit", "A", "B"], "Missing option"),
    "an unknown option": (["fit", "A", "B", "--out", "OUT", "--epochs", "3"], "No such option"),
    "a taken folder": (["fit", "A", "B", "--out", "TAKEN"], "already holds other files"),
    "nothing to resume": (["fit", "A", "B", "--out", "TAKEN", "--resume"], "no run to resume"),
    "a mistyped folder to resume": (["fit", "A", "B", "--out", "OUT", "--resume"], "no run to resume"),
    "brackets in a name": (["fit", "A", "x[/b].npy", "--out", "OUT"], "no file or folder x[/b].npy"),
    "a file for a folder": (["fit", "A", "B", "--out", "A"], "is a file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_exits_with_2_and_says_why(name, files, tmp_path, monkeypatch, capsys):
    (tmp_path / "taken").mkdir()
    for mine in ("notes.txt", ".notes.part"):
        (tmp_path / "taken" / mine).write_text("mine")
    names = {"A": files[0], "B": files[1], "OUT": tmp_path / "out", "TAKEN": tmp_path / "taken", "RUN": tmp_path}
    arguments, message = BAD[name]
    code, text = run(monkeypatch, capsys, *(names.get(a, a) for a in arguments))
    assert code == 2
    assert message in " ".join(text.split())
    assert sorted(file.name for file in (tmp_path / "taken").iterdir()) == [".notes.part", "notes.txt"]


def test_another_run_is_not_overwritten_or_mixed_up(files, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    fit = ["fit", *files, "--out", out, "--steps", 4]
    assert run(monkeypatch, capsys, *fit)[0] == 0
    before = (out / "plan.safetensors").read_bytes()
    code, text = run(monkeypatch, capsys, *fit)
    assert code == 2
    assert "already holds another run" in text
    code, text = run(monkeypatch, capsys, *fit, "--seed", 5, "--resume")
    assert code == 2
    assert "was begun with seed = 0, not 5" in text
    assert (out / "plan.safetensors").read_bytes() == before
    assert run(monkeypatch, capsys, *fit, "--resume")[0] == 0


def test_a_damaged_plan_exits_with_1(files, tmp_path, monkeypatch, capsys):
    (tmp_path / "plan.safetensors").write_bytes(b"not a plan")
    code, text = run(monkeypatch, capsys, "evaluate", tmp_path, *files)
    assert code == 1
    assert "damaged or was not written by torchspot" in text


def test_too_little_disk_exits_with_1(files, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(storage, "free_space", lambda folder: 10)
    code, text = run(monkeypatch, capsys, "fit", *files, "--out", tmp_path / "run", "--steps", 4)
    assert code == 1
    assert "not enough disk space" in text


def test_a_folder_that_cannot_be_made_exits_with_1_and_is_named(files, tmp_path, monkeypatch, capsys):
    code, text = run(monkeypatch, capsys, "fit", *files, "--out", f"{files[0]}/run", "--steps", 4)
    assert code == 1
    assert f"{files[0]}/run: Not a directory" in text and "Traceback" not in text


def test_a_plan_that_cannot_be_drawn_is_saved_all_the_same(files, tmp_path, monkeypatch, capsys):
    def fail(*arguments):
        raise CorruptFile("a.npy was changed while it was read.")

    monkeypatch.setattr(fitting, "draw_run", fail)
    code, text = run(monkeypatch, capsys, "fit", *files, "--out", tmp_path / "run", "--steps", 4)
    assert code == 1
    assert f"the plan is saved in {tmp_path / 'run'}, but could not be drawn and judged: a.npy was changed" in text
    assert len(torchspot.load(tmp_path / "run").sample(3)) == 2


def test_help_has_examples(monkeypatch, capsys):
    for command in ("fit", "sample", "evaluate"):
        code, text = run(monkeypatch, capsys, command, "--help")
        assert code == 0
        assert f"torchspot {command}" in text
        assert "Example:" in text


def start(files: list[str], out: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "torchspot", "fit", *files, "--out", str(out), "--steps", "900", "--batch", "64"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--checkpoint-every", "0", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def saved_step(out: Path) -> int:
    """The step of the state that is saved; −1 if there is none yet."""
    file = checkpoint.checkpoint_file(out)
    return storage.read(file, checkpoint.KIND, checkpoint.VERSION)["training"]["step"] if file.exists() else -1


def wait_for_step(out: Path, step: int) -> None:
    """Until the run has saved a state at this step or later."""
    for _ in range(1200):
        if saved_step(out) >= step:
            return
        time.sleep(0.05)
    raise AssertionError("the run saved nothing for a minute")


def test_killed_or_stopped_at_any_moment_it_goes_on_to_the_same_plan(files, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    reference = start(files, whole)
    moments = random.Random(time.time_ns())
    killed = start(files, broken)
    wait_for_step(broken, moments.randrange(0, 60))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    left_at = saved_step(broken)
    again = start(files, broken, "--resume")
    wait_for_step(broken, max(left_at + 1, moments.randrange(75, 140)))
    time.sleep(moments.random() * 0.3)
    again.send_signal(signal.SIGKILL)
    again.communicate()
    left_at = saved_step(broken)  # the next run must be under way before it is stopped
    stopped = start(files, broken, "--resume")
    wait_for_step(broken, max(left_at + 1, moments.randrange(150, 200)))
    stopped.send_signal(signal.SIGINT)
    text, _ = stopped.communicate()
    assert stopped.returncode == 1, text
    assert "What was done is saved" in text
    assert "--resume" in text
    assert "Traceback" not in text
    last = start(files, broken, "--resume")
    text, _ = last.communicate()
    assert last.returncode == 0, text
    assert reference.communicate() is not None
    assert reference.returncode == 0
    one, other = (torchspot.load(folder) for folder in (whole, broken))
    assert one.facts == other.facts
    for a, b in zip(one.generator.parameters(), other.generator.parameters(), strict=True):
        assert torch.equal(a, b)
    histories = [
        [json.loads(line)["cost"] for line in (f / "history.jsonl").read_text().splitlines()] for f in (whole, broken)
    ]
    assert histories[0] == histories[1]
    assert sorted(f.name for f in broken.iterdir()) == sorted(f.name for f in whole.iterdir())


def test_replicas_and_engines(files, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    options = ["--steps", "12", "--replicas", "3", "--engine", "eager", "--device", "cpu"]
    code, text = run(monkeypatch, capsys, "fit", *files, "--out", out, *options)
    assert code == 0, text
    assert "spread over 3 runs" in text
    assert "eager on cpu" in text
    assert len(torchspot.load(out).plans) == 3
    assert run(monkeypatch, capsys, "evaluate", out, *files)[0] == 0
    code, text = run(monkeypatch, capsys, "fit", *files, "--out", tmp_path / "other", "--engine", "steam")
    assert code == 2
    assert "no engine 'steam'" in text


@pytest.fixture
def entropic(tmp_path):
    """Two files of one column each."""
    rng = np.random.default_rng(0)
    names = [tmp_path / "x.npy", tmp_path / "y.npy"]
    for name, mean in zip(names, (0.0, 2.0), strict=True):
        np.save(name, rng.normal(mean, 1.0, size=(800, 1)))
    return names


def test_fit_with_epsilon_then_density(entropic, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    quickly = ("--steps", 20, "--batch", 64, "--cost", "squared_euclidean")
    code, text = run(monkeypatch, capsys, "fit", *entropic, "--epsilon", 1, "--out", out, *quickly)
    assert code == 0, text
    for words in ("entropy of the plan", "entropic weight ε", "density.png"):
        assert words in text
    assert (out / "density.png").stat().st_size > 5000
    plan = torchspot.load(out)
    assert plan.facts["epsilon"] == 1

    code, text = run(monkeypatch, capsys, "density", out, "--grid", 40)
    assert code == 0, text
    table = pyarrow.parquet.read_table(out / "density.parquet")
    assert table.column_names == ["x1_0", "x2_0", "log_density", "density"]
    assert table.num_rows == 1600
    x, y, log_density, density = (table[name].to_numpy() for name in table.column_names)
    assert np.allclose(plan.log_density(x, y).numpy(), log_density)
    assert np.allclose(np.exp(log_density), density)
    share = float(text.split("the grid holds ")[1].split()[0])
    assert share == pytest.approx(1, abs=0.05)

    grid = tmp_path / "grid.csv"
    code, text = run(monkeypatch, capsys, "density", out, "--grid=-1:1:5,0:3:4", "--out", grid)
    assert code == 0, text
    table = pyarrow.csv.read_csv(grid)
    assert table.num_rows == 20
    assert sorted(set(table["x2_0"].to_pylist())) == [0, 1, 2, 3]
    assert grid.with_suffix(".png").exists()

    code, text = run(
        monkeypatch, capsys, "density", out, "--at", entropic[0], "--at", entropic[1], "--out", tmp_path / "at.npz"
    )
    assert code == 0, text
    arrays = np.load(tmp_path / "at.npz")
    assert np.allclose(arrays["log_density"], plan.log_density(arrays["x1"], arrays["x2"]).numpy())
    assert arrays["x1"].shape == (800, 1)

    code, text = run(monkeypatch, capsys, "evaluate", out, *entropic)
    assert code == 0, text
    assert "entropic weight ε" in text
    assert "the plan is wrong" not in text


def test_bad_grids_and_plans_without_a_density_are_named(entropic, tmp_path, monkeypatch, capsys):
    out, plain = tmp_path / "run", tmp_path / "plain"
    quickly = ("--steps", 2, "--batch", 8)
    assert run(monkeypatch, capsys, "fit", *entropic, "--epsilon", 1, "--out", out, *quickly)[0] == 0
    assert run(monkeypatch, capsys, "fit", *entropic, "--out", plain, *quickly)[0] == 0
    cases = [
        ((plain,), "has no density. Fit one that has: torchspot fit … --epsilon 1"),
        ((out, "--grid", "many"), "neither a number of points nor low:high:points, low < high"),
        ((out, "--grid", "0:1:5"), "names 1 coordinates, and a joint sample of this plan has 2"),
        ((out, "--grid=3:1:5,0:1:5"), "low < high"),
        ((out, "--grid", 5, "--at", entropic[0]), "either --grid or --at"),
        ((out, "--grid", 1), "at least 2 along each coordinate"),
        ((out, "--grid", 9999), "at most 10000000 in all"),
        ((out, "--at", entropic[0]), "Give --at FILE once for each"),
        ((out, "--out", tmp_path / "density.txt"), "there is no type of file"),
    ]
    for arguments, words in cases:
        code, text = run(monkeypatch, capsys, "density", *arguments)
        assert code == 2, text
        assert words in text.replace("\n", " ")
    code, text = run(monkeypatch, capsys, "fit", *entropic, "--epsilon", 0, "--out", tmp_path / "zero")
    assert code == 2
    assert "--epsilon must be above 0, and is 0.0. Leave it out" in text
    assert not (tmp_path / "zero").exists()
    code, text = run(monkeypatch, capsys, "fit", *entropic, "--epsilon", 2, "--out", out, "--resume", *quickly)
    assert code == 2
    assert "begun with epsilon = 1.0" in text
