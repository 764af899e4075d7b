"""Several processes train together as one process would that draws what all of them draw."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from distributed import worker
from torchspot import SPOT, engines
from torchspot.errors import InvalidArgument
from torchspot.training.checkpoint import checkpoint_file
from torchspot.training.loop import _interruptible
from torchspot.training.meeting import local_rank
from torchspot.training.players import Draw, Turn
from torchspot.types import Parts

HERE = Path(__file__).parent


def torchrun(
    processes: int, *arguments, restarts: int = 0, group: bool = False, endpoint: str | None = None
) -> subprocess.Popen:
    """On one machine, or (as one of two that meet at the endpoint) on what passes for one."""
    places = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=test"]
    command = [sys.executable, "-m", "torch.distributed.run", *(places if endpoint else ["--standalone"])]
    command += [
        f"--nproc-per-node={processes}",
        f"--max-restarts={restarts}",
        "--monitor-interval=0.2",
        *map(str, arguments),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "200"}
    pipe = subprocess.PIPE
    err = subprocess.STDOUT
    return subprocess.Popen(command, stdout=pipe, stderr=err, text=True, env=environment, start_new_session=group)


def finished(process: subprocess.Popen) -> str:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


class Joined(engines.Eager):
    """One process that draws what several would, and goes down the mean of their losses."""

    def __init__(self, count: int) -> None:
        super().__init__("cpu", dtype=torch.float64)
        self.count = count

    def prepare(self, turn):
        mine = turn.player.draw
        draws = [Draw(mine.key._replace(rank=k), *mine.streams, device=mine.device) for k in range(self.count)]
        loss, move = turn.parts()

        class Step:
            how = "joined"

            def __call__(self):
                turn.advance()
                for draw in draws:
                    draw.advance()
                turn.update(Parts(lambda batch: torch.stack([loss(draw()) for draw in draws]).mean(), move))

        return Step()


@pytest.mark.parametrize("processes", [2, 4])
def test_ranks_stay_equal_and_do_what_one_process_with_all_batches_does(processes, tmp_path, monkeypatch):
    said = finished(torchrun(processes, HERE / "worker.py", tmp_path, "arrays"))
    assert f"eager on cpu, {processes} processes" in said
    ranks = [dict(np.load(tmp_path / f"{k}.npz")) for k in range(processes)]
    for other in ranks[1:]:
        assert all(np.array_equal(ranks[0][name], other[name]) for name in ranks[0])
    monkeypatch.setattr(Turn, "update", Turn.update)
    steps: dict[str, list[np.ndarray]] = {}
    worker.noting(steps)
    joined = worker.estimator(Joined(processes)).fit(*worker.data())
    assert {name: len(taken) for name, taken in steps.items()} == {name: len(ranks[0][name]) for name in steps}
    for name, taken in steps.items():
        assert len(taken) >= worker.STEPS
        np.testing.assert_allclose(np.stack(taken), ranks[0][name], rtol=0, atol=1e-9)
    assert joined.distance_.value == pytest.approx(float(ranks[0]["distance"]), abs=1e-9)
    alone = worker.estimator(engines.Eager("cpu", dtype=torch.float64)).fit(*worker.data())
    assert abs(alone.distance_.value - joined.distance_.value) > 1e-6


def test_streams_that_differ_between_processes_still_give_one_game(tmp_path):
    finished(torchrun(2, HERE / "worker.py", tmp_path, "stream"))
    ranks = [dict(np.load(tmp_path / f"{k}.npz")) for k in range(2)]
    assert all(np.array_equal(ranks[0][name], ranks[1][name]) for name in ranks[0])


def command_line(folder: Path, out: Path, steps: int) -> list[str]:
    for k, x in enumerate(worker.data()):
        np.save(folder / f"{k}.npy", x)
    options = ["--steps", str(steps), "--batch", "32", "--checkpoint-every", "0", "--device", "cpu"]
    return ["-m", "torchspot", "fit", str(folder / "0.npy"), str(folder / "1.npy"), "--out", str(out), *options]


def wait_for_a_second_checkpoint(out: Path) -> None:
    deadline = time.monotonic() + 120
    first = None
    while time.monotonic() < deadline:
        if checkpoint_file(out).exists():
            written = checkpoint_file(out).stat().st_mtime_ns
            first = first or written
            if written != first:
                return
        time.sleep(0.02)
    raise AssertionError("no second checkpoint")


def kill_one(run: subprocess.Popen, out: Path, rank: int | None) -> None:
    """Once there is a second checkpoint, SIGKILL to the process of this rank, or to the only one of the run."""
    wait_for_a_second_checkpoint(out)
    for process in Path("/proc").iterdir():
        try:
            variables = (process / "environ").read_bytes().split(b"\0") if process.name.isdigit() else []
            mine = (process / "stat").read_text().rsplit(")", 1)[1].split()[1] if variables else ""
        except OSError:
            continue
        if mine == str(run.pid) and (rank is None or f"RANK={rank}".encode() in variables):
            os.kill(int(process.name), signal.SIGKILL)
            return
    raise AssertionError("no such process")


def costs_of(out: Path) -> list[tuple[int, float]]:
    records = map(json.loads, (out / "history.jsonl").read_text().splitlines())
    return [(record["step"], record["cost"]) for record in records]


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes under /proc")
def test_a_killed_worker_ends_the_run_with_a_message_and_restarts_resume_to_the_same_result(tmp_path):
    steps = 900
    straight = torchrun(2, *command_line(tmp_path, tmp_path / "straight", steps))
    said = finished(straight)
    assert said.count("plan.safetensors") == 1
    killed = torchrun(2, *command_line(tmp_path, tmp_path / "killed", steps))
    kill_one(killed, tmp_path / "killed", rank=1)
    said, _ = killed.communicate(timeout=300)
    assert killed.returncode != 0
    assert "lost touch with another one" in said or "told to end, as happens when another one has died" in said
    assert "goes on from the last checkpoint" in said and "--max-restarts" in said
    assert not (tmp_path / "killed" / "plan.safetensors").exists()
    again = torchrun(2, *command_line(tmp_path, tmp_path / "killed", steps), "--resume")
    finished(again)
    restarted = torchrun(2, *command_line(tmp_path, tmp_path / "restarted", steps), restarts=1)
    kill_one(restarted, tmp_path / "restarted", rank=0)
    finished(restarted)
    assert costs_of(tmp_path / "straight") == costs_of(tmp_path / "killed") == costs_of(tmp_path / "restarted")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a launch is told by its process number alone")
def test_a_restart_does_not_take_over_a_run_that_was_there_before(tmp_path):
    command = command_line(tmp_path, tmp_path / "out", 20)
    finished(torchrun(2, *command))
    before = costs_of(tmp_path / "out")
    record = (tmp_path / "out" / "checkpoint.safetensors").stat().st_mtime_ns
    again = torchrun(2, *command, restarts=1)
    said, _ = again.communicate(timeout=300)
    assert again.returncode != 0 and "already holds another run" in said
    assert costs_of(tmp_path / "out") == before
    assert (tmp_path / "out" / "checkpoint.safetensors").stat().st_mtime_ns == record


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes under /proc")
def test_ctrl_c_is_said_once_and_the_run_goes_on(tmp_path):
    command = command_line(tmp_path, tmp_path / "out", 1500)
    run = torchrun(2, *command, group=True)
    wait_for_a_second_checkpoint(tmp_path / "out")
    os.killpg(run.pid, signal.SIGINT)
    said, _ = run.communicate(timeout=120)
    assert said.count("Stopped at step") == 1 and "lost touch" not in said
    finished(torchrun(2, *command, "--resume"))


def test_commands_that_need_one_process_run_in_one(tmp_path):
    finished(torchrun(2, *command_line(tmp_path, tmp_path / "out", 20)))
    sample = ["sample", str(tmp_path / "out"), "-n", "7", "--out", str(tmp_path / "pairs.npz")]
    said = finished(torchrun(2, "-m", "torchspot", *sample))
    assert said.count("7 joint samples are in") == 1


def test_a_failure_of_the_first_process_is_said_by_it_and_ends_all(tmp_path):
    command = command_line(tmp_path, tmp_path / "out", 10)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "something.txt").write_text("")
    run = torchrun(2, *command)
    said, _ = run.communicate(timeout=120)
    assert run.returncode != 0
    assert "already holds other files" in said


def test_without_other_processes_it_is_said_how_to_start_them(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidArgument, match="torchrun --nproc-per-node=2"):
        engines.Distributed()


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert local_rank() == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(InvalidArgument, match="1 GPU and was asked for more"):
        local_rank()


def test_a_fit_by_itself_among_several_processes_is_warned_of(monkeypatch):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(UserWarning, match="one of 2 processes .* engine=engines.Distributed"):
        SPOT(steps=2, batch_size=16).fit(*worker.data())


def by_hand(case: str, folder: Path | None = None, of_each: Sequence[dict[str, str]] = ({}, {})) -> list[str]:
    """What each process says, started without torchrun, which would end the others when one dies.

    Args:
        case: a function of faults.py.
        folder: that they may use.
        of_each: what their environments hold besides, one for each process.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(HERE.parent)}
    shared |= {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(len(of_each)),
        "FOLDER": str(folder),
    }
    command = [sys.executable, HERE / "faults.py", case]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    running = [subprocess.Popen(command, env=shared | {"RANK": str(k)} | own, **pipes) for k, own in enumerate(of_each)]
    try:
        return [process.communicate(timeout=120)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_an_error_of_one_process_is_heard_by_the_others_also_if_it_is_caught():
    first, second = by_hand("fails_alone")
    assert "lost touch with another one" in first and "has left the others" in first
    assert "ValueError: bad luck" in second and "has left the others" in second


def test_an_error_that_all_see_has_one_class_and_another_run_can_follow():
    first, second = by_hand("diverges")
    assert "Diverged at" in first and "far too far" in first
    assert "Diverged at" in second and "the first of 2 processes ended the run: far too far" in second
    assert first.splitlines()[-1].split()[2] == second.splitlines()[-1].split()[2]


def test_what_a_callback_changes_reaches_all_processes():
    ends = [said.splitlines()[-1].split()[2] for said in by_hand("changes")]
    assert ends[0] == ends[1]


def test_a_record_that_cannot_be_sent_is_said():
    first, second = by_hand("unsendable")
    assert "pickle" in first
    assert "the first of 2 processes ended the run: " in second and "pickle" in second


def test_where_one_process_cannot_compile_none_does_and_they_stay_together():
    for said in by_hand("compiles_in_part"):
        compiled, plain = said.splitlines()[-2:]
        assert "not compiled, as compiling failed" in compiled
        assert compiled.split()[1] == plain.split()[1]


def test_processes_that_refused_bad_input_can_meet_again():
    ends = [said.splitlines() for said in by_hand("bad_input")]
    assert [len([line for line in lines if line.endswith("InvalidArgument")]) for lines in ends] == [3, 3]
    assert ends[0][-1].split()[1:] == ends[1][-1].split()[1:]


def test_a_stream_is_dealt_out_and_its_judges_are_never_drawn():
    first, second = ({line.split()[1]: line.split()[2:] for line in said.splitlines()} for said in by_hand("streams"))
    for name in ("alike", "divided"):
        judges, drawn = set(first[name][:2048]), [set(lines[name][2048:]) for lines in (first, second)]
        assert set(second[name][:2048]) == judges and len(judges) == 2048
        assert [len(some) for some in drawn] == [500, 500]
        assert not drawn[0] & drawn[1] and not judges & (drawn[0] | drawn[1])


def test_callbacks_of_baselines_are_called_by_the_first_process_alone():
    first, second = (said.splitlines()[-1] for said in by_hand("baseline"))
    assert first == "0 called 4" and second == "1 called 0"


def test_what_an_adaptation_says_of_the_data_is_the_same_in_all_processes():
    first, second = (said.splitlines()[-1].split(maxsplit=1)[1] for said in by_hand("shares"))
    assert first == second


def test_a_run_with_statistics_of_each_process_resumes_to_the_same_state_on_all(tmp_path):
    ends = [said.splitlines()[-1] for said in by_hand("adapts", tmp_path)]
    assert ends == [f"{k} stopped at 4, ended at 8 of 8: True" for k in (0, 1)]


def test_each_process_may_have_rows_of_its_own(tmp_path):
    distances = set()
    for said in by_hand("parts", tmp_path):
        ended, refused = said.splitlines()[-2:]
        distances |= set(ended.split()[1:])
        assert "was begun with other data" in refused
    assert len(distances) == 1


def test_what_differs_between_processes_is_named_by_all():
    for said in by_hand("unlike"):
        seed, batch, steps, cost = said.splitlines()
        assert "InvalidArgument: process 1 of 0 to 1 has other seed than the first" in seed
        assert "has other batch size than the first" in batch
        assert "has 91 steps to do and the first 90" in steps
        assert "has other cost than the first" in cost


def test_processes_that_were_given_other_kinds_of_data_say_so(tmp_path):
    for said in by_hand("kinds", tmp_path):
        stream, folder = said.splitlines()
        assert "InvalidArgument: process 1 of 0 to 1 was given a stream where the first has rows" in stream
        assert "process 1 of 0 to 1 was given a folder to resume= and process 0 none" in folder


def test_what_sizes_and_judges_a_run_is_of_all_rows_where_each_process_has_its_own():
    first, second = ([float(mean) for mean in said.split()[1:]] for said in by_hand("halves"))
    assert first[:2] == second[:2]
    assert all(abs(mean) < 0.1 for mean in first[:2])
    assert first[2] < -0.7 and second[2] > 0.7


def test_columns_in_another_order_in_one_process_are_refused_by_all():
    for said in by_hand("columns"):
        assert "InvalidArgument: data set 1 of process 1 has the columns of data set 1 in another order: b, a" in said


def test_marginal_weights_are_those_of_the_first_process():
    first, second = (said.split(maxsplit=1)[1] for said in by_hand("rounds"))
    assert first == second


def test_what_one_process_refuses_alone_does_not_train_with_something_else():
    first, second = by_hand("refuses_alone")
    assert "lost touch with another one" in first and "trained" not in first
    assert "replicas must be" in second and "has left the others" in second and "trained" not in second


def test_processes_meet_whatever_torchrun_counted_on_their_machines():
    ends = by_hand("turns", of_each=[{"TORCHELASTIC_RESTART_COUNT": count} for count in "01"])
    assert [said.split()[0] for said in ends] == ["0", "1"] and all(len(said.split()) == 3 for said in ends)


def test_the_first_process_of_each_machine_opens_data_before_its_others():
    ends = by_hand("turns", of_each=[{"LOCAL_RANK": rank} for rank in "0101"])
    begun, ended = zip(*([float(time) for time in said.split()[1:]] for said in ends), strict=True)
    assert ended[0] <= begun[2] and ended[2] <= min(begun[1], begun[3])


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes under /proc")
def test_a_restart_on_one_of_two_machines_goes_on_with_the_run(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"
    command = command_line(tmp_path, tmp_path / "straight", 600)
    finished(torchrun(2, *command))
    command[command.index(str(tmp_path / "straight"))] = str(tmp_path / "restarted")
    runs = [torchrun(1, *command, restarts=3, endpoint=endpoint) for _ in range(2)]
    kill_one(runs[1], tmp_path / "restarted", rank=None)
    for run in runs:
        finished(run)
    assert costs_of(tmp_path / "restarted") == costs_of(tmp_path / "straight")


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes under /proc")
def test_processes_end_when_torchrun_is_gone(tmp_path):
    run = torchrun(2, *command_line(tmp_path, tmp_path / "out", 100_000))
    wait_for_a_second_checkpoint(tmp_path / "out")
    run.kill()
    said, _ = run.communicate(timeout=60)  # which ends when nobody holds the pipe any more
    assert "that started this process is gone" in said
    assert not (tmp_path / "out" / "plan.safetensors").exists()


def test_of_several_processes_the_others_leave_the_third_ctrl_c_to_whoever_had_it_before():
    with _interruptible(rank=1) as interrupted:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


LAUNCHED = """
import os, subprocess, sys
from torchspot.training.meeting import launch

sys.stdout.write(f"{launch()}\\n")
sys.stdout.flush()
if "--inner" not in sys.argv:
    subprocess.run([sys.executable, __file__, "--inner"], check=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a launch is told by its process number alone")
def test_a_launch_is_the_same_for_what_its_processes_start(tmp_path):
    (tmp_path / "says.py").write_text(LAUNCHED)
    said = finished(torchrun(2, tmp_path / "says.py")).splitlines()
    assert len(said) == 4 and len(set(said)) == 1 and "None" not in said
    assert set(finished(torchrun(1, tmp_path / "says.py")).splitlines()) != set(said)


@pytest.mark.skipif(sys.platform != "linux", reason="a killed process does not leave its workers behind there either")
@pytest.mark.parametrize("case", ["killed", "killed_beside_a_stream"])
def test_workers_of_a_killed_process_end_with_it_and_the_others_hear_of_it(case):
    first, _ = by_hand(case)
    assert "lost touch with another one" in first
    assert int(first.split("after ")[1].split()[0]) < 60
