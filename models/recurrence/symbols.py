"""Symbols in place of one-hot vectors: a lookup in a table, and the gradient of the table.

Lanes are in front: a table is (M, m, n), symbols are int64 (M, K), rows (M, K, n). On a CPU one
lane after another is fastest. A GPU has all lanes in one launch, and adds in an order that is the
same in each run, which `index_add_` does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_BY_PRODUCT = 1024
"""Symbols up to which a GPU adds rows by a product with one-hot vectors; for more it sorts them."""


def look_up(table: Tensor, symbols: Tensor, out: Tensor) -> None:
    """Write the table's row of each symbol into `out`, (M, K, n)."""
    if out.device.type == "cpu":
        for rows, columns, chosen in zip(out, table, symbols, strict=True):
            torch.index_select(columns, 0, chosen, out=rows)
    else:
        look_up_at_once(table, symbols, out)


def add_rows(sums: Tensor, symbols: Tensor, rows: Tensor) -> None:
    """Add each of `rows` to the row of `sums`, (M, m, n), that its symbol names."""
    if sums.device.type == "cpu":
        for table, chosen, added in zip(sums, symbols, rows, strict=True):
            table.index_add_(0, chosen, added)
    elif sums.shape[1] <= MOST_BY_PRODUCT:
        add_rows_by_product(sums, symbols, rows)
    else:
        add_rows_by_sorting(sums, symbols, rows)


def look_up_at_once(table: Tensor, symbols: Tensor, out: Tensor) -> None:
    """Do what `look_up` does in one launch."""
    torch.gather(table, 1, symbols.unsqueeze(-1).expand(out.shape), out=out)


def add_rows_by_product(sums: Tensor, symbols: Tensor, rows: Tensor) -> None:
    """Do what `add_rows` does by one product: a row that is not finite spoils its whole lane."""
    every = torch.arange(sums.shape[1], device=sums.device).unsqueeze(-1)
    one_hot = (symbols.unsqueeze(1) == every).to(sums.dtype)
    sums.baddbmm_(one_hot, rows)


def add_rows_by_sorting(sums: Tensor, symbols: Tensor, rows: Tensor) -> None:
    """Do what `add_rows` does by `index_put_`, which sorts the symbols on a GPU."""
    lanes = torch.arange(len(sums), device=sums.device).unsqueeze(-1)
    sums.index_put_((lanes.expand_as(symbols), symbols), rows, accumulate=True)
