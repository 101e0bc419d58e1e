"""What runs in a driver's process: one experiment, with Ray Tune and Optuna."""
