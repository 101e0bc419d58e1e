"""A plain loop around Ray Tune, as people write it today; `bench.overhead` compares with it.

It has a function trainable, a random search, and MLflow's callback on a SQLite store. Each trial is
one training step of the same small network, through `eigensweep.training.training`. It prints
trials a second as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback

from bench.overhead import one_step


def trainable(config: dict[str, Any]) -> None:
    """Train one step and report the loss."""
    from eigensweep.search_spaces.trial import TrialConfig
    from eigensweep.training.training import Training

    recipe = {k: v for k, v in config["spec"].items() if k in ("task", "model", "training")}
    training = Training(TrialConfig.from_dict(recipe | {"optimizer": {"lr": config["lr"]}}), seed=0)
    training.run()
    tune.report({"loss": training.result().value})


class Stamps(tune.Callback):
    """Record the start of the first trial and the end of the last one."""

    first = last = 0.0

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        Stamps.first = Stamps.first or time.monotonic()

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        Stamps.last = time.monotonic()


def main() -> None:
    """Run the loop and print trials a second as JSON."""
    trials, folder = int(sys.argv[1]), Path(sys.argv[2])
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    spec = one_step(trials, 0)
    tuner = tune.Tuner(
        trainable,
        param_space={"lr": tune.loguniform(1e-4, 1e-2), "spec": spec},
        tune_config=tune.TuneConfig(num_samples=trials, metric="loss", mode="min"),
        run_config=tune.RunConfig(
            storage_path=str(folder / "tune"),
            verbose=0,
            callbacks=[
                Stamps(),
                MLflowLoggerCallback(
                    tracking_uri=f"sqlite:///{folder / 'plain.db'}", experiment_name="plain"
                ),
            ],
        ),
    )
    if failed := tuner.fit().num_errors:
        raise SystemExit(f"{failed} of {trials} trials failed")
    print(json.dumps({"trials_a_second": trials / (Stamps.last - Stamps.first)}))  # noqa: T201


if __name__ == "__main__":
    main()
