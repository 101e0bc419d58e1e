"""Examples that the API's pages show. Tests post the specs and check the answers."""

from __future__ import annotations

from typing import Final, get_args

from fastapi.openapi.models import Example
from pydantic import JsonValue

from eigensweep.workers.shared.states import Action

Json = dict[str, JsonValue]

GRID: Final[Json] = {
    "name": "copying with scoRNN",
    "task": {"name": "copying", "delay": 100},
    "model": {"name": "scornn", "hidden_size": 64},
    "training": {"steps": 1000},
    "search": {
        "method": "grid",
        "space": {
            "optimizer.lr": [1e-2, 1e-3, 1e-4],
            "model.negative_fraction": [0.1, 0.5],
        },
    },
}

ARMS: Final[Json] = {
    "name": "who remembers",
    "task": {"name": "adding", "length": 200},
    "arms": [
        {"model": {"name": "lstm", "parameters": 15000}},
        {"model": {"name": "scornn", "parameters": 15000, "negative_fraction": 0.5}},
    ],
    "training": {"steps": 2000},
    "search": {
        "method": "tpe",
        "trials": 20,
        "space": {"optimizer.lr": {"low": 1e-5, "high": 1e-2, "log": True}},
    },
}

SPECS: Final[dict[str, Example]] = {
    "grid": {"summary": "A grid of six points", "value": GRID},
    "arms": {"summary": "Two models at equal size, by TPE", "value": ARMS},
}

TRIAL_SUMMARY: Final[Json] = {
    "number": 3,
    "arm": "scornn",
    "state": "completed",
    "params": {"optimizer.lr": 0.001, "model.negative_fraction": 0.5},
    "lineage": [],
    "hash": "9fc4804ccbcbae34",
    "attempt": 1,
    "value": 0.0031,
    "best_step": 900,
    "step": 1000,
    "steps": 1000,
    "metrics": {"cross_entropy": 0.0031, "recall_accuracy": 0.98},
    "test": {"cross_entropy": 0.0033, "recall_accuracy": 0.98},
    "statistics": {
        "value": {"mean": 0.0031, "n": 3, "sd": 0.0004, "low": 0.0021, "high": 0.0041},
        "test/cross_entropy": {
            "mean": 0.0033,
            "n": 3,
            "sd": 0.0005,
            "low": 0.0021,
            "high": 0.0045,
        },
    },
    "parameters": {"free": 3273, "stored": 3273},
    "seconds": 41.2,
    "error": None,
    "reopened_for": None,
    "started_at": "2026-11-20T12:00:05Z",
    "ended_at": "2026-11-20T12:00:51Z",
    "usage": {"trial_seconds": 46.0, "cpu_hours": 0.0128, "gpu_hours": 0.0},
    "links": {
        "self": "/v1/experiments/1m7xnz0qe2nqc/trials/3",
        "mlflow": "http://127.0.0.1:8642/mlflow/#/experiments/1/runs/c5e4e8bfbf7549c0b8b69d5d6ff5c265"
        "?workflowType=machine_learning",
    },
}

TRIAL: Final[Json] = {
    **TRIAL_SUMMARY,
    "config": {"task": {"name": "copying", "delay": 100}, "optimizer": {"lr": 0.001}},
    "result": {"outcome": "completed", "value": 0.0031, "best_step": 900, "step": 1000},
    "reports": [
        {
            "step": 100,
            "at": "2026-11-20T12:00:10Z",
            "metrics": {"valid/cross_entropy": 0.17},
        }
    ],
    "attempts": [
        {
            "attempt": 1,
            "started_at": "2026-11-20T12:00:05Z",
            "ended_at": "2026-11-20T12:00:51Z",
            "reason": None,
            "node": "here",
            "node_id": "7f3c0a4be1d95268f0b7c6d2a91e8f43b5d06c7e9a12f8b3c4d5e6f7",
            "pid": 4711,
            "device": "cpu",
            "lanes": None,
        }
    ],
}

_LINKS: Final[Json] = {
    "self": "/v1/experiments/1m7xnz0qe2nqc",
    "page": "/experiments/1m7xnz0qe2nqc",
    "trials": "/v1/experiments/1m7xnz0qe2nqc/trials",
    "events": "/v1/experiments/1m7xnz0qe2nqc/events",
    "mlflow": "http://127.0.0.1:8642/mlflow/#/experiments/1/runs"
    "?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey=1m7xnz0qe2nqc",
    "run": "http://127.0.0.1:8642/mlflow/#/experiments/1/runs/f7ee47fe2ca44c838c85a1e240a10f22"
    "?workflowType=machine_learning",
}

EXPERIMENT_SUMMARY: Final[Json] = {
    "id": "1m7xnz0qe2nqc",
    "owner": "anna",
    "name": "copying with scoRNN",
    "project": "default",
    "state": "running",
    "priority": 0,
    "queue_place": None,
    "created_at": "2026-11-20T12:00:00Z",
    "started_at": "2026-11-20T12:00:00Z",
    "finished_at": None,
    "archived_at": None,
    "kept": "all",
    "baseline": 0.1733,
    "metric": {"name": "cross_entropy", "unit": "nats", "better": "lower"},
    "progress": {
        "total": 6,
        "waiting": 0,
        "running": 2,
        "completed": 3,
        "pruned": 0,
        "diverged": 1,
        "stalled": 0,
        "failed": 0,
        "cancelled": 0,
        "reused": 0,
        "invalid": 0,
        "steps_done": 4200,
        "steps_total": 5300,
        "fraction": 0.79,
    },
    "eta_seconds": 24.0,
    "notices": [],
    "wall_seconds": 95.0,
    "usage": {"trial_seconds": 171.0, "cpu_hours": 0.0475, "gpu_hours": 0.0},
    "best": {
        name: TRIAL_SUMMARY[name] for name in ("number", "arm", "state", "params", "value", "links")
    },
    "error": None,
    "delivered": False,
    "cancel_requested": False,
    "links": _LINKS,
}

EXPERIMENT: Final[Json] = {
    **EXPERIMENT_SUMMARY,
    "best": TRIAL,
    "reused_from": [],
    "spec": GRID,
    "links": {
        **_LINKS,
        **{name: f"/v1/experiments/1m7xnz0qe2nqc/{name}" for name in get_args(Action)},
    },
}
POSTED: Final[Json] = {
    **EXPERIMENT,
    "memory": {
        "scornn": {"host_bytes": 394_000_000, "device_bytes": 0, "limit_bytes": 1_788_000_000}
    },
    "warnings": [],
}

ANALYSES: Final[dict[str, Example]] = {
    "trial": {
        "summary": "Heat maps of a trained trial",
        "value": {"name": "gradient_norms", "experiment": "1m7xnz0qe2nqc", "trial": 3},
    },
    "matrices": {
        "summary": "Fisher memory of matrices, no trial needed",
        "value": {"name": "fisher_memory", "options": {"alpha": [0.95, 1.0], "d": [0.0, 0.2]}},
    },
}

ANALYSIS: Final[Json] = {
    "id": "3b0c44298fc1c149",
    "name": "hidden_states",
    "experiment": "1m7xnz0qe2nqc",
    "trial": 3,
    "options": {"weights": "last", "replicate": 0, "sequence": 0, "length": None},
    "state": "finished",
    "created_at": "2026-11-20T12:10:00Z",
    "started_at": "2026-11-20T12:10:00Z",
    "finished_at": "2026-11-20T12:10:04Z",
    "error": None,
    "mlflow_problem": None,
    "links": {
        "self": "/v1/analyses/3b0c44298fc1c149",
        "files": {
            name: f"/v1/analyses/3b0c44298fc1c149/files/{name}"
            for name in ("result.json", "table.csv", "figure.png", "figure.svg")
        },
        "mlflow": "http://127.0.0.1:8642/mlflow/#/experiments/1/runs/c5e4e8bfbf7549c0b8b69d5d6ff5c265"
        "?workflowType=machine_learning",
    },
}

REPRODUCTIONS: Final[dict[str, Example]] = {
    "short": {
        "summary": "A figure, cut to minutes",
        "value": {"name": "nnrnn/figure-1c", "budget": "short"},
    },
}

REPRODUCTION: Final[Json] = {
    "id": "0c1d44298fc1c149",
    "owner": "anna",
    "name": "enrnn/figure-2",
    "budget": "short",
    "title": "Copying over 2,000 steps",
    "state": "running",
    "fraction": 0.4,
    "created_at": "2026-11-20T12:00:00Z",
    "finished_at": None,
    "experiments": [
        {
            "label": "main",
            "id": "1m7xnz0qe2nqc",
            "state": "running",
            "fraction": 0.4,
            "problem": None,
            "link": "/v1/experiments/1m7xnz0qe2nqc",
        }
    ],
    "analyses": [],
    "verdict": None,
    "words": None,
    "error": None,
    "mlflow_problem": None,
    "links": {
        "self": "/v1/reproductions/0c1d44298fc1c149",
        "page": "/reproductions/0c1d44298fc1c149",
        "cancel": "/v1/reproductions/0c1d44298fc1c149/cancel",
        "report": {},
    },
}

COMPARISON: Final[Json] = {
    "method": "two-sided paired t-test over shared seeds, p-values corrected after Holm",
    "comparisons": {"valid": 1, "test": 1},
    "smallest": None,
    "version": "0.2.0",
    "sides": [
        {
            "name": name,
            "chosen": "best of the arm on validation data",
            "experiment": "1m7xnz0qe2nqc",
            "experiment_name": "copying with two models",
            "trial": number,
            "arm": name.partition("/")[2],
            "state": "completed",
            "hash": digest,
            "params": {"optimizer.lr": 0.001},
            "steps": 1000,
            "seeds": [0, 1, 2],
            "metric": {"name": "cross_entropy", "unit": "nats", "better": "lower"},
            "baseline": 0.1733,
            "valid": {
                "mean": mean,
                "n": 3,
                "sd": 0.001,
                "low": mean - 0.0025,
                "high": mean + 0.0025,
            },
            "test": {
                "mean": mean,
                "n": 3,
                "sd": 0.001,
                "low": mean - 0.0025,
                "high": mean + 0.0025,
            },
        }
        for name, number, digest, mean in (
            ("1m7xnz0qe2nqc/scornn", 3, "9fc4804ccbcbae34", 0.0033),
            ("1m7xnz0qe2nqc/lstm", 7, "0d9c5e1b7a3f2468", 0.1701),
        )
    ],
    "pairs": [
        {
            "first": "1m7xnz0qe2nqc/scornn",
            "second": "1m7xnz0qe2nqc/lstm",
            **{
                split: {
                    "verdict": "better",
                    "reason": None,
                    "words": "1m7xnz0qe2nqc/scornn is better than 1m7xnz0qe2nqc/lstm on "
                    f"{words}: cross_entropy differs by -0.1668 nats, -96.2 % of the baseline "
                    "(95% interval -0.1693 to -0.1643; p = 1.2e-05; n = 3, seeds 0 to 2)",
                    "seeds": [0, 1, 2],
                    "n": 3,
                    "mean": -0.1668,
                    "sd": 0.001,
                    "low": -0.1693,
                    "high": -0.1643,
                    "p": 1.2e-05,
                    "corrected_p": 1.2e-05,
                    "alike_p": None,
                    "effect": -0.962,
                    "so_far": {
                        "e_value": 4.0,
                        "wanted": 20.0,
                        "verdict": "not distinguishable",
                        "decided": False,
                        "low": None,
                        "high": None,
                        "seeds": 5,
                        "looks": [
                            {
                                "seeds": 3,
                                "mean": -0.1668,
                                "low": None,
                                "high": None,
                                "e_value": 4.0,
                            }
                        ],
                        "plan": None,
                    },
                }
                for split, words in (("valid", "validation data"), ("test", "test data"))
            },
        }
    ],
}

EFFORT: Final[Json] = {
    "method": "mean test value of the trial with the best validation value among k, without bias; "
    "95% band of each number of trials alone, for any distribution",
    "version": "0.2.0",
    "metric": {"name": "cross_entropy", "unit": "nats", "better": "lower"},
    "reason": None,
    "sides": [
        {
            "name": f"1m7xnz0qe2nqc/{arm}",
            "experiment_name": "copying with two models",
            "reason": None,
            "method": "random",
            "trials": trials,
            "diverged": 1,
            "pruned": 0,
            "left_out": 0,
            "core_hours": 0.05,
            "gpu_hours": 0.0,
            "points": [
                {
                    "trials": count,
                    "core_hours": 0.05 * count,
                    "gpu_hours": 0.0,
                    "mean": mean,
                    "low": 0.2 * mean,
                    "high": 2 * mean,
                }
                for count, mean in ((1, first), (12, best))
            ],
            "words": f"1m7xnz0qe2nqc/{arm}: {trials} trials by random search, 1 of them "
            "diverged, with the worst value",
        }
        for arm, trials, first, best in (("scornn", 40, 0.051, 0.0033), ("lstm", 12, 0.173, 0.17))
    ],
    "pairs": [
        {
            "first": "1m7xnz0qe2nqc/scornn",
            "second": "1m7xnz0qe2nqc/lstm",
            "equal": "trials",
            "hours": None,
            "first_trials": 12,
            "second_trials": 12,
            "mean": -0.1667,
            "low": -0.2,
            "high": -0.05,
            "verdict": "better",
            "words": "At 12 trials each, on test data 1m7xnz0qe2nqc/scornn reaches 0.0033 (0.001 "
            "to 0.006) and 1m7xnz0qe2nqc/lstm reaches 0.17 (0.06 to 0.171): 1m7xnz0qe2nqc/scornn "
            "is better than 1m7xnz0qe2nqc/lstm (cross_entropy differs by -0.1667 nats, 95% "
            "interval -0.2 to -0.05)",
        }
    ],
}
