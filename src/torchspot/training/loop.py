"""The one loop: players take turns, each stepping its own parameters down its own loss."""

__all__ = ["Training", "called_here", "train"]

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn

from torchspot.errors import Diverged, InvalidArgument
from torchspot.training.meeting import LostTouch
from torchspot.training.players import Player, Turn
from torchspot.training.ranks import Alone, Ranks, ranks_of
from torchspot.types import Callback, Engine, Record


class Training:
    """A game under way: what callbacks see and checkpoints hold.

    Args:
        players: who take turns, in this order.
        steps: of the game.
        beside: what else belongs to its state and may change under way, with `state_dict` and `load_state_dict`.
    """

    def __init__(self, players: Sequence[Player], steps: int, beside: Sequence[Any] = ()) -> None:
        _check_disjoint(players)
        self.planned, self.steps = steps, steps
        self.step = 0
        self.logged = -1
        self.seconds = 0.0
        self.stop_reason: str | None = None
        self.winding_down: str | None = None
        buffers = list({id(b): b for p in players for module in p.modules for b in module.buffers()}.values())
        self.turns = [Turn(p, sum(map(p.repeats, range(steps))), buffers) for p in players]
        self.beside = tuple(beside)
        self.ran: dict[str, str] = {}

    def stop(self, reason: str) -> None:
        """Asks for an end after this logged step."""
        self.stop_reason = reason

    def wind_down(self, reason: str, steps: int) -> None:
        """Asks for an end in so many steps, in which learning rates go down as they would have in all that was left.

        A run that would end before that anyway goes on as it is.
        """
        if self.winding_down is not None:
            return
        self.winding_down = reason
        if self.step + steps >= self.steps:
            return
        self.steps = self.step + steps
        for turn in self.turns:
            turn.wind_down(sum(map(turn.player.repeats, range(self.step, self.steps))))

    def first_bad_step(self) -> tuple[int, str] | None:
        """The step at which a number was first not finite, and whose it was. Reads from the device."""
        bad = [(k, turn) for turn in self.turns if (k := turn.first_bad()) is not None]
        return min(((turn.game_step(k), turn.player.name) for k, turn in bad), default=None)

    def averaged(self, name: str) -> tuple[nn.Module, ...]:
        """The modules of this player with averaged parameters."""
        turn = next(turn for turn in self.turns if turn.player.name == name)
        if turn.average is None:
            raise InvalidArgument(f"player {name!r} keeps no average. Give it averaging=….")
        return turn.average.modules()

    def decisions(self) -> dict[str, Any]:
        """What callbacks may have decided: when and why to end, and what lies beside the players."""
        decided = {"steps": self.steps, "stop_reason": self.stop_reason, "winding_down": self.winding_down}
        windings = [turn.winding for turn in self.turns]
        return decided | {"windings": windings, "beside": [thing.state_dict() for thing in self.beside]}

    def follow(self, decisions: dict[str, Any]) -> None:
        """Takes over what was decided, here or by the first of several processes."""
        self.steps, self.stop_reason = decisions["steps"], decisions["stop_reason"]
        self.winding_down = decisions["winding_down"]
        for turn, winding in zip(self.turns, decisions["windings"], strict=True):
            turn.wind(winding)
        for thing, state in zip(self.beside, decisions["beside"], strict=True):
            thing.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        turns = {turn.player.name: turn.state_dict() for turn in self.turns}
        facts = {"step": self.step, "planned": self.planned, "logged": self.logged, "seconds": self.seconds}
        return facts | {"decisions": self.decisions(), "turns": turns}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["planned"] != self.planned:
            raise InvalidArgument(
                f"the run to resume was planned for {state['planned']} steps, and this call asks for {self.planned}. "
                f"Resume with steps={state['planned']}, or start a new run."
            )
        self.step, self.logged, self.seconds = state["step"], state["logged"], state["seconds"]
        self.follow(state["decisions"])
        for turn in self.turns:
            turn.load_state_dict(state["turns"][turn.player.name])


def train(
    training: Training,
    *,
    engine: Engine,
    callbacks: Sequence[Callback] = (),
    measure: Callable[[], Record] = dict,
    log_every: int = 100,
) -> None:
    """Runs the game to its end, from wherever it stands; measures and calls back every `log_every` steps, 0 included.

    Ctrl-C ends it between two steps: callbacks may save, then KeyboardInterrupt is raised. A second one is not held up.
    Of several processes the first one measures and calls back, and where callbacks end the game or change it, the
    others follow: at logged steps all have its parameters and buffers, which are those that a checkpoint holds.
    """
    ranks = ranks_of(engine)
    with ranks.together():
        _train(training, engine, called_here(callbacks, ranks), measure, log_every, ranks)


def called_here(callbacks: Sequence[Callback], ranks: Alone | Ranks) -> Sequence[Callback]:
    """The callbacks that this process calls: all in the first one, elsewhere those that are `everywhere`."""
    return [callback for callback in callbacks if ranks.rank == 0 or getattr(callback, "everywhere", False)]


def _train(
    training: Training,
    engine: Engine,
    callbacks: Sequence[Callback],
    measure: Callable[[], Record],
    log_every: int,
    ranks: Alone | Ranks,
) -> None:
    _check_together(training, ranks)
    turns = [(turn.player, engine.prepare(turn)) for turn in training.turns]
    started = time.perf_counter() - training.seconds
    try:
        with engine.running(), _interruptible(ranks.rank) as interrupted, _ended_by(interrupted):
            while True:
                if training.step > training.logged and (
                    training.step % log_every == 0 or training.step == training.steps
                ):
                    training.seconds = time.perf_counter() - started
                    training.logged = training.step
                    _log(training, callbacks, measure, ranks)
                if training.step >= training.steps or training.stop_reason:
                    return
                if interrupted() and ranks.rank == 0:
                    training.seconds = time.perf_counter() - started
                    _interrupt(training, callbacks)
                for player, step in turns:
                    for _ in range(player.repeats(training.step)):
                        step()
                training.step += 1
    except Diverged as error:
        if error.step is not None:
            raise
        raise Diverged(f"training diverged at step {training.step}: {error}", training.step) from error
    finally:
        training.ran = {player.name: step.how for player, step in turns}
        for player, _ in turns:
            player.draw.close()
        for callback in callbacks:
            if hasattr(callback, "close"):
                callback.close()


def _log(
    training: Training, callbacks: Sequence[Callback], measure: Callable[[], Record], ranks: Alone | Ranks
) -> None:
    def lead() -> tuple[Record, dict[str, Any]]:
        record = {"step": training.step, "seconds": round(training.seconds, 3), **measure()}
        if training.step >= training.steps and training.winding_down is not None:
            training.stop(training.winding_down)
        for callback in callbacks:
            callback(training, record)
        return record, training.decisions()

    record, decisions = ranks.lead(lead)
    if ranks.rank > 0:
        training.follow(decisions)
        for callback in callbacks:
            callback(training, record)
    for turn in training.turns:  # statistics of a process's own batches, and what a callback changed
        ranks.share_(turn.tensors())


def _check_together(training: Training, ranks: Alone | Ranks) -> None:
    """All processes must stand at the same step of the same game."""
    numbers = sum(tensor.numel() for turn in training.turns for tensor in turn.tensors())
    of_all = ranks.gather(
        {"steps done": training.step, "steps to do": training.planned, "numbers in networks": numbers}
    )
    for rank, here in enumerate(of_all):
        for name, count in here.items():
            if count != of_all[0][name]:
                raise InvalidArgument(
                    f"process {rank} of 0 to {ranks.count - 1} has {count} {name} and the first {of_all[0][name]}. "
                    "Give all the same networks and steps, and, to resume, a folder that every machine can read."
                )


def _interrupt(training: Training, callbacks: Sequence[Callback]) -> None:
    for callback in callbacks:
        if hasattr(callback, "interrupted"):
            callback.interrupted(training)
    raise KeyboardInterrupt(f"stopped at step {training.step} of {training.steps}")


@contextmanager
def _interruptible(rank: int) -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C into a flag, so that it falls between steps. Only the main thread may do so.

    Of several processes the first one ends; the others end with that one. torchrun passes a Ctrl-C on that they have
    had already, so that only a third is not held up there.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        if rank == 0 or pressed.is_set():
            signal.signal(signal.SIGINT, before)
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _ended_by(interrupted: Callable[[], bool]) -> Iterator[None]:
    """Where Ctrl-C has ended the first of several processes, the others have not lost it."""
    try:
        yield
    except LostTouch as error:
        if interrupted():
            raise KeyboardInterrupt("stopped with the other processes") from error
        raise


def _check_disjoint(players: Sequence[Player]) -> None:
    owner: dict[int, str] = {}
    for player in players:
        for parameter in {id(p) for module in player.modules for p in module.parameters()}:
            if parameter in owner:
                raise InvalidArgument(
                    f"players {owner[parameter]!r} and {player.name!r} share a parameter. Give it to one of them."
                )
            owner[parameter] = player.name
