from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpsweep.foundation.errors import BadInputError, ModelError
from dpsweep.trainables.gradients.sparse_mask import (
    MaskedWeight,
    SparseValues,
    magnitude_mask,
    shares,
)


def small_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False),
        nn.GroupNorm(2, 6),
        nn.Conv2d(6, 4, 3, groups=2),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def flat_mask(model: nn.Module, masks: list[MaskedWeight]) -> torch.Tensor:
    """One boolean for each convolution weight of the model, in order."""
    chosen = {id(mask.layer): mask.index for mask in masks}
    parts = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            part = torch.zeros(module.weight.numel(), dtype=torch.bool)
            part[chosen.get(id(module), torch.empty(0, dtype=torch.int64))] = True
            parts.append(part)
    return torch.cat(parts)


def magnitudes(model: nn.Module) -> torch.Tensor:
    convs = [m.weight.detach().abs().flatten() for m in model.modules() if isinstance(m, nn.Conv2d)]
    return torch.cat(convs)


@given(density=st.floats(0, 1), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_global_mask_has_the_exact_count_of_the_largest_weights(density: float, seed: int) -> None:
    model = small_model(seed)
    chosen, size = flat_mask(model, magnitude_mask(model, density)), magnitudes(model)
    assert int(chosen.sum()) == round(density * len(size))
    if chosen.any() and not chosen.all():
        assert size[chosen].min() >= size[~chosen].max()


@given(density=st.floats(0, 1), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_layer_mask_has_the_exact_count_in_each_layer(density: float, seed: int) -> None:
    model = small_model(seed)
    by_name = {mask.name: mask for mask in magnitude_mask(model, density, scope="layer")}
    for name in ("0", "2"):
        size = model.get_submodule(name).weight.detach().abs().flatten()
        count = round(density * len(size))
        assert (name in by_name) == (count > 0)
        if count:
            index = by_name[name].index
            assert by_name[name].nnz == count
            assert torch.equal(size[index].sort().values, size.sort().values[-count:])


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_ends_of_the_range_choose_nothing_and_everything(scope: str) -> None:
    model = small_model()
    assert magnitude_mask(model, 0.0, scope=scope) == []
    assert flat_mask(model, magnitude_mask(model, 1.0, scope=scope)).all()
    assert magnitude_mask(nn.Linear(3, 2), 0.5, scope=scope) == []


def test_masks_are_sorted_unique_and_leave_the_model_alone() -> None:
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    for mask in magnitude_mask(model, 0.3):
        assert mask.index.dtype == torch.int64
        assert bool((mask.index.diff() > 0).all())
        assert model.get_submodule(mask.name) is mask.layer
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_equal_magnitudes_are_broken_by_position(scope: str) -> None:
    model = small_model()
    with torch.no_grad():
        for conv in (model[0], model[2]):
            conv.weight.fill_(0.5)
            conv.weight.view(-1)[1::2] = -0.5
        model[2].weight.view(-1)[-1] = 2.0
    masks = magnitude_mask(model, 0.25, scope=scope)
    if scope == "global":
        total = 108 + 108
        assert masks[0].index.tolist() == list(range(round(0.25 * total) - 1))
        assert masks[1].index.tolist() == [107]
    else:
        assert masks[0].index.tolist() == list(range(27))
        assert masks[1].index.tolist() == [*range(26), 107]


def test_a_mask_depends_on_the_convolution_weights_alone() -> None:
    model, other = small_model(), small_model()
    with torch.no_grad():
        other[1].weight.fill_(7.0)
        other[2].bias.fill_(7.0)
        other[4].weight.fill_(7.0)
    torch.manual_seed(123)  # no generator has a part in it
    first, second = magnitude_mask(model, 0.1), magnitude_mask(other.eval(), 0.1)
    assert [m.name for m in first] == [m.name for m in second]
    assert all(torch.equal(a.index, b.index) for a, b in zip(first, second))


def test_a_layer_used_under_two_names_counts_once() -> None:
    conv = nn.Conv2d(2, 2, 3)
    tied = nn.Conv2d(2, 2, 3)
    tied.weight = conv.weight
    masks = magnitude_mask(nn.Sequential(conv, conv, tied), 1.0)
    assert [mask.name for mask in masks] == ["0"]


@pytest.mark.parametrize("density", [-0.1, 1.1, float("nan"), "much"])
def test_bad_densities_are_refused(density: object) -> None:
    with pytest.raises(BadInputError, match="density"):
        magnitude_mask(small_model(), density)  # type: ignore[arg-type]


def test_unknown_scopes_and_broken_weights_are_refused() -> None:
    model = small_model()
    with pytest.raises(BadInputError, match="scope"):
        magnitude_mask(model, 0.5, scope="block")  # type: ignore[arg-type]
    model[2].weight.data[0, 0, 0, 0] = float("nan")
    with pytest.raises(ModelError, match="layer 2"):
        magnitude_mask(model, 0.5)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_steps_move_the_chosen_entries_and_no_other_bit(
    kind: str, layout: torch.memory_format
) -> None:
    model = small_model().to(memory_format=layout)
    masks = magnitude_mask(model, 0.2)
    chosen = flat_mask(model, masks)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    values = SparseValues(masks)
    assert [len(p) for p in values.parameters] == [mask.nnz for mask in masks]
    assert not any(mask.layer.weight.requires_grad for mask in masks)
    if kind == "momentum":
        optimizer = torch.optim.SGD(values.parameters, lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(values.parameters, lr=0.1)
    twin = torch.cat([p.detach().clone() for p in values.parameters])
    state = torch.zeros_like(twin)
    for step in range(4):
        torch.manual_seed(step)
        for parameter in values.parameters:
            parameter.grad = torch.randn_like(parameter)
        state = 0.9 * state + torch.cat([p.grad for p in values.parameters])
        twin -= 0.1 * state
        optimizer.step()
        values.write()
    after = torch.cat([model[i].weight.detach().flatten() for i in (0, 2)])
    start = torch.cat([before[f"{i}.weight"].flatten() for i in (0, 2)])
    bits = after.view(torch.int32) == start.view(torch.int32)
    assert bits[~chosen].all()
    assert not bits[chosen].any()
    assert torch.equal(after[chosen], torch.cat([p.detach() for p in values.parameters]))
    if kind == "momentum":
        torch.testing.assert_close(after[chosen], twin)
    for key, value in model.state_dict().items():
        if key not in ("0.weight", "2.weight"):
            assert torch.equal(value, before[key])


def test_values_can_be_read_again_after_loading() -> None:
    model = small_model()
    values = SparseValues(magnitude_mask(model, 0.2))
    model.load_state_dict(small_model(seed=9).state_dict())
    values.read()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    values.write()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_shares_count_every_parameter_once() -> None:
    model = small_model()
    masks = magnitude_mask(model, 0.5)
    SparseValues(masks)
    model[2].bias.requires_grad_(False)
    chosen = {mask.name: mask.nnz for mask in masks}
    found = shares(model, masks)
    assert found == [
        ("0", chosen["0"], 108),
        ("1", 12, 12),
        ("2", chosen["2"], 112),
        ("4", 15, 15),
    ]
    assert sum(total for _, _, total in found) == sum(p.numel() for p in model.parameters())


def test_one_percent_of_resnet18() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet18", norm_layer="groupnorm", num_classes=10)
    masks = magnitude_mask(model, 0.01)
    total = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d))
    assert sum(mask.nnz for mask in masks) == round(0.01 * total) == 111_669
