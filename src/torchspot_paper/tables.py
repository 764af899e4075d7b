"""The tables of the report: one function for each experiment, rows in, Markdown out."""

__all__ = ["comparison", "dimension", "fig2", "fig3", "fig4", "fig6", "map_comparison", "maps", "marginals"]

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from torchspot_paper.dimension import CONTROLS
from torchspot_paper.dimension import label as dimension_label
from torchspot_paper.fig2_convergence import label as fig2_label
from torchspot_paper.problems import dimension_problems
from torchspot_paper.recipe import Rows

_HUGE = 20.0


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def _percent(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return ""
    digits = ".2f" if abs(value) < _HUGE else ".0e"
    return "diverged" if not math.isfinite(value) else f"{100 * value:{'+' if signed else ''}{digits}} %"


def _by_setting(rows: Rows) -> Iterator[tuple[dict[str, Any], dict[str, float], dict[str, Any]]]:
    """Each setting once: what it is, its numbers, and one of its rows, the one with a published number first."""
    by_setting = defaultdict(list)
    for row in rows:
        by_setting[json.dumps(row["setting"], sort_keys=True)].append(row)
    for mine in by_setting.values():
        first = next((row for row in mine if "published" in row), mine[0])
        yield first["setting"], {row["metric"]: row["value"] for row in mine}, first


_ERRORS = ("error_of_mean", "mean_run_error", "median_run_error", "worst_run_error")


_FIG2_HEAD = [
    "rate",
    "method",
    "error of the mean",
    "mean error",
    "median",
    "worst",
    "published (error of the mean)",
    "at step 0",
    "SW2 / floor",
    "runs",
    "steps",
    "seconds",
]
_ROT_METRICS = ("error_of_mean", "plan_error_of_mean", "map_error_of_mean", "map_mean_run_error")


def fig2(rows: Rows) -> Iterator[str]:
    """Errors of SPOT and of ROT by rate; what ROT's plan and map cost beside its dual."""
    found = sorted(_by_setting(rows), key=lambda item: (-item[0]["lr"], fig2_label(item[0])))
    yield table(_FIG2_HEAD, [_fig2_line(*item) for item in found])
    beside = [
        [*_rate_and_method(s), *(_percent(f[m]) for m in _ROT_METRICS)] for s, f, _ in found if s["method"] == "rot"
    ]
    if beside:
        yield "ROT reports the regularised dual. Beside it what its plan costs, and its barycentric map:"
        yield table(["rate", "method", "dual", "plan", "map", "map, mean error"], beside)


def _fig2_line(setting: dict[str, Any], found: dict[str, float], row: dict[str, Any]) -> list[str]:
    return [
        *_rate_and_method(setting),
        *(_percent(found[name]) for name in _ERRORS),
        _percent(row.get("published")),
        _percent(found.get("error_at_step_0"), signed=True),
        _ratio(found),
        str(row["seeds"]),
        f"{setting['steps']:,}",
        f"{row['seconds']:g}",
    ]


def _rate_and_method(setting: dict[str, Any]) -> list[str]:
    return [f"{setting['lr']:g}", fig2_label(setting)]


def fig3(rows: Rows) -> Iterator[str]:
    """Errors by width."""
    lines = [
        [
            str(s["width"]),
            *(_percent(f[name]) for name in _ERRORS),
            _percent(f["error_at_step_0"], signed=True),
            _ratio(f),
            str(row["seeds"]),
            f"{row['seconds']:g}",
        ]
        for s, f, row in sorted(_by_setting(rows), key=lambda item: item[0]["width"])
    ]
    yield table(
        ["width", "error of the mean", "mean error", "median", "worst", "at step 0", "SW2 / floor", "runs", "seconds"],
        lines,
    )


def fig4(rows: Rows) -> Iterator[str]:
    """Densities beside the truth; and the plans without entropy."""
    found = sorted(_by_setting(rows), key=lambda item: (item[0]["problem"], item[0]["epsilon"]))
    found.sort(key=lambda item: not item[0]["warm_start"])
    names = ("kl", "l1", "correlation_error")
    lines = [
        [
            s["problem"],
            f"{s['epsilon']:g}",
            "yes" if s["warm_start"] else "no",
            *(_mean_and_worst(f, name) for name in names),
            f"{_percent(f['cost_error'])} ({_percent(f['worst_cost_error'])})",
            f"{f['kl_at_step_0']:.4f}",
            f"{f['entropy']:.3f}" if "entropy" in f else "",
            str(row["seeds"]),
            f"{row['seconds']:g}",
        ]
        for s, f, row in found
        if s["epsilon"]
    ]
    head = ["marginals", "ε", "warm start", "KL", "L1", "correlation off by", "cost off by", "KL at step 0", "entropy"]
    yield table([*head, "runs", "seconds"], lines)
    high = [f for s, f, _ in found if s["problem"] == "high"]
    if high:
        slopes = " and ".join(f"{f['log_density_slope_error']:.3f}" for f in high)
        yield f"`high`: the slope of the learned log-density over the true one is off 1 by {slopes} (mean of the runs)."
    maps = [
        [
            s["problem"],
            f"{_percent(f['cost_error'])} ({_percent(f['worst_cost_error'])})",
            _mean_and_worst(f, "distance_from_map"),
        ]
        for s, f, _ in found
        if not s["epsilon"]
    ]
    if maps:
        yield "Without entropy (SPOT) the plan sits on the graph of a map and has no density:"
        yield table(["marginals", "cost off by", "distance of samples from the graph"], maps)


def _mean_and_worst(found: dict[str, float], name: str) -> str:
    return f"{found[name]:.4f} ({found[f'worst_{name}']:.4f})"


def fig6(rows: Rows) -> Iterator[str]:
    """Errors and rank correlations."""
    lines = [
        [
            s["problem"],
            _percent(f["error"]),
            _percent(f["worst_error"]),
            _percent(f["error_at_step_0"], signed=True),
            f"{f['worst_marginal_over_floor']:.2f}",
            f"{f['rank_correlation']:.3f}",
            f"{f['rank_correlation_of_optimal_plan']:.3f}",
            str(row["seeds"]),
        ]
        for s, f, row in _by_setting(rows)
    ]
    yield table(
        [
            "problem",
            "mean error",
            "worst",
            "at step 0",
            "worst marginal / floor",
            "rank correlation",
            "of exact plan",
            "runs",
        ],
        lines,
    )


def comparison(rows: Rows) -> Iterator[str]:
    """Errors, time and memory by the number of rows."""
    lines = [
        [
            f"{s['n']:,}",
            s["method"],
            _percent(f["error"], signed=True),
            _percent(f.get("error_at_step_0"), signed=True),
            _ratio(f),
            f"{f['seconds']:.1f}",
            f"{f['peak_megabytes']:,.0f}",
            f"{f['megabytes_before']:,.0f}",
        ]
        for s, f, _ in sorted(_by_setting(rows), key=lambda item: (item[0]["n"], item[0]["method"]))
    ]
    head = ["n", "method", "error", "at step 0", "SW2 / floor", "seconds", "peak memory, MB", "before the call, MB"]
    yield table(head, lines)


def dimension(rows: Rows) -> Iterator[str]:
    """Errors by problem, method and dimension; errors at step 0; Lipschitz controls."""
    found = list(_by_setting(rows))
    dims = sorted({s["d"] for s, _, _ in found})
    yield (
        "Mean error of a run (worst run in brackets, where there are several); "
        "* marks rows with a marginal more than 2× its noise floor away. Empty cells were not run."
    )
    lines = []
    for problem in dimension_names():
        for method in ("spot", "spot, no warm start", "mean-shift", "bures", "emd", "sinkhorn"):
            cells = [
                _cell(
                    [
                        f
                        for s, f, _ in found
                        if s["problem"] == problem
                        and s["d"] == d
                        and "control" not in s
                        and dimension_label(s) == method
                    ]
                )
                for d in dims
            ]
            if any(cells):
                lines.append([problem, method, *cells])
    yield table(["problem", "method", *(f"d = {d}" for d in dims)], lines)
    started = [[problem, *(_start(found, problem, d) for d in dims)] for problem in dimension_names()]
    yield "The error at step 0 with the warm start (an untrained plan):"
    yield table(["problem", *(f"d = {d}" for d in dims)], started)
    controlled = [(s, f) for s, f, _ in found if "control" in s]
    if controlled:
        yield (
            "Lipschitz controls, at the same number of steps and in the same time (one run each). `clipping` is the "
            "paper's, entries within ±.01 and η = 10⁴ (in a trial with the η of the recipe its critics were too flat "
            "to hold the marginals at all); `loose clipping` is ±.1 with the recipe's η. Best: the least error among "
            "those whose marginals are within 2× of their floors; single runs scatter by about a per cent. Empty cells "
            "were not run. Most equal times at d = 16 were taken on a CPU, the rows say which."
        )
        yield table(*_controls(controlled))


def marginals(rows: Rows) -> Iterator[str]:
    """Errors of the cost and of the barycenter; time and memory as marginals are added."""
    found = list(_by_setting(rows))
    lines = [
        [
            _named(s),
            str(s["m"]),
            str(s["d"]),
            s["method"],
            f"{_percent(f['error'])} ({_percent(f['worst_error'])})",
            _percent(f["error_at_step_0"], signed=True),
            _ratio(f),
            _percent_and_worst(f, "barycenter_mean_error"),
            _percent_and_worst(f, "barycenter_covariance_error"),
            str(row["seeds"]),
            f"{row['seconds']:g}",
        ]
        for s, f, row in sorted(
            found, key=lambda item: (_named(item[0]), item[0]["m"], item[0]["d"], item[0]["method"])
        )
        if not s.get("scaling")
    ]
    head = ["problem", "m", "d", "method", "cost off by (worst)", "at step 0", "SW2 / floor"]
    yield table([*head, "barycenter: mean", "covariance", "runs", "seconds"], lines)
    scaled = [
        [
            str(s["m"]),
            s["method"],
            f"{f['rows']:,.0f}",
            f"{f['seconds']:.1f}" if f["seconds"] else "does not fit",
            f"{f['peak_megabytes']:,.0f}" if f["seconds"] else f"{f['tensor_megabytes']:,.0f} for the tensor",
            _percent(f.get("error"), signed=True),
        ]
        for s, f, _ in sorted(found, key=lambda item: (item[0]["m"], item[0]["method"]))
        if s.get("scaling")
    ]
    if scaled:
        yield "Time and memory on one core, Gaussians in the plane:"
        yield table(["m", "method", "rows", "seconds", "peak memory, MB", "error"], scaled)


def maps(rows: Rows) -> Iterator[str]:
    """UVP by problem, dimension and critics; then shapes and atoms."""
    found = sorted(_by_setting(rows), key=lambda item: (_named(item[0]), item[0]["d"], item[0]["critics"]))
    lines = [
        [
            _named(s),
            str(s["d"]),
            s["critics"] + (", warm start" if s["warm_start"] else ""),
            _percent_and_worst(f, "uvp"),
            _percent(f["uvp_at_step_0"]),
            f"{_percent(f['signed_error'], signed=True)} ({_percent(f['worst_error'])})",
            _ratio(f),
            str(row["seeds"]),
            f"{row['seconds']:g}",
        ]
        for s, f, row in found
        if "uvp" in f
    ]
    head = ["problem", "d", "critics", "UVP (worst)", "at step 0", "cost off by (worst)", "SW2 / floor"]
    yield table([*head, "runs", "seconds"], lines)
    shapes = [
        [
            _named(s),
            f"{_percent(f['signed_error'], signed=True)} ({_percent(f['worst_error'])})",
            _percent(f["error_at_step_0"], signed=True),
            f"{f['sliced_w2_over_floor']:.1f}",
        ]
        for s, f, _ in found
        if "sliced_w2_over_floor" in f
    ]
    if shapes:
        yield table(["both directions", "cost off by (worst)", "at step 0", "worst image: SW2 / floor"], shapes)
    atoms = [
        [s["problem"], _mean_and_worst(f, "conditional_w2"), f"{f['least_spread']:.2f} to {f['most_spread']:.2f}"]
        for s, f, _ in found
        if "conditional_w2" in f
    ]
    if atoms:
        yield table(["atoms", "W2 of partners to the truth (worst)", "spread over the true one"], atoms)


def map_comparison(rows: Rows) -> Iterator[str]:
    """UVP, cost, time and memory by the number of rows."""
    lines = [
        [
            f"{s['n']:,}",
            s["method"],
            _percent(f["uvp"]),
            _percent(f["signed_error"], signed=True),
            f"{f['seconds']:.1f}",
            f"{f['peak_megabytes']:,.0f}",
            f"{f['megabytes_before']:,.0f}",
        ]
        for s, f, _ in sorted(_by_setting(rows), key=lambda item: (item[0]["n"], item[0]["method"]))
    ]
    yield table(["n", "method", "UVP", "cost off by", "seconds", "peak memory, MB", "before the call, MB"], lines)


def _named(setting: dict[str, Any]) -> str:
    """The problem, and whether its law is new or its run a longer one."""
    return setting["problem"] + (", new law" if setting.get("law") else "") + (", longer" * bool(setting.get("longer")))


def _percent_and_worst(found: dict[str, float], name: str) -> str:
    return f"{_percent(found[name])} ({_percent(found[f'worst_{name}'])})" if name in found else ""


def _controls(controlled: Sequence[tuple[dict[str, Any], dict[str, float]]]) -> tuple[list[str], list[list[str]]]:
    columns = [(c, e) for c in CONTROLS for e in ("steps", "time") if not (c == "orthogonal" and e == "time")]
    places = sorted({(s["d"], s["problem"]) for s, _ in controlled})
    named = {(c, e): c if c == "orthogonal" else f"{c}, equal {e}" for c, e in columns}
    lines = []
    for d, problem in places:
        mine = {(s["control"], s["equal"]): f for s, f in controlled if (s["d"], s["problem"]) == (d, problem)}
        within = {named[column]: f["error"] for column, f in mine.items() if math.isfinite(f["error"]) and not _far(f)}
        best = min(within, key=lambda name: within[name], default="none")
        lines.append([str(d), problem, *(_cell([mine[c]] if c in mine else []) for c in columns), best])
    return ["d", "problem", *named.values(), "best"], lines


def _cell(found: Sequence[dict[str, float]]) -> str:
    if not found:
        return ""
    (numbers,) = found
    if "worst_error" not in numbers:
        return _percent(numbers["error"], signed=True)
    worst = f" ({_percent(numbers['worst_error'])})" if numbers["worst_error"] > numbers["error"] else ""
    return f"{_percent(numbers['error'])}{worst}{'*' if _far(numbers) else ''}"


def _far(numbers: dict[str, float]) -> bool:
    return numbers["sliced_w2"] > 2 * numbers["noise_floor"]


def _start(found: Any, problem: str, d: int) -> str:
    mine = [f for s, f, _ in found if (s["problem"], s["d"], s.get("warm_start")) == (problem, d, True)]
    return _percent(mine[0]["error_at_step_0"], signed=True) if mine else ""


def dimension_names() -> list[str]:
    """The problems of the dimension table, in order."""
    return list(dimension_problems(2))


def _ratio(found: dict[str, float]) -> str:
    return f"{found['sliced_w2'] / found['noise_floor']:.1f}" if "sliced_w2" in found else ""
