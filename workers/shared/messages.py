"""Messages between a driver, its trials' processes, the record and MLflow.

Inside a process a message is a frozen object. Where it crosses an edge (Ray Tune's configs and
results, a JSON column of the database, a file), `to_dict` makes plain data of it and `from_dict`
reads it back. The keys of that data are stored and shown by the REST API, so they do not change.
`from_dict` also reads data that was written before a key existed: the field's default is taken.

Importing this loads neither torch nor Ray nor pydantic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from eigensweep.results.statistics import Summary, find_domain, summarize
from eigensweep.workers.shared.logs import LogFormat
from eigensweep.workers.shared.states import Outcome

if TYPE_CHECKING:
    from eigensweep.search_spaces.parameters import Scalar

ConfigJson = dict[str, Any]
"""A resolved `TrialConfig` as JSON. It stays JSON here because the class needs torch."""

SpecJson = dict[str, Any]
"""An `ExperimentSpec` as JSON, as it was posted."""

Params: TypeAlias = "dict[str, Scalar]"
"""The point of a search space that a trial is: dotted path to value."""

Metrics = dict[str, float]
"""Values by name, finite numbers only."""

Reports = tuple[tuple[int, float], ...]
"""Step and objective of each rung report of a trial, in order."""

End = Literal["completed", "diverged"]
"""How a training ends by itself."""


@dataclass(frozen=True)
class DriverOptions:
    """What the deployment tells a driver, and no spec may choose. All paths are absolute."""

    storage: str
    """Folder of checkpoints and curves, which every node shares, or the URL of an object store."""
    mlflow_uri: str | None = None
    """None: nothing is tracked."""
    mlflow_token: str | None = field(default=None, repr=False)
    """What MLflow wants to be sent; None: nothing."""
    data_root: str | None = None
    """Folder of corpora."""
    shares_corpora: bool = False
    """Whether nodes may lack corpora, so that the driver puts them into the store."""
    retries: int = 3
    """How many processes a trial may lose before it counts as failed."""
    checkpoint_seconds: float = 10.0
    """Training that a lost process costs at most; commits that cost little come more often."""
    concurrency: int | None = None
    """Trials at once; None: as many as the cluster has room for."""
    log_format: LogFormat = "text"
    """Form of the log lines of the driver and of its trials' processes."""
    otlp_endpoint: str | None = None
    """Where spans are sent; None: there are none."""
    trace: str | None = None
    """The place in a trace at which the experiment was posted, or that of its driver."""
    least_free_bytes: int = 0
    """Free space of the disks that are written to, below which no trial begins; 0: any."""
    room_seconds: float = 0.0
    """How long to wait for a node that a trial fits on before the experiment counts as failed."""

    def __post_init__(self) -> None:
        for path in (self.storage, self.data_root or "/"):
            if not (Path(path).is_absolute() or (path == self.storage and "://" in path)):
                raise ValueError(f"a driver needs absolute paths, such as /var/lib; got '{path}'")


@dataclass(frozen=True)
class Message:
    """A message whose plain data has the names of its fields."""

    READ: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """What reads the fields whose plain data is not what they are, but for None."""

    def to_dict(self) -> dict[str, object]:
        return {each.name: _make_plain(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        names = {each.name for each in fields(cls)}
        known = {name: value for name, value in content.items() if name in names}
        for name, read in cls.READ.items():
            if known.get(name) is not None:
                known[name] = read(known[name])
        return cls(**known)


def _make_plain(value: object) -> object:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Message | Result):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_make_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class Place(Message):
    """Where an attempt runs."""

    node: str
    """The host's name."""
    pid: int
    device: str
    """`cpu`, or `cuda` with Ray's id of the GPU, such as `cuda:3`."""
    lanes: int | None = None
    """How many lanes the engine has; None: the process is the trial's own."""
    node_id: str | None = None
    """Ray's id of the node: several nodes may have one host's name."""


@dataclass(frozen=True)
class Code(Message):
    """Which code a process runs."""

    folder: str
    """Where Eigensweep is imported from."""
    digest: str
    """Of the files that decide a trial's numbers, and of `packages`."""
    node: str
    """The host's name."""
    packages: str = ""
    """Digest of the versions of Python, torch, NumPy, Ray and the packages that add models."""
    identity: str = ""
    """Of the very folders: the machine since it was started, and their places on its disks."""
    core: str = ""
    """Digest of all but the packages that add models and tasks."""
    plugins: dict[str, str] = field(default_factory=dict)
    """By each model and task that such a package adds, a digest of the package."""


@dataclass(frozen=True)
class EngineNeed(Message):
    """An engine as a trial wants it: one process that trains many trials on one device."""

    lanes: int
    """Replicates that train side by side."""
    trials: int
    """Trials that are aboard at once, those that wait for a lane included."""
    cpus: float
    """CPU cores of the engine."""
    gpus: float
    """1, or 0 for an engine on the CPU."""
    memory: int = 0
    """Bytes of main memory of the engine and of its trials' processes; 0: they were not counted."""

    @property
    def resources(self) -> dict[str, float]:
        """What all trials of the engine occupy together, in Ray's words."""
        whole = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return {kind: amount for kind, amount in whole.items() if amount}


@dataclass(frozen=True)
class Source(Message):
    """A trial, in any experiment, whose result is reused or whose training is continued."""

    experiment: str
    """The experiment's id."""
    number: int
    run_id: str | None = None
    """Its MLflow run, if it is known."""


NoticeKind = Literal[
    "code", "delivery", "disk", "failures", "memory", "node", "nodes", "ray", "share", "store"
]
"""What a notice is about: trials whose code has changed, MLflow, which is away or refuses
something, a disk that is nearly full, trials that fail one after another, a node without memory, a
node that is left out, so many of them that everything waits, a silent Ray, a fair share, or the
store of checkpoints."""


@dataclass(frozen=True)
class Notice(Message):
    """Why an experiment comes on more slowly than it could, or is not in MLflow yet."""

    kind: NoticeKind
    words: str
    """For a person to read: what it is, and what would help."""
    node: str | None = None
    """Host name of the node that is left out."""
    until: float | None = None
    """Unix time at which the node is tried again."""


@dataclass(frozen=True)
class Takeover(Message):
    """What population-based training made of a trial in the middle of its training."""

    step: int
    """Where that was."""
    source: int
    """Number of the trial whose weights and optimizer state it took over."""
    params: Params
    """What it goes on with: path to value."""
    source_hash: str
    """Content hash of the configuration that the source had then."""


@dataclass(frozen=True)
class ParameterCount(Message):
    """How many parameters a model has."""

    free: int
    """Trained ones; of a matrix that a constraint binds, those that may be chosen freely."""
    stored: int
    """Numbers that its weights hold."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What was measured of a training so far: finite numbers only, None or empty where unknown.

    Metrics carry the units that their task declares.
    """

    outcome: Outcome | None = None
    """None while there is more to train."""
    value: float | None = None
    """The best validation value of the objective's metric."""
    best_step: int | None = None
    """Optimizer step at which `value` was reached: the selected point."""
    step: int = 0
    """Optimizer steps taken."""
    valid: Metrics = field(default_factory=dict)
    """Validation scores at the selected point."""
    test: Metrics = field(default_factory=dict)
    """Test scores at the selected point; empty before the end."""
    seconds: float = 0.0
    """Time spent in training, evaluations included."""
    step_seconds: float | None = None
    """Median processor time of an optimizer step; None on a GPU, whose time no processor counts."""
    parameters: ParameterCount | None = None
    baseline: float | None = None
    """What a memoryless model scores on the objective's metric."""
    constraint: Metrics = field(default_factory=dict)
    """How well the model's constraint holds, at the last evaluation."""
    best_test: Metrics | None = None
    """The best test scores of any evaluation; None unless each evaluation tests."""
    last_test: Metrics | None = None
    """The test scores of the last evaluation; None unless each evaluation tests."""
    code: str | None = None
    """What `TrialConfig.code` was where it trained; several with commas, if that changed."""


@dataclass(frozen=True, kw_only=True)
class ReplicateResult(Measures):
    """The result of one replicate: one training of a trial, with its own seed."""

    seed: int
    origin: str | None = None
    """Where it was trained, in words, if it was taken up from a file of results; else None."""

    def to_dict(self) -> dict[str, object]:
        """Return plain data without what is the same for, or summed up over, all replicates."""
        measures = _measures_to_dict(self)
        for name in ("parameters", "baseline", "constraint"):
            del measures[name]
        origin = {} if self.origin is None else {"origin": self.origin}
        return {"seed": self.seed, **measures, **origin}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        return cls(seed=content["seed"], origin=content.get("origin"), **_read_measures(content))


@dataclass(frozen=True, kw_only=True)
class Result(Measures):
    """The result of a trial: means over its replicates, with their spread.

    Those that diverged count in neither, unless all of them did.
    `seconds` is the sum over the replicates, and `step` the least. Trainings side by side in lanes
    share the time that passes among them, so the sum over all is the time of the device.
    """

    replicates: int = 1
    by_replicate: tuple[ReplicateResult, ...] = ()
    reused_from: Source | None = None
    """The trial whose result this is, where it was not trained again."""

    @property
    def statistics(self) -> dict[str, Summary]:
        """Mean, n, spread and interval of `value`, and of each `valid/NAME` and `test/NAME`."""
        return summarize_replicates(self.by_replicate)

    @property
    def standard_error(self) -> dict[str, float | None]:
        """The standard error of each of `statistics`; None for a single replicate."""
        return {name: found.standard_error for name, found in self.statistics.items()}

    @property
    def interval(self) -> dict[str, tuple[float, float] | None]:
        """The 95% confidence interval of each of `statistics`; None for a single replicate."""
        return {name: found.interval for name, found in self.statistics.items()}

    def to_dict(self) -> dict[str, object]:
        content = _measures_to_dict(self)
        tests = {name: content.pop(name) for name in _TESTS if name in content}
        content |= {
            "replicates": self.replicates,
            "standard_error": self.standard_error,
            "interval": {name: ends and list(ends) for name, ends in self.interval.items()},
            **tests,
        }
        if self.by_replicate:
            content["by_replicate"] = [each.to_dict() for each in self.by_replicate]
        if self.reused_from is not None:
            content["reused_from"] = self.reused_from.to_dict()
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        source = content.get("reused_from")
        return cls(
            **_read_measures(content),
            replicates=content.get("replicates", 1),
            by_replicate=tuple(map(ReplicateResult.from_dict, content.get("by_replicate", ()))),
            reused_from=source and Source.from_dict(source),
        )


def summarize_replicates(replicates: Iterable[Measures]) -> dict[str, Summary]:
    """Return the statistics of `value`, `valid/NAME` and `test/NAME` over the replicates.

    Those that diverged are left out, unless all of them did.
    """
    given = list(replicates)
    kept = [each for each in given if each.outcome != "diverged"] or given
    return _summarize((each.value, {"valid": each.valid, "test": each.test}) for each in kept)


def summarize_stored(
    result: Mapping[str, Any], splits: Sequence[str] = ("valid", "test")
) -> dict[str, Summary]:
    """Return the `statistics` of a result as it is stored, without reading the rest of it."""
    given = result.get("by_replicate", ())
    kept = [each for each in given if each.get("outcome") != "diverged"] or given
    return _summarize(
        (each.get("value"), {split: each.get(split) or {} for split in splits}) for each in kept
    )


def _summarize(
    rows: Iterable[tuple[float | None, Mapping[str, Mapping[str, float | None]]]],
) -> dict[str, Summary]:
    """Summarize the value, and the metrics on each part of the data, of several trainings."""
    columns: dict[str, list[float]] = {}
    for value, splits in rows:
        if value is not None:
            columns.setdefault("value", []).append(value)
        for split, metrics in splits.items():
            for name, number in metrics.items():
                if number is not None:
                    columns.setdefault(f"{split}/{name}", []).append(number)
    domains = {name: find_domain(name) for name in columns}
    if "value" in columns:  # it has no name of its own: it is the metric with the same numbers
        of = (name for name in columns if name != "value" and columns[name] == columns["value"])
        domains["value"] = find_domain(next(of, "value"))
    return {name: summarize(numbers, domains[name]) for name, numbers in columns.items()}


_TESTS = ("best_test", "last_test")


def _measures_to_dict(measures: Measures) -> dict[str, object]:
    content: dict[str, object] = {
        "outcome": measures.outcome,
        "value": measures.value,
        "best_step": measures.best_step,
        "step": measures.step,
        "valid": dict(measures.valid),
        "test": dict(measures.test),
        "seconds": measures.seconds,
        "parameters": measures.parameters and measures.parameters.to_dict(),
        "baseline": measures.baseline,
        "constraint": dict(measures.constraint),
    }
    for name in _TESTS:
        if (scores := getattr(measures, name)) is not None:
            content[name] = dict(scores)
    for name in ("code", "step_seconds"):
        if (known := getattr(measures, name)) is not None:
            content[name] = known
    return content


def _read_measures(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Measures`; a number that was not finite when stored is left out."""
    parameters = content.get("parameters")
    return {
        "outcome": content.get("outcome"),
        "value": content.get("value"),
        "best_step": content.get("best_step"),
        "step": content.get("step") or 0,
        "valid": _read_metrics(content.get("valid")),
        "test": _read_metrics(content.get("test")),
        "seconds": content.get("seconds") or 0.0,
        "parameters": parameters and ParameterCount.from_dict(parameters),
        "baseline": content.get("baseline"),
        "constraint": _read_metrics(content.get("constraint")),
        "code": content.get("code"),
        "step_seconds": content.get("step_seconds"),
        **{name: _read_metrics(content[name]) for name in _TESTS if name in content},
    }


def _read_metrics(content: Mapping[str, float | None] | None) -> Metrics:
    return {name: value for name, value in (content or {}).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Order(Message):
    """What a trial's process is given: one attempt at one trial.

    The driver makes it, Ray Tune carries it as the trial's config, and `Attempt` works it off.
    """

    experiment: str
    """The experiment's id."""
    number: int
    """The trial's number in it, from 0."""
    attempt: int
    """From 1; only the highest attempt may write to the store."""
    config: ConfigJson
    rungs: tuple[int, ...]
    """Optimizer steps at which to report; the last one is the budget."""
    storage: str
    """Folder of checkpoints and curves, an absolute path, or a URL."""
    resources: dict[str, float]
    """What the trial occupies, in Ray's words: `CPU`, and perhaps `GPU` and `memory`."""
    code: Code
    """The driver's own; the trial's process must run the same."""
    donor: Source | None = None
    """The same configuration, finished with a smaller budget or fewer seeds: what the training goes
    on from."""
    known: Result | None = None
    """The donor's result, where it has the same budget: its seeds are not trained again, also where
    it has no checkpoints."""
    reported: int = 0
    """Step of the last rung that the ledger has heard of, from earlier attempts."""
    reports: Reports = ()
    """Step and objective of what earlier attempts reported: schedulers remember it."""
    data_root: str | None = None
    """Folder of corpora, an absolute path."""
    checkpoint_seconds: float = 10.0
    """Training that a lost process costs at most."""
    engine: EngineNeed | None = None
    """The engine that trains it beside others; None: it trains in its own process."""
    avoid: tuple[str, ...] = ()
    """Ray's ids of the nodes that the experiment leaves out for now."""
    log_format: LogFormat = "text"
    """Form of the log lines of the process."""
    otlp_endpoint: str | None = None
    """Where spans are sent; None: there are none."""
    trace: str | None = None
    """The driver's place in a trace."""
    shown: Metrics = field(default_factory=dict)
    """Values that may change in the middle of the training, by path: they stand in the curve."""
    takeover: Takeover | None = None
    """The newest one of the trial; `config` has its values."""
    stall_seconds: float | None = None
    """`limits.stall_seconds` of the spec."""
    marker: str | None = None
    """The driver's marker in the store, for the process to find there; None: none."""
    memory_limit: int | None = None
    """Bytes of main memory with more of which its own process is ended; None: any."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What a node must have to train it, in Ray's words."""
    corpus: str | None = None
    """Archive in the store with the corpus, for a node that lacks it; named by its digest."""
    seeds_go_on: bool = False
    """Whether the other seeds train on after one has diverged: where no scheduler stops trials."""

    READ = {  # noqa: RUF012
        "donor": Source.from_dict,
        "known": Result.from_dict,
        "rungs": tuple,
        "reports": lambda reports: tuple(map(tuple, reports)),
        "code": Code.from_dict,
        "engine": EngineNeed.from_dict,
        "avoid": tuple,
        "takeover": Takeover.from_dict,
    }


LostBy = Literal["process", "engine", "device", "disk", "memory", "node", "pause"]
"""What an attempt can be lost by: its process died, its device was lost, what others share failed,
or it was paused."""


@dataclass(frozen=True)
class Report(Message):
    """What a trial's process reports at a rung, or at its end."""

    step: int
    """Optimizer steps taken."""
    metrics: Metrics = field(default_factory=dict)
    """`OBJECTIVE` and the latest validation scores, means over the replicates."""
    outcome: Outcome | None = None
    """None while there is more to train."""
    result: Result | None = None
    """What is known at this step; None where the training failed or was cancelled."""
    error: str | None = None
    """For a person to read; with the traceback where it is a bug."""
    place: Place | None = None
    lost: str | None = None
    """Why this attempt cannot go on although its trial is not to blame; the trial comes again."""
    lost_by: LostBy = "engine"
    """What is to blame then: the engine that trained it is gone, the disk or the store fails there,
    or the node has other code or lacks a corpus. Or a person has paused the experiment."""
    committed: tuple[tuple[int, int], ...] = ()
    """Seed of each replicate, and the step up to which it counts here and is committed; the driver
    looks for that."""
    damage: str | None = None
    """What this attempt found damaged in the store when it began, and what it goes on from."""

    READ = {  # noqa: RUF012
        "result": Result.from_dict,
        "place": Place.from_dict,
        "committed": lambda replicates: tuple(map(tuple, replicates)),
    }
