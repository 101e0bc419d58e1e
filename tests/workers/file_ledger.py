"""A ledger in memory and in a file: what the service's database is to a driver, in one page."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from eigensweep.workers.shared.ledger import Finished, StaleWriteError, TrialEntry


class FileLedger:
    """One experiment's record in a JSON file that several processes share. Picklable by its path.

    It also keeps what the Protocol only writes: ends, totals, and every write's history.
    """

    def __init__(self, path: Path | str, experiment: str = "e1") -> None:
        self.path, self.experiment = str(path), experiment

    @contextmanager
    def _content(self, write: bool = True) -> Iterator[dict[str, Any]]:
        with open(self.path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            content = json.loads(text) if text else {
                "trials": {}, "intent": "run", "end": None, "total": None, "run": None,
                "tracked": False, "history": [], "finished_elsewhere": {},
            }  # fmt: skip
            yield content
            if write:
                file.truncate(0)
                file.write(json.dumps(content, allow_nan=False))

    def _trial(self, content: dict[str, Any], number: int, attempt: int) -> dict[str, Any]:
        trial = content["trials"][str(number)]
        if attempt < trial["attempt"]:
            raise StaleWriteError(f"trial {number} is at attempt {trial['attempt']}")
        return trial

    def load(self) -> list[TrialEntry]:
        with self._content(write=False) as content:
            trials = [
                dict(t) for _, t in sorted(content["trials"].items(), key=lambda p: int(p[0]))
            ]
        for trial in trials:
            trial["reports"] = {int(step): m for step, m in trial["reports"].items()}
        return [TrialEntry(**trial) for trial in trials]

    def open(
        self,
        number: int,
        arm: str,
        params: dict[str, Any],
        config: dict[str, Any],
        config_hash: str,
    ) -> None:
        entry = TrialEntry(number, arm, params, config, config_hash, "waiting")
        with self._content() as content:
            content["trials"].setdefault(str(number), asdict(entry))

    def open_invalid(self, number: int, arm: str, params: dict[str, Any], error: str) -> None:
        entry = TrialEntry(number, arm, params, {}, "", "invalid", error=error)
        with self._content() as content:
            content["trials"].setdefault(str(number), asdict(entry))

    def begin(self, number: int) -> int:
        with self._content() as content:
            trial = content["trials"][str(number)]
            trial["attempt"] += 1
            trial["state"] = "running"
            content["history"].append(["begin", number, trial["attempt"]])
            return int(trial["attempt"])

    def interrupt(self, number: int, attempt: int, reason: str) -> None:
        with self._content() as content:
            self._trial(content, number, attempt)["state"] = "waiting"
            content["history"].append(["interrupt", number, attempt, reason])

    def report(
        self, number: int, attempt: int, step: int, metrics: dict[str, float], place: dict[str, Any]
    ) -> None:
        with self._content() as content:
            trial = self._trial(content, number, attempt)
            trial["reports"][str(step)], trial["place"] = metrics, place
            content["history"].append(["report", number, attempt, step])

    def finish(
        self,
        number: int,
        attempt: int,
        outcome: str,
        result: dict[str, Any] | None = None,
        error: str | None = None,
    ) -> None:
        with self._content() as content:
            self._trial(content, number, attempt).update(state=outcome, result=result, error=error)
            content["history"].append(["finish", number, attempt, outcome])

    def finished(self, config_hash: str, seed: int, replicates: int, steps: int) -> Finished | None:
        with self._content(write=False) as content:
            found = content["finished_elsewhere"].get(config_hash)
        return Finished(**found) if found else None

    def shorter(self, config_hash: str, seed: int, replicates: int, steps: int) -> Finished | None:
        return None

    def set_run(self, number: int | None, run_id: str) -> None:
        with self._content() as content:
            if number is None:
                content["run"] = run_id
            else:
                content["trials"][str(number)]["run_id"] = run_id

    def experiment_run(self) -> str | None:
        with self._content(write=False) as content:
            run: str | None = content["run"]
            return run

    def set_tracked(self, number: int | None) -> None:
        with self._content() as content:
            if number is None:
                content["tracked"] = True
            else:
                content["trials"][str(number)]["tracked"] = True

    def set_total(self, trials: int | None) -> None:
        with self._content() as content:
            content["total"] = trials

    def intent(self) -> Literal["run", "cancel"]:
        with self._content(write=False) as content:
            intent: Literal["run", "cancel"] = content["intent"]
            return intent

    def end(self, state: str, error: str | None = None) -> None:
        with self._content() as content:
            content["end"] = [state, error]

    # For tests.

    def cancel(self) -> None:
        with self._content() as content:
            content["intent"] = "cancel"

    def know(self, config_hash: str, found: Finished) -> None:
        """Pretend that another experiment has finished this configuration."""
        with self._content() as content:
            content["finished_elsewhere"][config_hash] = asdict(found)

    def read(self, name: str) -> Any:
        with self._content(write=False) as content:
            return content[name]
