"""The loop over time, for each kind of cell: a readable reference and a fast form of it."""
