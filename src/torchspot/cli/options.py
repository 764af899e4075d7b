"""Words of the command line that become objects."""

__all__ = ["anchors_named", "choice", "cost_named"]

from typing import Any

from torchspot import costs, latents
from torchspot.errors import InvalidArgument
from torchspot.types import Cost

_EXAMPLES = {"p_norm": "p_norm:1.5", "barycentric": "barycentric:2,1,1"}


def cost_named(text: str, marginals: int) -> Cost:
    """The cost with this name; for three or more marginals summed over pairs, unless it is made for them."""
    name, _, argument = text.partition(":")
    if name == "barycentric":
        return costs.barycentric([_number(w, "barycentric") for w in argument.split(",")] if argument else None)
    named: dict[str, Cost] = {
        "euclidean": costs.euclidean,
        "squared_euclidean": costs.squared_euclidean,
        "cosine": costs.cosine,
        "contour": costs.contour,
    }
    if name == "p_norm":
        named[text] = costs.p_norm(_number(argument, "p_norm"))
    pair = choice("cost", text, named, more=", p_norm:P, barycentric, barycentric:W,W,…")
    return pair if marginals == 2 else costs.sum_over_pairs(pair)


def anchors_named(text: str | None) -> latents.Anchored | None:
    """Where a map starts, from words; none without words."""
    directions: dict[str, tuple[int, ...]] = {"forward": (0,), "backward": (1,), "both": (0, 1)}
    return latents.anchored(at=choice("direction of a map", text, directions)) if text else None


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"{name} needs numbers, such as {_EXAMPLES[name]}, and got {text!r}.") from None


def choice(what: str, name: str, choices: dict[str, Any], more: str = "") -> Any:
    """The object with this name, or an error that lists the names."""
    if name not in choices:
        raise InvalidArgument(f"there is no {what} {name!r}. Choose one of: {', '.join(choices)}{more}.")
    return choices[name]
