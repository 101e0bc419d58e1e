"""Lookups and sums by symbol: the forms for GPUs do what the loop over lanes does."""

import pytest
import torch

from eigensweep.models.recurrence.symbols import (
    add_rows,
    add_rows_by_product,
    add_rows_by_sorting,
    look_up,
    look_up_at_once,
)

LANES, SYMBOLS, COUNT, UNITS = 3, 5, 40, 7


@pytest.fixture
def symbols():
    torch.manual_seed(0)
    return torch.randint(SYMBOLS, (LANES, COUNT))


@pytest.mark.parametrize("find", [look_up, look_up_at_once])
def test_each_lane_has_a_table_of_its_own(symbols, find):
    table = torch.randn(LANES, UNITS, SYMBOLS).mT
    states = torch.full((LANES, COUNT + 2, 2 * UNITS), 9.0)
    find(table, symbols, out=states[:, 1:-1, :UNITS])
    expected = torch.nn.functional.one_hot(symbols).float() @ table
    assert torch.equal(states[:, 1:-1, :UNITS], expected)
    states[:, 1:-1, :UNITS] = 9
    assert bool((states == 9).all())


@pytest.mark.parametrize("add", [add_rows, add_rows_by_product, add_rows_by_sorting])
def test_rows_of_one_symbol_are_added_to_what_is_there(symbols, add):
    rows = torch.randn(LANES, COUNT, 2 * UNITS, dtype=torch.float64)[..., :UNITS]
    sums = torch.randn(LANES, SYMBOLS, UNITS, dtype=torch.float64)
    expected = sums + torch.nn.functional.one_hot(symbols).double().mT @ rows
    add(sums, symbols, rows)
    torch.testing.assert_close(sums, expected, atol=1e-13, rtol=0)
