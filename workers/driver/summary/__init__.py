"""What an experiment leaves at its end: report, plots, and the export of its study."""
