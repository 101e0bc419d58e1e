"""What trains trials and runs experiments. Importing it loads neither torch nor Ray nor MLflow."""
