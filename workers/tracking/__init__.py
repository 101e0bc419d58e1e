"""What a driver's tracking thread does: deliver committed curves and results to MLflow."""
