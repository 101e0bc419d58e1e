"""The loop over time, written once for each kind of cell."""
