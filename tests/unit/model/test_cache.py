"""Tables that are made once for a grid: when they are kept, and when they must not be."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from vitrail.model.cache import MAX_CACHED, TensorCache, cache_results
from vitrail.model.registry import config_from_name
from vitrail.model.vit import create_model
from vitrail.spec import Grid


def test_a_table_is_made_once_for_each_choice_of_settings():
    made = []

    @cache_results
    def table(rows, dtype):
        made.append(rows)
        return torch.zeros(rows, dtype=dtype)

    assert table(3, torch.float32) is table(3, torch.float32)
    assert table(3, torch.float64).dtype == torch.float64
    assert made == [3, 3]


def test_what_a_prediction_made_first_serves_a_training():
    model = create_model(config_from_name("vit_femto_patch4_28"), seed=0)
    pictures = torch.rand(2, 3, 40, 28)  # a grid that no other test has
    with torch.inference_mode():
        before = model(pictures)
    after = model(pictures)
    after.sum().backward()
    torch.testing.assert_close(after, before, atol=0, rtol=0)


def test_a_table_that_was_written_to_is_resampled_anew():
    positions = create_model(config_from_name("vit_femto_patch4_28"), seed=0).positions
    with torch.no_grad():
        first = positions.table_for_grid(Grid(5, 6))
        assert positions.table_for_grid(Grid(5, 6)) is first
        positions.table.add_(1)
        torch.testing.assert_close(positions.table_for_grid(Grid(5, 6)), first + 1)
        other = torch.nn.Parameter(torch.zeros_like(positions.table))
        positions.table = other
        assert not positions.table_for_grid(Grid(5, 6)).any()
    assert positions.table_for_grid(Grid(5, 6)).requires_grad


def test_periods_that_are_loaded_make_new_angles():
    model = create_model(config_from_name("vit_small_patch16_dinov3_qkvb"), seed=0)
    turn, like = model.rotary, torch.zeros(1)
    before = turn(Grid(3, 4), like)
    assert turn(Grid(3, 4), like) is before
    model.load_state_dict({name: tensor * 2 for name, tensor in model.state_dict().items()})
    after = turn(Grid(3, 4), like)
    assert not torch.equal(after.cos, before.cos)
    torch.testing.assert_close(after.cos[-12:], turn.angles(Grid(3, 4), torch.device("cpu")).cos().repeat(1, 2))


def test_visible_patches_get_their_rows_of_the_tables():
    turn = create_model(config_from_name("vit_femto_patch4_28"), seed=0).rotary
    whole = turn(Grid(7, 7), torch.zeros(1))
    rows = torch.tensor([[5, 48], [0, 9]])
    some = turn(Grid(7, 7), torch.zeros(1), rows)
    assert torch.equal(some.cos, whole.cos[rows]) and torch.equal(some.sin, whole.sin[rows])


def test_the_oldest_give_way_and_copies_begin_empty():
    found, source = TensorCache(), torch.zeros(2)
    tables = [found(source, (count,), lambda count=count: torch.full((1,), count)) for count in range(MAX_CACHED + 1)]
    assert tables[3] == 3 and len(found._values) == 1
    assert not copy.deepcopy(found)._values and not pickle.loads(pickle.dumps(found))._values


@pytest.mark.parametrize("name", ["vit_femto_patch4_28", "vit_small_patch16_dinov3_qkvb"])
def test_a_graph_computes_its_tables_itself(name):
    model = create_model(config_from_name(name), seed=0).eval()
    pictures = torch.rand(1, 3, *((28, 28) if "femto" in name else (64, 64)))
    with torch.no_grad():
        exported = torch.export.export(model, (pictures,)).module()
        torch.testing.assert_close(exported(pictures), model(pictures), atol=1e-5, rtol=1e-5)
