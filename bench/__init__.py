"""What `make bench` measures: side by side in one run, as medians and ratios."""
