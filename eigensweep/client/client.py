"""The service from Python: post an experiment, follow it, read its trials.

Use: `Client("http://127.0.0.1:8642").submit("quickstart", seed=7).wait().trials`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

from eigensweep.client.analyses import Analysis
from eigensweep.client.answers.answers import (
    Answer,
    describe_comparison,
    describe_effort,
    describe_preview,
)
from eigensweep.client.connection import Connection, JsonObject, RefusedError
from eigensweep.client.events import Event
from eigensweep.client.experiments import Experiment
from eigensweep.client.reproductions import Reproduction
from eigensweep.client.shapes import DoneJson, ExperimentJson
from eigensweep.client.spec_file import (
    InputError,
    looks_like_a_file,
    make_spec_of_one,
    read,
    with_settings,
)
from eigensweep.search_spaces.labels import is_number

IS_ID = re.compile("1[0-9a-hjkmnp-tv-z]{12}")
"""Ids begin with the time, whose first digit is 1 until 2039. Other names are looked for."""
NEWEST = 200
"""Experiments among which the beginning of an id is looked for."""

SpecSource = Mapping[str, Any] | str | Path
"""A spec as a dict, the path of a YAML or JSON file, or the name of a preset."""


class Client(Connection):
    """The service as a Python object."""

    def submit(
        self, source: SpecSource, /, *, notify: Sequence[str] = (), **settings: Any
    ) -> Experiment:
        """Post an experiment: a dict, a YAML or JSON file, or the name of a preset.

        `settings` replace single fields, by dotted path:
        `submit("quickstart", seed=7, **{"training.steps": 50})`.
        `notify` are https addresses that the service tells how it ends; it must allow their hosts.
        `search.warm_start` takes whatever names an experiment: see `find_id`.

        Raises:
            InputError: if the file cannot be read or there is no such path.
            RefusedError: if the service finds something wrong with the spec.
        """
        spec = self._find_sources(self.read_spec(source, settings))
        query = "?" + urlencode({"notify": list(notify)}, doseq=True) if notify else ""
        return Experiment(self, self.post_once(Experiment.listing_path + query, spec))

    def preview(self, source: SpecSource, /, **settings: Any) -> Answer:
        """Return what `submit` would do with the same arguments, without posting it."""
        spec = self._find_sources(self.read_spec(source, settings))
        return Answer(self.post(f"{Experiment.listing_path}/preview", spec), describe_preview)

    def read_spec(self, source: SpecSource, settings: Mapping[str, Any]) -> dict[str, object]:
        """Return the spec that `source` names, with the fields in `settings` replaced."""
        if isinstance(source, Mapping):
            return with_settings(source, settings)
        if not str(source):
            raise InputError("the name of a spec is empty; give a file, a preset, or '-'")
        if isinstance(source, Path) or looks_like_a_file(source):
            return with_settings(read(source), settings)
        try:
            return with_settings(self.get(f"/v1/presets/{quote(source)}")["spec"], settings)
        except (RefusedError, KeyError):  # "." asks for the list of presets
            if Path(source).is_dir():  # beside a preset of that name it is not meant
                read(source)
            raise

    def _find_sources(self, spec: dict[str, object]) -> dict[str, object]:
        """Return a spec with the ids of the experiments that its search starts from."""
        search = spec.get("search")
        named = search.get("warm_start") if isinstance(search, dict) else None
        if not isinstance(search, dict) or not isinstance(named, list):
            return spec
        ids = [self.find_id(each) if isinstance(each, str) else each for each in named]
        return spec | {"search": search | {"warm_start": ids}}

    def experiment(self, name: str) -> Experiment:
        """Return an experiment that was posted before: see `find_id` for what names it."""
        return Experiment.load(self, self.find_id(name))

    def find_id(self, name: str) -> str:
        """Return the id of the experiment that somebody means.

        `name` is an id, the beginning of one, the experiment's name, or `last` for the newest one
        of all users.
        Archived ones are looked at where no other is meant. A name that nothing is found for comes
        back as it is; the service refuses it.

        Raises:
            InputError: if more than one experiment may be meant, `last` and there is none, or the
                name is empty.
        """
        if IS_ID.fullmatch(name):
            return name
        if not name:
            raise InputError(
                "the name of an experiment is empty; give its id, the beginning of one, its name, "
                "or 'last'"
            )
        if name == "last":
            found = self.experiments(1)
            if not found:
                raise InputError(
                    "'last' is the newest experiment that is not archived, and there is none yet"
                )
        else:
            found = self._find_named(name) or self._find_named(name, archived=True)
        ids = list(dict.fromkeys(each["id"] for each in found))
        if len(ids) > 1:
            raise InputError(
                f"'{name}' may be {', '.join(ids[:5])}{' and others' if ids[5:] else ''}: "
                "give more of the id"
            )
        return str(ids[0]) if ids else name

    def _find_named(self, name: str, **filters: bool) -> list[ExperimentJson]:
        """Return the experiments whose ids begin with this, or that are called so."""
        newest, called = self.experiments(NEWEST, **filters), self.experiments(name=name, **filters)
        found = [each for each in newest if each["id"].startswith(name)]
        return found + [each for each in called if each["name"] == name]

    def _find_subject(self, name: str) -> str:
        """Return `id`, `id/arm` or `id/number`; for the experiment see `find_id`."""
        experiment, slash, part = name.partition("/")
        found = self.find_id(experiment)
        if slash and not IS_ID.fullmatch(found):  # an experiment's name may have a slash
            experiment, slash, part = name.rpartition("/")
            found = self.find_id(experiment)
        return f"{found}{slash}{part}" if IS_ID.fullmatch(found) else self.find_id(name)

    def fork(self, experiment_id: str, /, **settings: Any) -> Experiment:
        """Post the spec of an experiment again, with the fields in `settings` replaced.

        Results that exist are taken over, and shorter trainings are continued. `fork("last/18",
        replicates=5)` posts one trial alone: its configuration, with more seeds or a longer budget.

        Raises:
            InputError: if there is no such path, or the trial has no configuration.
            RefusedError: if there is no such experiment or trial, or the service refuses the spec.
        """
        found, number = self.find_trial(experiment_id)
        spec = found.content["spec"]
        if number is not None:
            spec = make_spec_of_one(spec, found.trial(number))
        return self.submit(with_settings(spec, settings))

    def find_trial(self, name: str) -> tuple[Experiment, int | None]:
        """Return the experiment that `EXPERIMENT/NUMBER` means, and the number if it has one."""
        experiment, _, number = name.rpartition("/")
        if experiment and is_number(number):
            id = self.find_id(experiment)
            # A name may have a slash. Where there is no such experiment, the answer names `id`.
            if IS_ID.fullmatch(id) or not IS_ID.fullmatch(self.find_id(name)):
                return self.experiment(id), int(number)
        return self.experiment(name), None

    def act(self, action: str, *experiment_ids: str, confirm: bool = False) -> list[DoneJson]:
        """Do something to several experiments: `act("pause", first, second)`.

        Also `resume`, `cancel`, `retry`, `archive`, `unarchive`, `deliver`, and `delete` with
        `confirm`.

        Each item of the answer has `id`, `state` and `problem`, which says why one was refused.
        """
        ids = [self.find_id(each) for each in experiment_ids]
        body = {"action": action, "ids": ids, "confirm": confirm}
        items: list[DoneJson] = self.post(f"{Experiment.listing_path}/bulk", body)["items"]
        return items

    def cluster(self) -> JsonObject:
        """Return the nodes that trials run on, who uses them, and why experiments wait."""
        return self.get("/v1/cluster")

    def storage(self) -> JsonObject:
        """Return what takes disk space: parts of the home folder, users, experiments; in bytes."""
        return self.get("/v1/storage")

    def prune(
        self,
        keep: Literal["last", "best", "none"],
        *experiment_ids: str,
        older_than_days: float | None = None,
        dry_run: bool = True,
    ) -> JsonObject:
        """Remove checkpoints of experiments that are over, but for those that `keep` names.

        `prune("best", older_than_days=30)` only says what would go; `dry_run=False` removes it.
        Without ids: all experiments, which are yours unless you are an admin.
        """
        body = {
            "keep": keep,
            "experiments": [self.find_id(each) for each in experiment_ids] or None,
            "older_than_days": older_than_days,
            "dry_run": dry_run,
        }
        return self.post("/v1/storage/prune", body)

    def experiments(self, limit: int | None = None, **filters: Any) -> list[ExperimentJson]:
        """Return experiments, newest first: all, or those with a `state`, `project`, `owner`, ...

        They come without their specs; `experiment` has all of one.
        """
        return self.items(Experiment.listing_path, limit, **filters)

    def events(self, experiment_id: str, after: str | None = None) -> Iterator[Event]:
        """Yield the events of an experiment; see `Experiment.events`."""
        return Experiment(self, {"id": self.find_id(experiment_id)}).events(after)

    def compare(
        self, *names: str, metric: str | None = None, smallest: float | None = None
    ) -> Answer:
        """Compare trials (`id/number`), arms (`id/arm`) or experiments (`id`) seed by seed.

        In place of an id, `find_id` says what else names an experiment: `last/scornn`.

        `compare("1m7xnz0qe2nqc/scornn", "1m7xnz0qe2nqc/lstm")["pairs"][0]["test"]["words"]`.
        With `smallest`, the smallest difference of interest, sides may also be equivalent.

        Raises:
            RefusedError: if there is no such trial or metric; the message says why.
        """
        sides = [self._find_subject(name) for name in names]
        found = self.get("/v1/compare", of=sides, metric=metric, smallest=smallest)
        return Answer(found, describe_comparison)

    def compare_effort(self, *names: str, metric: str | None = None) -> Answer:
        """Compare arms (`id/arm`) or experiments (`id`) at equal tuning effort.

        `["sides"][0]["points"]` is the mean best test value of so many trials, with its band;
        `["pairs"][0]["words"]` compares two at as many trials, or core hours, each.

        Raises:
            RefusedError: if there is no such arm or metric; the message says why.
        """
        sides = [self._find_subject(name) for name in names]
        found = self.get("/v1/compare/effort", of=sides, metric=metric)
        return Answer(found, describe_effort)

    def analyse(
        self,
        name: str,
        /,
        *,
        experiment: str | None = None,
        trial: int | None = None,
        **options: Any,
    ) -> Analysis:
        """Ask for an analysis of a finished trial, of an experiment, or of matrices alone.

        `analyse("gradient_norms", experiment=id, trial=3, norm="frobenius").wait().save("out")`.
        A request that was made before gives the same analysis, which may be finished already.

        Raises:
            RefusedError: if it cannot be done; the message says why.
        """
        if experiment is not None:
            experiment = self.find_id(experiment)
        body = {"name": name, "experiment": experiment, "trial": trial, "options": options}
        return Analysis(self, self.post(Analysis.listing_path, body))

    def analysis(self, analysis_id: str) -> Analysis:
        """Return an analysis that was asked for before."""
        return Analysis.load(self, analysis_id)

    def reproduce(
        self,
        name: str,
        budget: str = "short",
        *,
        until_decided: bool = False,
        core_hours: float | None = None,
        most: int | None = None,
        resources: Mapping[str, object] | None = None,
    ) -> Reproduction:
        """Ask for a table or figure of a paper to be measured again.

        `reproduce("nnrnn/figure-2").wait().save("out")`. The same request gives the same
        reproduction, and what has finished is not run again. With `until_decided` seeds are added
        until the primary claim is decided, there are `most` of them, or added ones have taken
        `core_hours`. `resources` are those of a trial, such as `{"gpus": 1, "lanes": "auto"}`; by
        default it has a core.

        Raises:
            RefusedError: if there is none of this name; the message names the nearest.
        """
        asked: dict[str, object] = {"core_hours": core_hours, "most": most, "resources": resources}
        asked["until_decided"] = until_decided or None
        given = {field: value for field, value in asked.items() if value is not None}
        body = {"name": name, "budget": budget, **given}
        return Reproduction(self, self.post(Reproduction.listing_path, body))

    def reproduction(self, reproduction_id: str) -> Reproduction:
        """Return a reproduction that was asked for before."""
        return Reproduction.load(self, reproduction_id)
