"""Words of the command line that become objects."""

__all__ = ["choice", "cost_named"]

from typing import Any

from torchspot import costs
from torchspot.errors import InvalidArgument
from torchspot.types import Cost


def cost_named(text: str, marginals: int) -> Cost:
    """The cost with this name; for three or more marginals summed over pairs."""
    name, _, argument = text.partition(":")
    named: dict[str, Cost] = {
        "euclidean": costs.euclidean,
        "squared_euclidean": costs.squared_euclidean,
        "cosine": costs.cosine,
    }
    if name == "p_norm":
        named[text] = costs.p_norm(_number(argument))
    pair = choice("cost", text, named, more=", p_norm:P")
    return pair if marginals == 2 else costs.sum_over_pairs(pair)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"p_norm needs a number: p_norm:1.5, not p_norm:{text}.") from None


def choice(what: str, name: str, choices: dict[str, Any], more: str = "") -> Any:
    """The object with this name, or an error that lists the names."""
    if name not in choices:
        raise InvalidArgument(f"there is no {what} {name!r}. Choose one of: {', '.join(choices)}{more}.")
    return choices[name]
