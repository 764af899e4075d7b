"""Plans draw, estimate, save and load; hostile files do nothing."""

import json
import math

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import torchspot
from torchspot import SPOT, costs, latents, storage
from torchspot.data.arrays import HeldOut
from torchspot.errors import CorruptFile, InvalidArgument
from torchspot.networks.generators import InDataUnits, Shapes, Units, around_affine, separate, shared_trunk
from torchspot.plans import PooledPlan, PushforwardPlan

SEPARATE, P_NORM = separate(8, 2), costs.p_norm(1.5)


class Shifted(nn.Module):
    """(z, z) in their own units: with means m_1, m_2 the plan is a translation."""

    def forward(self, z):
        return z, z


def translation(apart: float = 3.0, scale: float = 2.0) -> PushforwardPlan:
    units = Units((torch.zeros(2), torch.tensor([apart, 0.0])), scale)
    return PushforwardPlan(InDataUnits(Shifted(), units), latents.normal(2), costs.euclidean)


def library_plan(builder=SEPARATE, cost=P_NORM) -> PushforwardPlan:
    network = builder(Shapes(3, ((2,), (4, 1))), torch.Generator().manual_seed(0))
    units = Units((torch.randn(2), torch.randn(4, 1)), 0.7)
    held_out = (HeldOut("abc", torch.arange(5).numpy()), None)
    return PushforwardPlan(InDataUnits(network, units), latents.uniform(3), cost, held_out, {"eta": [2.0, 2.0]})


def test_samples_belong_together_and_depend_on_the_seed():
    plan = translation()
    x, y = plan.sample(100_000, seed=1)
    assert torch.allclose(y - x, torch.tensor([3.0, 0.0]).expand_as(x), atol=1e-5)
    assert x.std(0).tolist() == pytest.approx([2, 2], rel=0.02)
    assert torch.equal(plan.sample(10, seed=1)[0], plan.sample(10, seed=1)[0])
    assert not torch.equal(plan.sample(10)[0], plan.sample(10)[0])
    with pytest.raises(InvalidArgument, match="n >= 1"):
        plan.sample(0)
    with pytest.raises(InvalidArgument, match="n >= 2"):
        plan.expected_cost(1)


def test_expected_cost_and_its_error_are_those_of_the_closed_form():
    """c = ‖x‖ for x ~ N(0, 4 I) in the plane: mean 2 √(π/2), variance 4 (2 − π/2)."""
    plan = PushforwardPlan(translation().generator, latents.normal(2), lambda x, y: x.norm(dim=1))
    estimate = plan.expected_cost(200_000)
    error = math.sqrt(4 * (2 - math.pi / 2) / 200_000)
    assert estimate.monte_carlo_error == pytest.approx(error, rel=0.02)
    assert abs(estimate.value - 2 * math.sqrt(math.pi / 2)) < 4 * error
    assert float(estimate) == estimate.value


@pytest.mark.parametrize(
    "builder", [separate(8, 2), shared_trunk(8, 1), around_affine(8, 1)], ids=["separate", "shared", "affine"]
)
def test_a_plan_survives_a_file(builder, tmp_path):
    plan = library_plan(builder)
    file = plan.save(tmp_path / "run")
    assert file == tmp_path / "run" / "plan.safetensors"
    for path in (file, tmp_path / "run", str(file)):
        again = torchspot.load(path)
        for a, b in zip(plan.sample(50, seed=3), again.sample(50, seed=3), strict=True):
            assert torch.equal(a, b)
        assert again.cost == plan.cost
        assert again.facts == plan.facts
        assert again.held_out[0].fingerprint == "abc"
        assert again.held_out[0].rows.tolist() == list(range(5))
        assert again.held_out[1] is None


def test_what_is_the_users_own_is_asked_for(tmp_path):
    own = library_plan(cost=lambda x, y: x.sum(1))
    file = own.save(tmp_path)
    with pytest.raises(InvalidArgument, match=r"a cost of your own.*torchspot.load\(.*, cost=…\)"):
        torchspot.load(file)
    assert torchspot.load(file, cost=own.cost).expected_cost(100) == own.expected_cost(100)
    file = translation().save(tmp_path)
    with pytest.raises(InvalidArgument, match="generator=…"):
        torchspot.load(file)
    with pytest.raises(InvalidArgument, match="does not fit the generator that was given"):
        torchspot.load(file, generator=nn.Linear(2, 2))
    x, y = torchspot.load(file, generator=Shifted()).sample(5, seed=0)
    assert torch.allclose(y - x, torch.tensor([3.0, 0.0]).expand_as(x), atol=1e-5)


def _rewritten(file, change):
    """The file with its description changed and its checksum made right again: what an attacker would write."""
    tensors = load_file(file)
    with safe_open(file, framework="pt") as opened:
        header = json.loads(opened.metadata()["torchspot"])
    change(header["state"], tensors)
    body = json.dumps(header)
    save_file(tensors, file, metadata={"torchspot": body, "digest": storage._digest(body, tensors)})


def nested(depth):
    return {"name": "cosine"} if depth == 0 else {"name": "sum_over_pairs", "pair": nested(depth - 1)}


HOSTILE = {
    "another class": lambda state, tensors: state["generator"].update(name="os.system"),
    "a cost that is code": lambda state, tensors: state["cost"].update(name="eval"),
    "too wide to build": lambda state, tensors: state["generator"].update(width=2**40),
    "wide enough to fill the memory": lambda state, tensors: state["generator"].update(width=2**19),
    "too deep": lambda state, tensors: state["generator"].update(depth=10**9),
    "no width": lambda state, tensors: state["generator"].pop("width"),
    "text for a number": lambda state, tensors: state["runs"][0].update(scale="much"),
    "another dtype": lambda state, tensors: state.update(dtype="object"),
    "a latent of no size": lambda state, tensors: state["latent"].update(dim=-1),
    "a huge latent": lambda state, tensors: state["latent"].update(dim=2**50),
    "weights of another shape": lambda state, tensors: tensors.update(
        {"runs/0/weights/networks.0.weight": torch.zeros(1, 1)}
    ),
    "weights missing": lambda state, tensors: state["runs"][0]["weights"].popitem(),
    "held-out rows that are no tensor": lambda state, tensors: state.update(held_out=[{"fingerprint": 1, "rows": [0]}]),
    "a cost nested without end": lambda state, tensors: state.update(cost=nested(900)),
    "a norm that is none": lambda state, tensors: state["cost"].update(p=0.5),
    "a scale that is no number": lambda state, tensors: tensors.update({"runs/0/scale": torch.tensor(float("nan"))}),
    "no facts": lambda state, tensors: state["runs"][0].pop("facts"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused(name, tmp_path):
    file = library_plan().save(tmp_path)
    _rewritten(file, HOSTILE[name])
    with pytest.raises(CorruptFile):
        torchspot.load(file)


def test_a_pickle_is_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (print, ("boom",))

    torch.save(Bomb(), tmp_path / "plan.safetensors")
    with pytest.raises(CorruptFile, match="damaged or was not written by torchspot"):
        torchspot.load(tmp_path)


def test_a_missing_plan_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match=r"there is no file .*plan\.safetensors"):
        torchspot.load(tmp_path)


def pooled():
    return PooledPlan((translation(), translation(apart=7.0)))


def test_a_pooled_plan_draws_from_all_runs_alike():
    x, y = pooled().sample(4000, seed=1)
    moved = (y - x)[:, 0]
    assert set(moved.round().int().tolist()) == {3, 7}
    assert float((moved > 5).float().mean()) == pytest.approx(0.5, abs=0.04)
    assert 0.4 < float((moved[:400] > 5).float().mean()) < 0.6
    assert torch.equal(pooled().sample(50, seed=1)[0], pooled().sample(50, seed=1)[0])
    assert not torch.equal(pooled().sample(50)[0], pooled().sample(50)[0])
    assert pooled().expected_cost(1000).value == pytest.approx(5, rel=1e-4)
    with pytest.raises(InvalidArgument, match="n >= 1"):
        pooled().sample(0)


def test_a_pooled_plan_survives_a_file(tmp_path):
    plan = PooledPlan((library_plan(), library_plan()))
    again = torchspot.load(plan.save(tmp_path))
    assert isinstance(again, PooledPlan)
    assert again.facts["replicas"] == 2
    for a, b in zip(plan.sample(50, seed=3), again.sample(50, seed=3), strict=True):
        assert torch.equal(a, b)


def test_plans_of_other_problems_are_not_pooled():
    with pytest.raises(InvalidArgument, match="plans of the same problem"):
        PooledPlan((translation(), library_plan()))


def _rows(**change):
    def rewrite(state, tensors):
        state["support"][0].update(change)

    return rewrite


HOSTILE_MAPS = {
    "no reach": _rows(reach=0.0),
    "a reach that is no number": _rows(reach=float("nan")),
    "no rows": lambda state, tensors: tensors.update({"support/0/rows": torch.zeros(0, 2)}),
    "rows of another width": lambda state, tensors: tensors.update({"support/0/rows": torch.zeros(4, 3)}),
    "rows that are no numbers": lambda state, tensors: tensors.update(
        {"support/0/rows": torch.full((4, 2), torch.nan)}
    ),
    "a network from elsewhere": lambda state, tensors: state["generator"].update(at=[1]),
    "a latent from elsewhere": lambda state, tensors: state["latent"].update(at=[5]),
    "a latent of noise": lambda state, tensors: state.update(latent={"name": "normal", "dim": 2}),
    "networks in networks": lambda state, tensors: state["generator"].update(networks=[dict(state["generator"])]),
    "very many networks": lambda state, tensors: state["generator"].update(at=[0] * 500),
}


@pytest.mark.parametrize("name", HOSTILE_MAPS)
def test_a_hostile_map_is_refused(name, tmp_path):
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    spot = SPOT(cost=costs.squared_euclidean, latent=latents.anchored(), steps=1).fit(x, x + 1)
    file = spot.plan_.save(tmp_path)
    torchspot.load(file)
    _rewritten(file, HOSTILE_MAPS[name])
    with pytest.raises(CorruptFile) as refused:
        torchspot.load(file, source=None if "noise" in name else x)
    assert len(str(refused.value)) < 1000
