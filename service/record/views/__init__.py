"""What is read of experiments and trials, for lists and pages."""
