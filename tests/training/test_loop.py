"""The loop: players, turns, averages, interruption, and going on bit for bit."""

import itertools
import signal

import pytest
import torch
from rich.console import Console
from torch import nn

from torchspot.errors import CorruptFile, Diverged, InvalidArgument
from torchspot.random import Key
from torchspot.training.callbacks import Checkpoint, Divergence, History, Progress, StopOnPlateau, TensorBoard
from torchspot.training.checkpoint import checkpoint_file, load_checkpoint
from torchspot.training.engine import Eager, choose_device
from torchspot.training.loop import Training, train
from torchspot.training.optimizers import Adam, OptimisticAdam
from torchspot.training.players import Draw, Player, Stream
from torchspot.training.schedules import Cosine


class Noise:
    shape = (2,)
    device = torch.device("cpu")
    repeatable = True

    def draw(self, size, generator):
        return torch.randn(size, 2, generator=generator)


class Game:
    """x minimises and y maximises x·y + noise, with a batch-norm-like buffer on the side of x."""

    def __init__(self, steps=40, explode_at=None, repeats=lambda step: 1 + step % 3):
        self.x, self.y = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        for k, layer in enumerate((self.x, self.y)):
            nn.init.constant_(layer.weight, 0.5 + k)
        self.norm = nn.BatchNorm1d(2)
        self.calls = []
        self.explode_at = explode_at
        players = [
            self._player("y", (self.y,), -1, repeats),
            self._player("x", (nn.Sequential(self.x, self.norm),), 1, lambda step: 1, averaging=0.9),
        ]
        self.training = Training(players, steps)

    def _player(self, name, modules, sign, repeats, averaging=None):
        draw = Draw(Key(0, name), Stream(Noise(), 8, torch.float32), device=torch.device("cpu"))

        def loss(batch):
            self.calls.append(name)
            if self.explode_at is not None and self.calls.count("x") > self.explode_at:
                return sign * self.x.weight.sum() * float("nan")
            return sign * (self.norm(self.x(batch[0])) * self.y(batch[0])).mean()

        return Player(name, modules, OptimisticAdam(0.01), draw, loss, repeats, averaging=averaging)

    def run(self, *callbacks, log_every=5, measure=dict):
        train(self.training, engine=Eager("cpu"), callbacks=callbacks, log_every=log_every, measure=measure)
        return self

    def state(self):
        averaged = self.training.averaged("x")[0]
        return [t for m in (self.x, self.y, self.norm, averaged) for t in m.state_dict().values()]


def same(a: Game, b: Game) -> bool:
    return all(torch.equal(s, t) for s, t in zip(a.state(), b.state(), strict=True))


def test_players_take_turns_with_their_repeats():
    game = Game(steps=4).run()
    assert "".join(game.calls) == "yx" + "yyx" + "yyyx" + "yx"


def test_the_same_run_twice_is_the_same_bit_for_bit():
    assert same(Game().run(), Game().run())
    assert not same(Game().run(), Game(steps=39).run())


class Killed(Exception):
    """Stands for a process that dies."""


@pytest.mark.parametrize("moments", [(0,), (3,), (5, 9, 12), (1, 2, 3, 4, 33)])
def test_a_run_killed_at_any_moment_goes_on_to_the_same_result(moments, tmp_path):
    history = None
    for moment in [*moments, None]:
        game, history = Game(), History(tmp_path / "history.jsonl")
        checkpoint = Checkpoint(tmp_path, every_seconds=0)
        checkpoint.companions = (history,)
        load_checkpoint(tmp_path, game.training, checkpoint.companions)
        counter = itertools.count()

        def die(training, record, counter=counter, moment=moment):
            if next(counter) == moment:
                raise Killed

        try:
            game.run(history, checkpoint, die, log_every=1)
        except Killed:
            continue
    whole = Game().run()
    assert same(game, whole)
    assert [record["step"] for record in history.records] == list(range(41))
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == 41


def test_ctrl_c_saves_between_steps_and_goes_on_to_the_same_result(tmp_path):
    def press(training, record):
        if training.step == 15:
            signal.raise_signal(signal.SIGINT)

    game, before = Game(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="stopped at step 15 of 40"):
        game.run(press, Checkpoint(tmp_path, every_seconds=1e9))
    assert signal.getsignal(signal.SIGINT) is before
    again = Game()
    assert load_checkpoint(tmp_path, again.training, ())
    assert again.training.step == 15
    assert same(again.run(), Game().run())


def test_resuming_for_another_length_is_refused(tmp_path):
    Game(steps=10).run(Checkpoint(tmp_path))
    with pytest.raises(InvalidArgument, match="steps=10"):
        load_checkpoint(tmp_path, Game(steps=20).training)
    checkpoint_file(tmp_path).write_bytes(checkpoint_file(tmp_path).read_bytes()[:-3])
    with pytest.raises(CorruptFile, match="damaged"):
        load_checkpoint(tmp_path, Game(steps=10).training)
    assert not load_checkpoint(tmp_path / "nothing", Game().training)


def test_divergence_stops_with_the_step_and_keeps_the_last_good_checkpoint(tmp_path):
    game = Game(explode_at=12)
    with pytest.raises(Diverged, match=f"at step 12. The last good checkpoint is {checkpoint_file(tmp_path)}") as error:
        game.run(Divergence(tmp_path), Checkpoint(tmp_path, every_seconds=0))
    assert error.value.step == 12
    again = Game()
    load_checkpoint(tmp_path, again.training)
    assert again.training.step == 10
    assert all(torch.isfinite(t).all() for t in again.state())
    with pytest.raises(Diverged, match="No checkpoint was kept"):
        Game(explode_at=2).run(Divergence())


def test_ctrl_c_does_not_save_a_state_that_is_not_finite(tmp_path):
    game = Game(explode_at=3).run()
    Checkpoint(tmp_path).interrupted(game.training)
    assert not checkpoint_file(tmp_path).exists()


def test_the_average_is_the_exponential_average():
    layer = nn.Linear(1, 1, bias=False)
    values, expected, places = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0], None, itertools.count()
    for t, value in enumerate(values, start=1):
        weight = max(0.25, 1 / t)
        expected = value if expected is None else (1 - weight) * expected + weight * value
    draw = Draw(Key(0, "none"), device=torch.device("cpu"))

    def jump():
        nn.init.constant_(layer.weight, values[next(places)])

    player = Player(
        "p", (layer,), OptimisticAdam(), draw, lambda b: layer.weight.sum(), after_step=jump, averaging=0.75
    )
    training = Training([player], len(values))
    train(training, engine=Eager("cpu"))
    assert float(training.averaged("p")[0].weight) == pytest.approx(expected)
    with pytest.raises(InvalidArgument, match="keeps no average"):
        Game().training.averaged("y")


def test_buffers_are_copied_into_the_average():
    game = Game().run()
    assert torch.equal(game.training.averaged("x")[0][1].running_mean, game.norm.running_mean)
    assert game.norm.running_mean.abs().sum() > 0


def test_players_must_not_share_parameters():
    layer = nn.Linear(1, 1)
    draw = Draw(Key(0, "none"), device=torch.device("cpu"))
    players = [Player(n, (layer,), OptimisticAdam(), draw, lambda b: b) for n in "ab"]
    with pytest.raises(InvalidArgument, match="'a' and 'b' share"):
        Training(players, 1)


def test_plateau_stops_and_starts_afresh():
    values = itertools.chain([5.0, 4.0, 3.0], itertools.repeat(2.99))
    stop = StopOnPlateau(patience=3)
    game = Game().run(stop, measure=lambda: {"marginal_error": next(values)})
    assert game.training.step == 25
    assert "marginal_error has not improved for 3 logs" in game.training.stop_reason
    fresh = itertools.count(100, -1)
    assert Game().run(stop, measure=lambda: {"marginal_error": float(next(fresh))}).training.step == 40
    with pytest.raises(InvalidArgument, match="watches 'marginal_error'"):
        Game().run(StopOnPlateau())


def test_a_stopped_run_stays_stopped_when_resumed(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    Game().run(lambda training, record: training.stop("enough") if training.step == 10 else None, checkpoint)
    again = Game()
    load_checkpoint(tmp_path, again.training)
    assert again.run().training.step == 10


def test_batches_depend_on_seed_role_rank_and_number_alone():
    def draw(*key):
        return Draw(Key(*key), Stream(Noise(), 4, torch.float32), device=torch.device("cpu"))

    def batch(draw):
        draw.advance()
        return draw()[0]

    assert torch.equal(batch(draw(0, "a", 0)), batch(draw(0, "a", 0)))
    for other in ((1, "a", 0), (0, "b", 0), (0, "a", 1), (0, "a", 0, 1)):
        assert not torch.equal(batch(draw(0, "a", 0)), batch(draw(*other)))
    stream = draw(0, "a", 0)
    batches = [batch(stream) for _ in range(3)]
    jumped = draw(0, "a", 0)
    jumped.load_state_dict({"k": 2})
    assert torch.equal(batch(jumped), batches[2])
    assert not torch.equal(batches[0], batches[1])
    jumped.seed()
    assert torch.equal(jumped()[0], batches[2])


def test_what_lives_elsewhere_is_read_into_a_buffer_that_stays():
    draw = Draw(Key(0, "a"), Stream(Noise(), 4, torch.float32), device=torch.device("cpu"))
    draw._fetched = [0]
    draw.advance()
    first = draw()[0]
    kept = first.clone()
    draw.advance()
    assert draw()[0] is first
    assert not torch.equal(first, kept)
    near = Draw(Key(0, "a"), Stream(Noise(), 4, torch.float32), device=torch.device("cpu"))
    near.advance()
    assert torch.equal(near()[0], kept)


def test_rates_and_weights_are_right_across_blocks_and_after_resuming():
    game = Game(steps=3000, repeats=lambda step: 1)
    turn = game.training.turns[1]
    seen = []
    for _ in range(2100):
        turn.advance()
        seen.append(float(turn._table[turn._row][0, -1]))
        turn._row.add_(1)
    assert seen == pytest.approx([max(0.1, 1 / (t + 1)) for t in range(2100)], rel=1e-5)
    again = Game(steps=3000, repeats=lambda step: 1).training.turns[1]
    again.load_state_dict(turn.state_dict())
    again.advance()
    turn.advance()
    assert torch.equal(again._table[again._row], turn._table[turn._row])


def test_progress_shows_what_a_user_waits_for(tmp_path):
    file = (tmp_path / "out").open("w")
    console = Console(file=file, force_terminal=True, width=150)
    Game().run(Progress(console), measure=lambda: {"cost": 1.25, "marginal_error": 0.5})
    file.close()
    text = (tmp_path / "out").read_text()
    for word in ("40/40", "cost 1.25", "marginal error 0.5", "steps/s", "left"):
        assert word in text


def test_progress_that_goes_to_a_file_is_a_line_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr("torchspot.training.callbacks._SAID_EVERY", 0.0)
    with (tmp_path / "out").open("w") as file:
        Game().run(Progress(Console(file=file, width=80)), measure=lambda: {"cost": 1.25})
    lines = (tmp_path / "out").read_text().splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["0/40", "5/40", "10/40"]


def test_tensorboard_gets_the_numbers(tmp_path):
    Game(steps=5).run(TensorBoard(tmp_path), measure=lambda: {"cost": 1.0})
    assert list(tmp_path.glob("events*"))


def test_threads_are_put_back():
    torch.set_num_threads(2)
    seen = []
    Game(steps=1).run(lambda training, record: seen.append(torch.get_num_threads()))
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


def test_devices():
    assert choose_device("cpu").type == "cpu"
    for name in ("cuda:99", "toaster"):
        with pytest.raises(InvalidArgument, match=f"no device '{name}' here. Available: auto, cpu"):
            choose_device(name)


def test_winding_down_runs_the_rest_of_the_schedule_in_fewer_steps():
    """The rates are those that were planned, two steps apart."""
    draw = Draw(Key(0, "p"), Stream(Noise(), 8, torch.float32), device=torch.device("cpu"))
    layer = nn.Linear(2, 1)
    player = Player("p", (layer,), Adam(0.01, schedule=Cosine()), draw, lambda batch: layer(batch[0]).mean())
    training = Training([player], 20)
    turn = training.turns[0]
    for _ in range(4):
        turn.advance()
        turn.update()
    training.step = 4
    planned = 0.01 * Cosine()(torch.arange(4.0, 21.0, 2.0, dtype=torch.float64) / 20)
    training.wind_down("enough", 8)
    assert torch.allclose(turn._numbers()[:9, 0], planned)
    assert (training.steps, training.winding_down) == (12, "enough")
    training.wind_down("again", 1)
    assert training.winding_down == "enough"
    train(training, engine=Eager("cpu"))
    assert (training.step, training.stop_reason) == (12, "enough")
