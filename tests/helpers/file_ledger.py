"""A ledger in a file: what the service's database is to a driver, in one page."""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from eigensweep.protocol.fair_shares import Allotment, Claimant, Demand, allot
from eigensweep.protocol.ledger import (
    NOTHING,
    Earlier,
    Finished,
    ResumeState,
    RungReport,
    StaleWriteError,
    SupersededError,
    TrialEntry,
)
from eigensweep.protocol.messages import ConfigJson, Notice, Params, Place, Takeover
from eigensweep.protocol.states import INSTRUCTIVE, OPEN_TRIALS, Intent, Phase
from eigensweep.results.seeds import cut_seeds
from eigensweep.results.trial_result import Metrics, Outcome, Result, Source


class Trials(MutableMapping[str, Any]):
    """Trials by their numbers, each of which is parsed when it is asked for: most never are."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts
        self._parsed: dict[str, Any] = {}

    def texts(self) -> dict[str, str]:
        """Return each trial as JSON."""
        own = {key: json.dumps(trial, allow_nan=False) for key, trial in self._parsed.items()}
        return self._texts | own

    def find(self, config_hash: str) -> list[Any]:
        """Return the trials of a configuration, of trials that were read and not changed since."""
        named = [key for key, text in self._texts.items() if config_hash in text]
        return [trial for key in named if (trial := self[key])["config_hash"] == config_hash]

    def __getitem__(self, key: str) -> Any:
        if key not in self._parsed:
            self._parsed[key] = json.loads(self._texts[key])
        return self._parsed[key]

    def __setitem__(self, key: str, trial: Any) -> None:
        self._parsed[key] = trial
        self._texts.setdefault(key, "")

    def __delitem__(self, key: str) -> None:
        del self._texts[key]
        self._parsed.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class FileLedger:
    """One experiment's record in a file that several processes share. Picklable by its path.

    The first line is JSON, and each other one the number of a trial and its JSON. It also keeps the
    history of writes, for tests to look at.
    """

    def __init__(self, path: Path | str, experiment: str = "e1", generation: int = 1) -> None:
        self.path, self.experiment_id, self.generation = str(path), experiment, generation

    @contextmanager
    def _open(self, write: bool) -> Iterator[dict[str, Any]]:
        with open(os.open(self.path, os.O_RDWR | os.O_CREAT), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            first, *lines = file.read().split("\n")
            content = json.loads(first) if first else {
                "generation": 1, "intent": "run", "end": None, "total": None,
                "run": None, "tracked": False, "history": [], "finished_elsewhere": {}, "round": 0,
                "notices": [],
                "edition": 0, "closed": False,
            }  # fmt: skip
            content["trials"] = trials = Trials(dict(line.split(" ", 1) for line in lines))
            yield content
            if write:
                rest = {name: value for name, value in content.items() if name != "trials"}
                lines = [f"{number} {text}" for number, text in trials.texts().items()]
                file.seek(0)
                file.write("\n".join([json.dumps(rest, allow_nan=False), *lines]))
                file.truncate()  # at the end: a file that was made empty goes to the disk at once

    @contextmanager
    def _change(self) -> Iterator[dict[str, Any]]:
        with self._open(write=True) as content:
            self._check_generation(content)
            yield content

    def _check_generation(self, content: dict[str, Any]) -> None:
        if content["generation"] != self.generation:
            raise SupersededError(f"driver {self.generation} has a successor")

    def _trial(self, content: dict[str, Any], number: int, attempt: int) -> dict[str, Any]:
        trial = content["trials"][str(number)]
        if attempt < trial["attempt"]:
            raise StaleWriteError(f"trial {number} is at attempt {trial['attempt']}")
        return trial

    def load(self) -> list[TrialEntry]:
        trials = self.read("trials")
        return [_read_entry(trials[number]) for number in sorted(trials, key=int)]

    def walk(self) -> Iterator[TrialEntry]:
        yield from self.load()

    def _add(self, number: int, **fields: Any) -> None:
        rest = {"attempt": 0, "reports": {}, "place": None, "result": None, "error": None}
        rest["lineage"] = []
        trial = {"number": number, **rest, "run_id": None, "tracked": False, **fields}
        with self._change() as content:
            content["trials"].setdefault(str(number), trial)

    def open(
        self,
        number: int,
        arm: str,
        params: Params,
        config: ConfigJson,
        config_hash: str,
        sampler_state: dict[str, Any] = NOTHING,
        error: str | None = None,
    ) -> None:
        point = {"arm": arm, "params": params, "config": config, "config_hash": config_hash}
        state = "waiting" if error is None else "invalid"
        self._add(number, **point, state=state, sampler_state=sampler_state, error=error)

    def begin(self, number: int, place: Place | None = None) -> int:
        with self._change() as content:
            trial = content["trials"][str(number)]
            if trial["state"] not in OPEN_TRIALS:
                raise StaleWriteError(f"trial {number} has ended already")
            trial["attempt"] += 1
            trial["state"] = "running"
            if place is not None:
                trial["place"] = place.to_dict()
            content["history"].append(["begin", number, trial["attempt"]])
            return int(trial["attempt"])

    def interrupt(self, number: int, attempt: int, reason: str) -> None:
        with self._change() as content:
            trial = self._trial(content, number, attempt)
            if trial["state"] == "running":
                trial["state"] = "waiting"
                content["history"].append(["interrupt", number, attempt, reason])

    def report(
        self, number: int, attempt: int, step: int, metrics: Metrics, place: Place | None
    ) -> None:
        with self._change() as content:
            self._report(content, number, attempt, RungReport(step, metrics, place))

    def _report(self, content: dict[str, Any], number: int, attempt: int, told: RungReport) -> None:
        trial = self._trial(content, number, attempt)
        if told.place is not None:
            trial["place"] = told.place.to_dict()
        known = {name: value for name, value in told.metrics.items() if math.isfinite(value)}
        if trial["state"] in OPEN_TRIALS and known:
            trial["reports"].setdefault(str(told.step), known)
        content["history"].append(["report", number, attempt, told.step])

    def finish(
        self,
        number: int,
        attempt: int,
        outcome: Outcome,
        result: Result | None = None,
        error: str | None = None,
        last: RungReport | None = None,
    ) -> None:
        with self._change() as content:
            trial = self._trial(content, number, attempt)
            if last is not None:
                self._report(content, number, attempt, last)
            if trial["state"] in OPEN_TRIALS:
                self._put(content, _read_entry(trial).ended(outcome, result, error))
                content["history"].append(["finish", number, attempt, outcome])

    def reopen(self, number: int, config: ConfigJson, reason: str) -> None:
        with self._change() as content:
            trial = content["trials"][str(number)]
            if trial["state"] not in OPEN_TRIALS:
                self._put(content, _read_entry(trial).reopened(config, reason))
                content["history"].append(["reopen", number, config["replicates"], reason])

    def _put(self, content: dict[str, Any], entry: TrialEntry) -> None:
        trial = content["trials"][str(entry.number)]
        result = None if entry.result is None else _replace_unknown(entry.result.to_dict())
        earlier = entry.earlier and asdict(entry.earlier)
        changed = {"state": entry.state, "config": entry.config, "tracked": entry.tracked}
        trial.update(**changed, result=result, error=entry.error, earlier=earlier)

    def knows(self, config_hash: str) -> bool:
        with self._open(write=False) as content:
            states = {trial["state"] for trial in content["trials"].find(config_hash)}
            return bool(states & {"completed", "diverged"}) or (
                config_hash in content["finished_elsewhere"]
            )

    def find_finished(
        self, config_hash: str, seed: int, replicates: int, steps: int
    ) -> Finished | None:
        elsewhere = self.read("finished_elsewhere").get(config_hash)
        if elsewhere is not None:
            found = _read_finished(elsewhere)
            if found.result.replicates == replicates:
                return found
            enough = found.result.replicates > replicates
            return replace(found, result=cut_seeds(found.result, replicates)) if enough else None
        same = self._find_completed(config_hash, seed, replicates)
        return next((found for budget, found in same if budget == steps), None)

    def find_part(self, config_hash: str, seed: int, steps: int) -> Finished | None:
        known = [found for budget, found in self._find_completed(config_hash, seed, None)
                 if budget == steps]  # fmt: skip
        elsewhere = self.read("finished_elsewhere").get(config_hash)
        known += [] if elsewhere is None else [_read_finished(elsewhere)]
        return max(known, key=lambda found: found.result.replicates, default=None)

    def find_shorter(
        self, config_hash: str, seed: int, replicates: int, steps: int
    ) -> Finished | None:
        same = self._find_completed(config_hash, seed, replicates)
        known = [(budget, found) for budget, found in same if budget < steps]
        return max(known, key=lambda pair: pair[0])[1] if known else None

    def _find_completed(
        self, config_hash: str, seed: int, replicates: int | None
    ) -> Iterator[tuple[int, Finished]]:
        same = map(_read_entry, self.read("trials").find(config_hash))
        for entry in (each for each in same if not each.lineage):
            seeds = () if entry.result is None else entry.result.by_replicate
            whole = replicates is None and all(each.outcome is not None for each in seeds)
            ended = ("completed", "diverged") if whole else ("completed",)
            if entry.state in ended:
                config = entry.config
                enough = config["replicates"] >= (replicates or 1)
                named = entry.result is not None and entry.result.code == config.get("code")
                if config["seed"] == seed and enough and entry.result and named:
                    source = Source(self.experiment_id, entry.number, entry.run_id)
                    same = replicates in (None, config["replicates"])
                    result = entry.result if same else cut_seeds(entry.result, replicates)
                    yield config["training"]["steps"], Finished(source, result)

    def load_earlier(self, experiments: Sequence[str]) -> list[tuple[Source, TrialEntry]]:
        """Return trials of ledgers that lie beside this one, each named by its experiment."""
        return [
            (Source(id, entry.number, entry.run_id), entry)
            for id in experiments
            for entry in FileLedger(Path(self.path).parent / f"{id}.json", id).load()
            if entry.state in INSTRUCTIVE and not entry.lineage
        ]

    def read_round(self) -> int:
        step: int = self.read("round")
        return step

    def end_round(self, step: int, takeovers: Mapping[int, Takeover]) -> None:
        with self._change() as content:
            if content["round"] >= step:
                return
            content["round"] = step
            for number, taken in takeovers.items():
                content["trials"][str(number)]["lineage"].append(taken.to_dict())
            content["history"].append(["round", step, sorted(takeovers)])

    def set_run(self, run_id: str, project_id: str) -> None:
        with self._change() as content:
            content["run"] = run_id

    def experiment_run(self) -> str | None:
        run: str | None = self.read("run")
        return run

    def set_tracked(self) -> None:
        with self._change() as content:
            content["tracked"] = True

    def forget_delivery(self) -> None:
        with self._change() as content:
            for number in content["trials"]:
                content["trials"][number]["tracked"] = False

    def set_delivered(
        self, runs: Mapping[int, str], project_id: str, whole: Collection[int]
    ) -> None:
        with self._change() as content:
            for number, run_id in runs.items():
                content["trials"][str(number)]["run_id"] = run_id
            for number in whole:
                content["trials"][str(number)]["tracked"] = True

    def set_total(self, trials: int | None) -> None:
        with self._change() as content:
            content["total"] = trials

    def intent(self) -> Intent:
        with self._open(write=False) as content:
            self._check_generation(content)
            intent: Intent = content["intent"]
            return intent

    def find_stops(self) -> frozenset[int]:
        with self._open(write=False) as content:
            return frozenset(content.get("stops", ()))

    def resume_state(self) -> ResumeState:
        with self._open(write=True) as content:
            started = content.setdefault("started_at", time.time())
            end = content["end"]
            ended = None if end is None else tuple(end)
            spent = time.time() - started
            return ResumeState(content["edition"], content["closed"], spent, ended=ended)

    def record_phase(self, phase: Phase) -> None:
        with self._change() as content:
            content["history"].append(["enter", phase])

    def record_demand(self, demand: Demand) -> None:
        with self._change() as content:
            content["wants"] = demand.to_dict()

    def find_allotment(self) -> Allotment:
        """Return what it may have beside the experiments that a test has put there."""
        with self._open(write=False) as content:
            wants, others = content.get("wants"), content.get("others", [])
        found = [(self.experiment_id, "operator", wants, 0)] if wants else []
        claimants = [
            Claimant(id, owner, 0, 0.0, Demand.from_dict(want), running)
            for id, owner, want, running in [*found, *others]
        ]
        return allot(claimants).get(self.experiment_id, Allotment())

    def record_notices(self, notices: Sequence[Notice]) -> None:
        with self._change() as content:
            content["notices"] = [notice.to_dict() for notice in notices]

    def request_pause(self, reason: str) -> None:
        with self._change() as content:
            if content["intent"] == "run":
                content["intent"] = "pause"

    def pause(self) -> bool:
        with self._change() as content:
            is_paused = bool(content["intent"] == "pause")
            for trial in content["trials"].values():
                if is_paused and trial["state"] == "running":
                    trial["state"] = "waiting"
            content["history"].append(["pause", content["intent"]])
            return is_paused

    def end(self, state: Any, error: str | None = None) -> Any:
        with self._change() as content:
            if content["end"] is not None:
                return tuple(content["end"])
            if state == "completed" and content["intent"] == "cancel":
                state = "cancelled"
            content["end"] = [state, error]
            for trial in content["trials"].values():
                if trial["state"] in OPEN_TRIALS:
                    entry = _read_entry(trial)
                    self._put(content, entry.ended("cancelled", entry.result, None))
        return state, error

    # For tests.

    def cancel(self) -> None:
        """Ask the driver to stop, as a person does."""
        self.want("cancel")

    def want(self, intent: Intent) -> None:
        """Ask the driver to go on, to pause or to stop, as a person does."""
        with self._open(write=True) as content:
            content["intent"] = intent

    def stop(self, number: int) -> None:
        """Ask the driver to stop one trial, as a person does."""
        with self._open(write=True) as content:
            content["stops"] = [*content.get("stops", ()), number]

    def contend(self, *others: tuple[str, str, Demand, int]) -> None:
        """Let other experiments be at work: id, owner, what it wants, and what runs of it."""
        with self._open(write=True) as content:
            content["others"] = [(id, o, want.to_dict(), n) for id, o, want, n in others]

    def take_up(self, closed: bool = False, failed: bool = False) -> None:
        """Take the experiment up again that is over, and with `failed` its failed trials."""
        if failed:
            for entry in self.load():
                if entry.state == "failed":
                    self.reopen(entry.number, entry.config, "another try")
        with self._open(write=True) as content:
            content.update(end=None, tracked=False, closed=closed)
            content["edition"] += 1
            for trial in content["trials"].values():
                trial["sampler_state"] = {}

    def replace_driver(self) -> None:
        """Give the experiment to another driver: this one's writes are refused."""
        with self._open(write=True) as content:
            content["generation"] += 1

    def know(self, config_hash: str, found: Finished) -> None:
        """Pretend that another experiment has finished this configuration."""
        with self._open(write=True) as content:
            content["finished_elsewhere"][config_hash] = {
                "source": found.source.to_dict(),
                "result": found.result.to_dict(),
            }

    def read(self, name: str) -> Any:
        with self._open(write=False) as content:
            return content[name]


def _read_entry(trial: dict[str, Any]) -> TrialEntry:
    content = dict(trial)
    content["reports"] = {int(step): metrics for step, metrics in trial["reports"].items()}
    content["place"] = trial["place"] and Place.from_dict(trial["place"])
    content["earlier"] = trial.get("earlier") and Earlier(**trial["earlier"])
    content["result"] = trial["result"] and Result.from_dict(trial["result"])
    content["lineage"] = tuple(Takeover.from_dict(each) for each in trial["lineage"])
    return TrialEntry(**content)


def _read_finished(content: dict[str, Any]) -> Finished:
    return Finished(Source.from_dict(content["source"]), Result.from_dict(content["result"]))


def _replace_unknown(content: Any) -> Any:
    """Return JSON content with None for every number that is not finite."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _replace_unknown(value) for name, value in content.items()}
    return [_replace_unknown(value) for value in content] if isinstance(content, list) else content
