"""Messages between a driver, its trials' processes, the record and MLflow.

Where one crosses an edge (Ray Tune's configs and results, a JSON column of the database, a file),
it is plain data. The keys of that data are stored and shown by the REST API, so they do not change.

Importing this loads neither torch nor Ray nor pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from eigensweep.common.logs import LogFormat
from eigensweep.common.plain_data import Message
from eigensweep.results.trial_result import Metrics, Outcome, Result, Source

if TYPE_CHECKING:
    from eigensweep.search_spaces.parameters import Scalar

ConfigJson = dict[str, Any]
"""A resolved `TrialConfig` as JSON. It stays JSON here because the class needs torch."""

SpecJson = dict[str, Any]
"""An `ExperimentSpec` as JSON, as it was posted."""

Params: TypeAlias = "dict[str, Scalar]"
"""The point of a search space that a trial is: dotted path to value."""

Reports = tuple[tuple[int, float], ...]
"""Step and objective of each rung report of a trial, in order."""


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
    """Trials in it at once, those that wait for a lane included."""
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


NoticeKind = Literal[
    "code",
    "deletion",
    "delivery",
    "disk",
    "driver",
    "failures",
    "limit",
    "memory",
    "node",
    "nodes",
    "pruning",
    "ray",
    "share",
    "store",
    "webhook",
]
"""What a notice is about: trials whose code has changed, a deletion that waits, MLflow, which is
away or refuses something, a disk that is nearly full, a driver that died, trials that fail one
after another, a limit that ended the search, a node without memory, a node that is left out, so
many of them that everything waits, a pruning that waits, a silent Ray, a fair share, the store of
checkpoints, or a webhook that takes no messages."""


@dataclass(frozen=True)
class Notice(Message):
    """Why an experiment is slower than it could be, or is not in MLflow, deleted or pruned yet."""

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


LostBy = Literal["process", "engine", "device", "disk", "memory", "node", "departure", "pause"]
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
