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


def test_a_whole_number_that_some_trials_lack_stays_one():
    """Of two parts, as a large table comes."""
    rows = [
        make_row(0, {"number": number, "arm": "a", "state": "completed", "params": params}, {})
        for number, params in enumerate(
            [{"model.layers": 3}, {"optimizer.lr": 1}, {"optimizer.lr": 0.5, "model.layers": 128}]
        )
    ]
    lines = make_frame([rows[:1], rows[1:]]).to_csv(index=False).splitlines()
    heads, *cells = (line.split(",") for line in lines)
    columns = {head: [row[at] for row in cells] for at, head in enumerate(heads)}
    assert columns["model.layers"] == ["3", "", "128"]
    assert columns["optimizer.lr"] == ["", "1.0", "0.5"]
