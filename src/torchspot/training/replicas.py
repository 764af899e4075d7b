"""Replicas: independent copies of any player list, run as one batched computation."""

__all__ = ["OverReplicas", "replica", "stack_modules", "stacked"]

import copy
import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from torchspot.training.players import Player, nothing


def stacked(games: Sequence[Sequence[Player]]) -> list[Player]:
    """One player list that plays all games at once.

    Parameters and buffers get a leading dimension, one entry for each game. Losses are summed, so that each game's
    gradient is its own. The games differ in their weights only: losses, optimisers and `draw` are those of the first,
    and `draw` must give the batches of all games in a leading dimension (`Draw(…, replicas=k)`).
    """
    first = games[0]
    template = _all_modules(first)
    stack = stack_modules([_all_modules(game) for game in games])
    modules = iter(stack)

    def over_replicas(function: Callable[..., Any], name: str) -> OverReplicas:
        return OverReplicas(function, template, stack, name=name)

    def player(one: Player) -> Player:
        after = one.after_step
        return replace(
            one,
            modules=tuple(itertools.islice(modules, len(one.modules))),
            loss=_Sum(over_replicas(one.loss, f"the loss of the {one.name}")),
            after_step=after if after is nothing else over_replicas(after, f"after_step of the {one.name}"),
        )

    return [player(one) for one in first]


def stack_modules(copies: Sequence[nn.ModuleList]) -> nn.ModuleList:
    """A copy of the first whose parameters and buffers are those of all, in a leading dimension; ties are kept."""
    stack = copy.deepcopy(copies[0])
    for kind in (nn.Module.parameters, nn.Module.buffers):
        for ours, *theirs in zip(kind(stack), *map(kind, copies), strict=True):
            ours.data = torch.stack([tensor.detach() for tensor in theirs])
    return stack


def replica(stack: nn.Module, template: nn.Module, index: int) -> nn.Module:
    """One entry of a stack as a module of its own, built like the template."""
    module = copy.deepcopy(template)
    for kind in (nn.Module.parameters, nn.Module.buffers):
        for ours, all_of_them in zip(kind(module), kind(stack), strict=True):
            ours.data = all_of_them.detach()[index].clone()
    return module


class OverReplicas:
    """A function of some modules, called for all replicas at once.

    It is written for one: it uses the modules of `template` and takes arguments without a leading dimension. Called
    here, it sees the entries of `stack` instead and one entry of each argument. What cannot be batched (`torch.vmap`)
    is called for one replica after another, with a warning that says why.
    """

    def __init__(
        self, function: Callable[..., Any], template: nn.ModuleList, stack: nn.ModuleList, *, name: str
    ) -> None:
        self.name = name
        self._call = _Call(template, function)
        self._state = {f"game.{name}": tensor for name, tensor in _tensors(stack)}
        self._batched = vmap(self._one)
        self._tried, self._together = False, True

    def __call__(self, *arguments: Any) -> Any:
        if not self._tried:
            self._try(arguments)
        return self._batched(self._state, *arguments) if self._together else self._one_by_one(arguments)

    def _one(self, state: dict[str, Tensor], *arguments: Any) -> Any:
        result = functional_call(self._call, state, arguments)
        return torch.zeros(()) if result is None else result

    def _one_by_one(self, arguments: tuple[Any, ...]) -> Any:
        count = len(next(iter(self._state.values())))
        results = []
        for k in range(count):
            state = {name: tensor[k] for name, tensor in self._state.items()}
            results.append(self._one(state, *(_entry(argument, k) for argument in arguments)))
        return torch.stack(results)

    def _try(self, arguments: tuple[Any, ...]) -> None:
        """One call on copies of everything, to see whether it can be batched."""
        self._tried = True
        try:
            self._batched({name: tensor.detach().clone() for name, tensor in self._state.items()}, *arguments)
        except Exception as error:  # one by one, an error of the function itself shows again
            self._together = False
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            warnings.warn(f"replicas run one after another, as {self.name} cannot be batched: {reason}", stacklevel=3)


class _Sum:
    def __init__(self, losses: OverReplicas) -> None:
        self.losses = losses

    def __call__(self, batch: tuple[Tensor, ...]) -> Tensor:
        return self.losses(batch).sum()


class _Call(nn.Module):
    """A function as the forward pass of a module, whose tensors `functional_call` may then replace."""

    def __init__(self, modules: nn.ModuleList, function: Callable[..., Any]) -> None:
        super().__init__()
        self.game, self.function = modules, function

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def _all_modules(game: Sequence[Player]) -> nn.ModuleList:
    return nn.ModuleList(module for player in game for module in player.modules)


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _entry(argument: Any, index: int) -> Any:
    return tuple(part[index] for part in argument) if isinstance(argument, tuple) else argument[index]
