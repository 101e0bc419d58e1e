"""Training one configuration with torch alone: no Ray, no MLflow, no service.

A `Training` is one replicate. It can stop at any step and go on elsewhere, bit for bit on the same
kind of machine: a batch is a function of step and seed, and everything else is in `state_dict`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from eigensweep.common import foreign_code, traces
from eigensweep.models import draw_from, make_model
from eigensweep.models.base import State, trainable
from eigensweep.results.seeds import join_codes, split_seeds, summarise
from eigensweep.results.trial_result import (
    End,
    Metrics,
    ParameterCount,
    ReplicateResult,
    Result,
)
from eigensweep.search_spaces.trial import TrialConfig, find_code
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.commits.kept_files import StateDict
from eigensweep.store.spectrum_files import SpectraJson
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Task
from eigensweep.training.errors import contain
from eigensweep.training.evaluation import (
    carry_into,
    check_names,
    detach,
    draw_batch,
    evaluate,
    find_spectra,
    keep_finite,
)
from eigensweep.training.memory import keep_freed_memory
from eigensweep.training.optimizers.optimizers import Optimizers
from eigensweep.training.optimizers.schedules import RateSchedule
from eigensweep.training.selection import ReportedTests, Selection, Weights

logger = logging.getLogger(__name__)

MOST_TIMES = 301
"""Steps whose processor times are kept."""


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found."""

    valid: Metrics
    """The scores on the validation data; some may be not finite."""
    constraint: Metrics
    """The model's report on its constraint; finite numbers only."""
    weights: Callable[[], Weights]
    """Returns a copy of the weights that were evaluated."""
    test: Metrics | None = None
    """The scores on the test data, finite numbers only, where each evaluation takes them."""
    spectra: SpectraJson | None = None
    """The spectra of the recurrent matrix, where they are kept."""


def set_up_thread(cpus: float) -> None:
    """Let PyTorch compute in this thread as in any training that has so many cores.

    The last digits of a product of matrices, a sum or a decomposition depend on the number of
    threads that share it. So whoever trains calls this first, before a network gets its weights.
    """
    torch.set_num_threads(max(1, int(cpus)))
    foreign_code.TRAINING.put()  # whatever was set before
    torch.set_flush_denormal(True)  # without it vanishing gradients cost several times as much


def set_up_gpu() -> None:
    """Let PyTorch compute on GPUs in full float32, and by libraries that CUDA graphs allow.

    The containers of NVIDIA take TF32 for float32 by a variable of the environment, which an
    orthogonal matrix does not bear. MAGMA, which PyTorch prefers for several large matrices, waits
    for the device.
    """
    torch.set_float32_matmul_precision("highest")
    if torch.version.cuda is not None:
        torch.backends.cuda.preferred_linalg_library("cusolver")


class Training:
    """One replicate of a trial: a model, a task, its optimizers, and how far they have come.

    At step s the curve has at most one point, which holds whatever was taken there: the training
    loss and gradient norm (means over `log_every` steps), an evaluation, and the baseline. The
    first is an evaluation at step 0, which divergence is measured by and which is never selected.
    A longer budget continues a finished training as if it had never stopped.
    """

    def __init__(
        self,
        config: TrialConfig,
        seed: int,
        *,
        data_root: Path | str | None = None,
        device: str = "cpu",
        task: Task | None = None,
    ) -> None:
        """Make the model; also the task, from what lies below `data_root`, unless it is given."""
        self.config = config = config.resolve()
        self.seed = seed
        self.device = device
        if device != "cpu":
            set_up_gpu()
        root = Path(data_root) if data_root else None
        self.task = task or TASKS[config.task.name](config.task, root)
        self.model = make_model(config.model, config.task.shapes, seed).to(device)
        self.optimizers = Optimizers(self.model, config.optimizer)
        self.schedule = RateSchedule(config.optimizer)
        self.selection = Selection(config, self.task.baselines)
        self.reported_tests = ReportedTests(config.task.metrics)
        assert config.training.steps is not None
        assert config.training.evaluate_every is not None
        self.steps: int = config.training.steps
        self.evaluate_every: int = config.training.evaluate_every

        self.code = find_code(config.task.name, config.model.name)
        """As `TrialConfig.code`, of all that have trained it; with commas if it changed."""
        self.step = 0
        """Optimizer steps taken."""
        self.outcome: End | None = None
        self.failed_step = False
        """Whether the step after `step` was not finite, and so was not taken."""
        self.divergence: str | None = None
        """What was not finite, or too high, and at which step, where it diverged."""
        self.carried: State | None = None
        """The state that the next batch may go on from."""
        self._window = [0.0, 0.0, 0.0]
        """Steps since the last logged one, and the sums of their losses and gradient norms."""
        self._constraint: Metrics = {}
        self._test: Metrics = {}
        self._points: list[CurvePoint] = []
        self._spectra: list[tuple[int, SpectraJson]] = []
        self._last_point = -1
        self._means: Metrics = {}
        """What the curve shows of the last steps, until their evaluation is seen."""
        self._evaluated = self._tested = -1
        """The steps of the last evaluation, and of the selected weights' test."""
        self._seconds = 0.0
        self._reused_seconds: float | None = None
        """As `ReplicateResult.reused_seconds`."""
        self._started: float | None = None
        self._sharing = 1
        self._known: ReplicateResult | None = None
        """The result of another training, where it stands for this one; None: it is trained."""
        self._step_times: deque[float] = deque(maxlen=MOST_TIMES)
        """Processor seconds of the last steps; empty on a GPU."""

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent, patience has run out, or the training diverged."""
        return self.outcome is not None

    @property
    def seconds(self) -> float:
        """Time spent in `run`, over all resumes; of trainings side by side, this one's part."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._seconds + running / self._sharing

    @contain()
    def run(
        self,
        until: int | None = None,
        commit: Callable[[], None] | None = None,
        checkpoint_seconds: float = 10.0,
        at_once: int = 1,
    ) -> None:
        """Train to step `until`, or to the end.

        `commit` is called where a checkpoint is worth having: after each evaluation, at the end,
        and when `checkpoint_seconds` have passed since the last one. `at_once` trainings of a trial
        share its cores: this one's part of the time that passes counts.
        """
        torch.set_flush_denormal(True)  # this thread may be another one
        keep_freed_memory()
        end = self.steps if until is None else min(until, self.steps)
        self._started, self._sharing = time.perf_counter(), at_once
        committed = self._started
        try:
            if self.evaluation_due:  # the first value of every curve is the untrained model's
                self.see_evaluation(self._evaluate())
            while self.outcome is None and self.step < end:
                worth_keeping = self._advance()
                if commit is not None and (
                    worth_keeping or time.perf_counter() - committed >= checkpoint_seconds
                ):
                    commit()
                    committed = time.perf_counter()
        finally:
            self._seconds, self._started = self.seconds, None

    def run_for(self, seconds: float) -> None:
        """Train for so long, or up to where a checkpoint is worth having, or to the end."""
        with suppress(_EnoughError):
            self.run(commit=_stop, checkpoint_seconds=seconds)

    def drain(self) -> list[CurvePoint]:
        """Return the points of the curve since the last call, and forget them."""
        points, self._points = self._points, []
        return points

    def drain_spectra(self) -> list[tuple[int, SpectraJson]]:
        """Return the spectra kept since the last call, by step, and forget them."""
        spectra, self._spectra = self._spectra, []
        return spectra

    def result(self) -> ReplicateResult:
        """Return what is known so far; later steps do not change it."""
        if self._known is not None:
            return self._known
        best, count = self.selection.best, self.model.count_parameters
        tests = self.reported_tests if self.config.training.test_every_evaluation else None
        return ReplicateResult(
            seed=self.seed,
            outcome=self.outcome,
            value=best.value if best else None,
            best_step=best.step if best else None,
            step=self.step,
            valid=keep_finite(best.valid) if best else {},
            test=self._test,
            seconds=self.seconds,
            parameters=ParameterCount(free=count("free"), stored=count("stored")),
            baseline=self.selection.baseline,
            constraint=self._constraint,
            best_test=tests.best if tests else None,
            last_test=tests.last if tests else None,
            code=self.code,
            step_seconds=median(self._step_times) if self._step_times else None,
            divergence=self.divergence,
            reused_seconds=self._reused_seconds,
        )

    def take_result(self, known: ReplicateResult) -> None:
        """End with the result of another training with this configuration, seed and budget."""
        self._known, self.step = replace(known, reused_seconds=known.seconds), known.step
        self.outcome = "diverged" if known.outcome == "diverged" else "completed"

    def can_use(self, state: StateDict) -> bool:
        """Tell whether this training can go on from a state of its settings.

        It cannot from a result alone of another budget, nor from what has come further than its own
        budget: such as a longer one that was cancelled, or was another trial's.
        """
        if "known" in state and state["budget"] != self.steps:
            return False
        goes_further = state["outcome"] is None or state.get("failed_step", False)
        return bool(state["step"] + goes_further <= self.steps)

    def state_dict(self) -> StateDict:
        """Return a copy of all that going on needs: tensors, on the CPU, and plain values.

        Where `take_result` ended the training, it holds the result and no weights.
        """
        about = {
            "hash": self.config.settings_hash(),
            "seed": self.seed,
            "step": self.step,
            "outcome": self.outcome,
            "failed_step": self.failed_step,
            "divergence": self.divergence,
        }
        if self._known is not None:
            return about | {"budget": self.steps, "known": summarise([self._known]).to_dict()}
        return _copy(
            about
            | {
                "model": dict(self.model.state_dict()),
                "optimizers": self.optimizers.state_dict(),
                "schedule_falls": self.schedule.falls,
                "selection": self.selection.state_dict(),
                "reported_tests": self.reported_tests.state_dict(),
                "carried": self.carried,
                "window": self._window,
                "constraint": self._constraint,
                "test": self._test,
                "points": [asdict(p) for p in self._points],
                "last_point": self._last_point,
                "seconds": self.seconds,
                "reused_seconds": self._reused_seconds,
                "step_times": list(self._step_times),
                "code": self.code,
            }
        )

    def load_state_dict(self, state: StateDict, taken_from: str | None = None) -> None:
        """Go on from what `state_dict` returned, perhaps with a longer budget.

        It is of this configuration, or of the one whose hash is `taken_from`: then the training
        goes on with the values of this one.

        Raises:
            ValueError: if it is of another configuration or seed, or of a longer budget.
        """
        expected = self.config.settings_hash(), self.seed
        if (state["hash"], state["seed"]) not in (expected, (taken_from, self.seed)):
            raise ValueError(
                f"the checkpoint is of configuration {state['hash']} with seed {state['seed']}; "
                f"this training is of {expected[0]} with seed {expected[1]}"
            )
        if not self.can_use(state):
            raise ValueError(
                f"the checkpoint is at step {state['step']} of another budget than {self.steps}"
            )
        if "known" in state:
            (known,) = split_seeds(Result.from_dict(state["known"]))
            self.take_result(known)
            return
        state = _copy(state)
        self.model.load_state_dict(state["model"])
        self.optimizers.load_state_dict(state["optimizers"])
        self.selection.load_state_dict(state["selection"])
        if "schedule_falls" in state:  # older checkpoints know neither
            self.schedule.falls = state["schedule_falls"]
            self.reported_tests.load_state_dict(state["reported_tests"])
        self.step, self.outcome = state["step"], state["outcome"]
        if self.step:  # the rates of the last step
            self.optimizers.scale(self.schedule.factor(self.step - 1))
        self.failed_step = state.get("failed_step", False)
        self.divergence = state.get("divergence")
        self.carried, self._window = _copy(state["carried"], self.device), state["window"]
        self._constraint, self._test = state["constraint"], state["test"]
        self._points = [CurvePoint(**p) for p in state["points"]]
        self._last_point, self._seconds = state["last_point"], state["seconds"]
        self._reused_seconds = state.get("reused_seconds")
        self._step_times.extend(state.get("step_times", ()))
        self._evaluated = self._tested = self.step if self._last_point >= 0 else -1
        # What only the end of a shorter budget has evaluated does not end a longer one.
        is_by_budget = not (self.failed_step or self.is_scheduled)
        ended = self.outcome == "completed" or (self.outcome == "diverged" and is_by_budget)
        if ended and self.step < self.steps and not self.selection.is_out_of_patience:
            self.outcome, self.divergence, self._test, self._tested = None, None, {}, -1
            self.selection.continue_beyond_budget()
            self.reported_tests.continue_beyond_budget()
        trained_by = state.get("code")  # None in older checkpoints
        self.code = join_codes([trained_by, None if self.is_finished else self.code])

    def take_over(self, weights: Weights, optimizers: StateDict, carried: State | None) -> None:
        """Take in the tensors of a lane that trained in this one's place."""
        self.model.load_state_dict(weights)
        self.optimizers.load_state_dict(optimizers)
        self.carried = carried

    def add_seconds(self, seconds: float) -> None:
        """Count the part of a group's time that is this training's."""
        self._seconds += seconds

    def add_step_times(self, seconds: float, steps: int = 1) -> None:
        """Keep the processor time of some steps, all equal; a GPU's steps have none."""
        if self.device == "cpu":
            self._step_times.extend([seconds] * steps)

    def _advance(self) -> bool:
        """Take a step and what is due after it; return whether a checkpoint is worth having now."""
        one_thread = torch.get_num_threads() == 1
        processor_time = time.thread_time if one_thread else time.process_time
        began = processor_time()
        self.take_step()
        self.add_step_times(processor_time() - began)
        scheduled = self.is_scheduled
        if self.evaluation_due:
            self.see_evaluation(self._evaluate())
        if self.test_due:
            self.see_test(self._score_selected())
        return scheduled or self.is_finished

    def take_step(self) -> None:
        """Take one optimizer step, unless loss or gradient are not finite."""
        with self._chance():
            self._take_step()

    def _take_step(self) -> None:
        batch = draw_batch(self.task, self.step, self.seed)
        state = carry_into(self.model, batch.starts, self.carried)
        if self.device != "cpu":
            batch = batch.to(self.device)
        self.optimizers.zero_grad()
        logits, state = self.model(batch.x, state)
        loss = self.task.loss(logits, batch)
        if loss.dim():
            raise ValueError(
                f"{type(self.task).__name__}.loss must return a tensor of one number; it returned "
                f"one of shape {tuple(loss.shape)}"
            )
        objective = loss + self.model.penalty()
        if loss.requires_grad:
            torch.autograd.backward(objective)
        elif trainable(self.model.parameters()):  # a constructed solution has none
            raise ValueError(
                f"the loss of {self.config.task.name} does not depend on any parameter of "
                f"{type(self.model).__name__}; see whether `forward` or `loss` calls detach(), "
                "item() or numpy(), or computes under torch.no_grad()"
            )
        norm = self.optimizers.gradient_norm().to(self.device)
        numbers = torch.stack((objective.detach(), loss.detach(), norm)).tolist()  # the one sync
        if not self.see_update(*numbers):
            return
        self.optimizers.step(norm)
        with torch.no_grad():
            self.model.after_update(self.optimizers.learning_rates)
        self.carried = None if batch.starts is None else detach(state)

    def _chance(self) -> AbstractContextManager[None]:
        """Return a context in which random numbers of the model follow from the seed and the step.

        So dropout in a model of one's own drops the same after a restart. Our models draw nothing.
        """
        model = type(self.model)
        if model.__module__.startswith("eigensweep.models.") and not model.is_random:
            return nullcontext()
        number = (self.seed * 0x9E3779B1 + self.step * 0x85EBCA77) % 2**32
        if self.device != "cpu":
            gpu = torch.device(self.device).index or 0
            torch.cuda.default_generators[gpu].manual_seed(number)
        return draw_from(number)

    def see_update(self, objective: float, loss: float, norm: float) -> bool:
        """Count a step of this objective, loss and gradient norm; return whether it is taken.

        A step that is not finite is not taken: it changes nothing, and the training diverged. Then
        `evaluation_due` and `test_due` tell what is to be seen before the next step.
        """
        if not all(map(isfinite, (objective, loss, norm))):
            self.outcome, self.failed_step = "diverged", True
            what, number = "norm of the gradient", norm
            if not isfinite(loss):
                what, number = "training loss", loss
            elif not isfinite(objective):
                what, number = "training loss with its penalty", objective
            self.divergence = f"step {self.step + 1}: the {what} was {number:g}"
            self._record(self._window_means())
            return False
        self.optimizers.scale(self.schedule.factor(self.step))
        self.step += 1
        self._window = [a + b for a, b in zip(self._window, (1.0, loss, norm), strict=True)]
        is_logged = self.step % self.config.training.log_every == 0
        self._means = self._window_means() if is_logged or self.step == self.steps else {}
        if is_logged:
            self._window = [0.0, 0.0, 0.0]
        if not self.evaluation_due:
            self._record(self._means)
        return True

    @property
    def is_scheduled(self) -> bool:
        """Whether the last step is one of those after which every budget evaluates."""
        return self.step % self.evaluate_every == 0

    @property
    def steps_to_evaluation(self) -> int:
        """Steps until the next evaluation, at most the budget's end."""
        return min(self.evaluate_every - self.step % self.evaluate_every, self.steps - self.step)

    @property
    def evaluation_due(self) -> bool:
        """Whether `see_evaluation` comes before the next step: at the start, too."""
        if self.outcome is not None or self._evaluated == self.step:
            return False
        return self.is_scheduled or self.step == self.steps

    def see_evaluation(self, found: Evaluation) -> None:
        """Take in the scores after the last step, or of the untrained model."""
        self._constraint = found.constraint
        metrics = {f"valid/{name}": value for name, value in found.valid.items()}
        metrics |= {f"constraint/{name}": value for name, value in found.constraint.items()}
        if self.selection.baseline is not None:
            metrics["baseline"] = self.selection.baseline
        if found.spectra is not None:
            self._spectra.append((self.step, found.spectra))
        self._evaluated = self.step
        if self.step == 0:
            self._record(metrics)
            self.outcome = self.selection.begin(found.valid)
            self.divergence = self.selection.divergence
            return
        scheduled = self.is_scheduled
        self.outcome = self.selection.see(self.step, found.valid, found.weights, scheduled)
        self.divergence = self.selection.divergence
        if scheduled:
            self.schedule.see(self.selection.stale)
        if found.test is not None:
            self.reported_tests.see(found.test, scheduled)
            metrics |= {f"test_now/{name}": value for name, value in found.test.items()}
        self._record(self._means | metrics)
        if self.step == self.steps and self.outcome is None:
            self.outcome = "completed"

    @property
    def test_due(self) -> bool:
        """Whether `see_test` comes next: the training is complete and selected a point."""
        return (
            self.outcome == "completed"
            and self.selection.best is not None
            and self._tested != self.step
        )

    def see_test(self, scores: Metrics) -> None:
        """Take in the scores of the selected weights on the test data."""
        self._test, self._tested = keep_finite(scores), self.step

    def _window_means(self) -> Metrics:
        steps, loss, norm = self._window
        if not steps:
            return {}
        means = {f"train/{self.selection.loss}": loss / steps, "train/gradient_norm": norm / steps}
        if not self.schedule.is_none:
            for group, rate in self.optimizers.learning_rates.items():
                means["train/lr_orth" if group == "orth" else "train/lr"] = rate
        return means

    def _evaluate(self) -> Evaluation:
        with traces.span("evaluation", step=self.step), self._chance():
            return Evaluation(
                valid=evaluate(self.model, self.task, "valid", self.device),
                constraint=self.report_constraint(),
                weights=self.weights,
                test=self._score_test() if self.tests_each_evaluation else None,
                spectra=self.spectra(),
            )

    @property
    def tests_each_evaluation(self) -> bool:
        """Whether the next evaluation scores the test data, too."""
        return self.config.training.test_every_evaluation and self.step > 0

    def report_constraint(self) -> Metrics:
        """Return how well the model's constraint holds; finite numbers only."""
        try:
            with torch.no_grad():
                report = self.model.constraint_report()
            numbers = {
                n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in report.items()
            }
            check_names(numbers)
            return keep_finite({name: float(value) for name, value in numbers.items()})
        except (RuntimeError, ValueError, TypeError, AttributeError) as error:
            name = type(self.model).__name__
            raise ValueError(
                f"{name}.constraint_report must return a dict of numbers: {error}"
            ) from error

    def spectra(self) -> SpectraJson | None:
        """Return the spectra of the recurrent matrix, if the config asks for them."""
        if self.config.training.spectra:
            with suppress(ValueError):  # a gated model has no spectrum
                return find_spectra(self.model)
        return None

    def _record(self, metrics: Metrics) -> None:
        """Add the point of this step to the curve: one for each step, finite numbers only."""
        metrics = keep_finite(metrics)
        if metrics and self.step > self._last_point:
            self._points.append(CurvePoint(self.step, metrics, time.time_ns() // 1_000_000))
            self._last_point = self.step

    def _score_test(self) -> Metrics:
        return keep_finite(evaluate(self.model, self.task, "test", self.device))

    def _score_selected(self) -> Metrics:
        assert self.selection.best is not None
        current = self.weights()
        self.model.load_state_dict(self.selection.best.weights)
        with self._chance():
            scores = self._score_test()
        self.model.load_state_dict(current)
        return scores

    def weights(self) -> Weights:
        """Return a copy of the model's parameters and buffers."""
        return {name: value.clone() for name, value in self.model.state_dict().items()}


PLAIN: Final = frozenset(
    {type(None), bool, int, float, complex, str, bytes, set, torch.dtype, torch.device}
)
"""Types of a checkpoint's values beside tensors, which PyTorch reads without other code."""


class _EnoughError(Exception):
    """So long was to be trained."""


def _stop() -> None:
    raise _EnoughError


def _copy(tree: Any, device: str = "cpu", place: str = "the state") -> Any:
    """Return a tree of dicts, lists and tuples with every tensor copied to a device.

    Raises:
        ValueError: if there is something else at a `place` in it, which no checkpoint can hold.
    """
    if isinstance(tree, torch.Tensor):
        return tree.detach().as_subclass(torch.Tensor).to(device, copy=True)
    if isinstance(tree, dict):
        return {
            _copy(key, place=f"a key of {place}"): _copy(value, device, f"{place}/{key}")
            for key, value in tree.items()
        }
    if type(tree) in (list, tuple, torch.Size):
        return type(tree)(_copy(value, device, place) for value in tree)
    if type(tree) not in PLAIN:
        kind = f"{type(tree).__module__}.{type(tree).__qualname__}"
        raise ValueError(f"{place} is a {kind}: a checkpoint holds tensors and plain numbers alone")
    return tree
