"""The table of trials as a file."""

from __future__ import annotations

import io

import pandas as pd

from eigensweep.results.trial_rows import make_frame, make_row, write_parquet


def test_values_of_several_types_are_text_in_parquet():
    drawn = ({"pooling": True, "lr": 1}, {"pooling": "last", "lr": 0.5}, {"lr": 2})
    rows = [
        make_row(1, {"number": n, "arm": "a", "state": "completed", "params": params}, {})
        for n, params in enumerate(drawn)
    ]
    read = pd.read_parquet(io.BytesIO(write_parquet(make_frame([rows]))))
    assert read["pooling"].fillna("").tolist() == ["True", "last", ""]
    assert read["lr"].tolist() == [1.0, 0.5, 2.0]
