"""What runs in a driver's tracking thread: it sends committed curves and results to MLflow.

`tracker` decides what to send, `subject` describes the experiment, and `mlflow_runs` alone imports
MLflow's client. The process of an analysis uses `mlflow_runs`, too.
"""
