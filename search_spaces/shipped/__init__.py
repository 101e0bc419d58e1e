"""What ships with the project: presets of the papers, and suites that reproduce them."""
