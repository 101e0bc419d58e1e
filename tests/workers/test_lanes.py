"""Lanes of one program are the trainings alone: every model, optimizer and task; and bit for bit
whatever their neighbours do.
"""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
import torch
from lanes import Precise, assert_equal, build, config_of, train_lanes
from toys import Text, to_exact

from eigensweep.models import MODELS
from eigensweep.tasks import TASKS, mnist, speech_frames, treebank
from eigensweep.training.lanes.stacked.group import Group, LaneError, explain_alone, shape_key
from eigensweep.training.lanes.stacked.program import Program
from eigensweep.training.optimizers.optimizers import Optimizers

TRAINED = [name for name in MODELS if not name.startswith("constructed")]


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setitem(TASKS, "text", Text)


def compare(configs, lanes=None, precise=True, atol=1e-10, **options):
    """Train configs with different seeds as lanes and alone, and compare all that is known."""
    together, alone = (
        [build(config, seed, precise, **options) for seed, config in enumerate(configs)]
        for _ in range(2)
    )
    for training in alone:
        training.run()
    train_lanes(together, lanes)
    for lane, expected in zip(together, alone, strict=True):
        assert_equal(lane, expected, atol)
        assert_equal_results(lane, expected, atol)
    return together


def assert_equal_results(lane, alone, atol):
    found, expected = lane.result(), alone.result()
    assert (found.outcome, found.best_step, found.step) == (
        expected.outcome,
        expected.best_step,
        expected.step,
    )
    assert found.test.keys() == expected.test.keys()
    for name, value in expected.test.items():
        assert found.test[name] == pytest.approx(value, rel=atol, abs=atol)


OPTIONS = [
    ("enrnn", {"short_size": 0, "encoder": "embedding"}),
    ("enrnn", {"activation": "tanh", "eps": 0.1, "coupled": False}),
    ("lstm", {"peephole": "output_full", "readout_from": "cell"}),
    ("lstm", {"peephole": "diagonal", "encoder": "embedding"}),
    ("gru", {"variant": "cho"}),
    ("lt_rnn", {"pooling": True, "activation_clip": 1.0, "scale_gradient": True}),
    ("lt_rnn", {"orthogonality_penalty": 1.0, "orthogonality_vectors": 3}),
    ("nnrnn", {"gamma_penalty": "l1", "gamma_weight": 0.5}),
    ("full_urnn", {"natgrad_rms": True}),
    ("exprnn", {"trivialization": "dynamic", "rebase_every": 4, "project_every": 3}),
    ("asrnn", {"form": "direct", "trivialization": "dynamic", "rebase_every": 5}),
    ("asrnn", {"constrain_hh": False}),
]
VARIANTS = [
    *((name, {}) for name in TRAINED),
    *(pytest.param(*option, marks=pytest.mark.slow) for option in OPTIONS),
]


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
@pytest.mark.quick_cases(3)
def test_every_model_trains_in_lanes_as_alone(name, fields):
    model = {"name": name, **fields}
    compare(
        [
            config_of(
                model,
                optimizer={"lr": 0.01, "lr_orth": 0.002, "clip_norm": 1.0},
                training={"steps": 12, "evaluate_every": 10},
            ),
            config_of(
                model,
                optimizer={"lr": 0.003, "weight_decay": 0.1},
                training={"steps": 11, "evaluate_every": 10},
            ),
        ]
    )


OPTIMIZERS = [
    {"name": "adam", "betas": [0.8, 0.99]},
    {"name": "rmsprop", "momentum": 0.5},
    {"name": "adagrad"},
    {"name": "adamw", "betas": [0.8, 0.99]},
    {"name": "sgd", "momentum": 0.5},
    {"name": "rmsprop_tf1", "alpha": 0.99, "momentum": 0.5},
    {"name": "adagrad_tf1"},
    {"name": "adam_tf1", "name_orth": "rmsprop_urnn", "lr_orth": 1e-3},
    {"name": "rmsprop_urnn", "alpha": 0.8, "momentum": 0.3},
    {"name": "adam", "name_orth": "rmsprop", "lr_orth": 1e-3},
    {"name": "adagrad_tf1", "name_orth": "rmsprop_tf1", "lr_orth": 1e-3},
]
SCHEDULES = [
    {"clip_norm": 0.05},
    {"clip_value": 0.01, "schedule": "exponential", "schedule_every": 3},
    {"schedule": "halve_on_plateau", "weight_decay": 0.05, "schedule_factor": 0.7},
    {"schedule": "cosine", "weight_decay": 0.1, "warmup_steps": 5},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: "-".join(map(str, o.values())))
@pytest.mark.quick_cases(2)
def test_every_optimizer_works_in_lanes_as_alone(optimizer):
    plain = {key: optimizer[key] for key in ("name", "name_orth") if key in optimizer}
    options = [{**optimizer, **schedule} for schedule in SCHEDULES]
    options += [{**plain, "lr": 0.05}]  # no momentum, other constants
    training = {"steps": 24, "evaluate_every": 7, "test_every_evaluation": True}
    # with larger rates rounding grows beyond 1e-10 within 50 steps
    options = [{"lr": 0.003, **each} for each in options]
    compare([config_of("scornn", optimizer=o, training=training) for o in options])


@pytest.mark.parametrize(
    ("task", "model", "steps"),
    [
        ("adding", "lstm", 12),
        ("denoise", "gru", 12),
        ("variable_copying", "exprnn", 12),
        ("selective_copying", "mingru", 12),
        ({"name": "copying", "input_coding": "scalar"}, "scornn", 12),
        ({"name": "text", "reset": True}, "lstm", 24),
        ({"name": "text", "reset": True}, "urnn", 24),
        ("ptb_chars", "lstm", 24),
        ("ptb_chars", "asrnn", 24),
        ("ptb_chars", "goru", 24),
        ({"name": "ptb_chars", "reading": "sentences"}, "ornn", 12),
        ("pixel_mnist", "scornn", 12),
        ("noisy_cifar", "lru", 12),
        ("speech_frames", "enrnn", 24),
        ({"name": "speech_frames", "normalisation": "valid_mean", "mask": "lengths-1"}, "lstm", 20),
        ({"name": "speech_frames", "normalisation": "batch_padded_mean"}, "tanh_rnn", 24),
    ],
    ids=str,
)
@pytest.mark.quick_cases(3)
def test_every_task_trains_in_lanes_as_alone(small_corpora, task, model, steps):
    training = {"steps": steps, "evaluate_every": 5}
    configs = [
        config_of(model, task, {"lr": lr}, {**training, "steps": steps - more})
        for more, lr in enumerate((0.01, 0.003))
    ]
    compare(configs, data_root=small_corpora)


def test_float32_lanes_follow_the_trainings_alone_step_by_step():
    together, alone = (
        [build(config_of("exprnn", training={"log_every": 1}), s, precise=False) for s in range(3)]
        for _ in range(2)
    )
    train_lanes(together)
    for lane, expected in zip(together, alone, strict=True):
        expected.run()
        found = [p.metrics for p in lane.drain()]
        for one, other in zip(found, [p.metrics for p in expected.drain()], strict=True):
            assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


class Spoiled(Precise):
    """A task that shows one seed an infinite loss at one step."""

    def train_batch(self, step, seed):
        batch = super().train_batch(step, seed)
        return replace(batch, x=batch.x * torch.inf) if (step, seed) == (30, 1) else batch


def spoil(training):
    training.task = Spoiled(training.task._task)
    return training


def states_of(trainings):
    return [to_exact(t.state_dict()) for t in trainings]


MIXED = [
    config_of("scornn", "adding", {"lr": 0.01, "name_orth": "rmsprop"}),
    config_of("scornn", "adding", {"lr": 0.02, "name_orth": "rmsprop", "clip_norm": 0.1}),
    config_of("scornn", "adding", {"lr": 0.03, "name_orth": "rmsprop"}, {"evaluate_every": 7}),
]


@pytest.mark.parametrize(
    "model",
    [
        {"name": "enrnn", "hidden_size": 40, "short_size": 36},
        {"name": "lt_rnn", "orthogonality_penalty": 1.0, "orthogonality_vectors": 3},
    ],
    ids=lambda model: model["name"],
)
@pytest.mark.quick_cases(1)
def test_what_is_left_to_the_host_between_steps_changes_nothing(model):
    configs = [config_of(model, training={"steps": s, "evaluate_every": 7}) for s in (30, 23)]
    lanes, alone = ([build(c, seed) for seed, c in enumerate(configs)] for _ in range(2))
    if model["name"] == "enrnn":
        for training in (lanes[1], alone[1]):
            training.model.T.data.mul_(3)  # so that it is normalised at once
    train_lanes(lanes, group=Group(lanes[0], 3, static=True))
    for lane, expected in zip(lanes, alone, strict=True):
        expected.run()
        assert_equal(lane, expected)


class Torn(Precise):
    """A task of which one seed's batches cannot be drawn from some step on."""

    def train_batch(self, step, seed):
        if seed == 1 and step >= 20:
            raise ZeroDivisionError("a bug in the task")
        return super().train_batch(step, seed)


def advance_forever(group):
    while True:
        group.advance(10.0)


def test_a_lane_without_a_batch_is_named_and_others_go_on():
    first, second, alone = (build(config_of("scornn"), seed) for seed in (0, 1, 0))
    for training in (first, second):
        training.task = Torn(training.task._task)
    group = Group(first, 2)
    group.join(first)
    group.join(second)
    with pytest.raises(LaneError) as caught:
        advance_forever(group)
    assert caught.value.training is second
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    group.leave(second)
    train_lanes([], group=group)
    alone.run()
    assert_equal(first, alone)


class Counted(Precise):
    """A task that notes which batches were drawn."""

    def __init__(self, task):
        super().__init__(task)
        self.drawn = []

    def train_batch(self, step, seed):
        self.drawn.append((seed, step))
        return super().train_batch(step, seed)


def test_a_batch_is_drawn_once_for_all_lanes_with_its_seed():
    lanes = [build(config_of("scornn", optimizer={"lr": lr})) for lr in (0.01, 0.02, 0.03)]
    task = Counted(lanes[0].task._task)
    for training in lanes:
        training.task = task
    group = Group(lanes[0], 2)
    task.drawn.clear()  # the group has tried a step out
    train_lanes(lanes, group=group)
    assert [training.step for training in lanes] == [50, 50, 50]
    assert sorted(task.drawn) == [(0, step) for step in range(50)]


def test_the_seconds_of_all_lanes_are_those_that_passed():
    lanes = [build(config_of("scornn"), seed, precise=False) for seed in range(4)]
    began = time.perf_counter()
    train_lanes(lanes)
    assert 0 < sum(training.seconds for training in lanes) <= time.perf_counter() - began


@pytest.mark.parametrize(
    ("task", "read"),
    [
        ("pixel_mnist", mnist.read_images),
        ("ptb_chars", treebank.read_streams),
        ("speech_frames", speech_frames.read_speech),
    ],
    ids=["pixel_mnist", "ptb_chars", "speech_frames"],
)
def test_lanes_share_one_copy_of_a_corpus(small_corpora, task, read):
    read.cache_clear()
    config = config_of("tanh_rnn", task, training={"steps": 1})
    train_lanes([build(config, seed, data_root=small_corpora) for seed in range(3)])
    assert read.cache_info().misses == 1


@pytest.mark.data
@pytest.mark.parametrize(
    "task",
    ["pixel_mnist", *(pytest.param(t, marks=pytest.mark.slow) for t in ("ptb_chars", "fsdd"))],
)
def test_real_corpora_train_in_lanes_as_alone(task, data_root):
    tasks = {
        "ptb_chars": {"name": "ptb_chars", "batch_size": 128, "eval_batch_size": 100, "bptt": 150},
        "pixel_mnist": {"name": "pixel_mnist", "batch_size": 32},
        "fsdd": {"name": "speech_frames", "corpus": "fsdd", "digest": None, "batch_size": 28},
    }
    model = {"name": "asrnn" if task == "ptb_chars" else "scornn", "hidden_size": 12}
    configs = [config_of(model, tasks[task], {"lr": lr}, {"steps": 4}) for lr in (0.01, 0.003)]
    compare(configs, data_root=data_root)


class TestNeighbours:
    def test_a_lane_that_is_not_finite_ends_as_alone_unnoticed(self):
        trainings = [[spoil(build(c, s)) for s, c in enumerate(MIXED)] for _ in range(2)]
        lanes, alone = trainings
        whole = [build(c, s) for s, c in enumerate(MIXED)]
        train_lanes(lanes)
        train_lanes(whole)
        alone[1].run()
        assert (lanes[1].outcome, lanes[1].step) == ("diverged", 30)
        assert_equal(lanes[1], alone[1])
        assert states_of([lanes[0], lanes[2]]) == states_of([whole[0], whole[2]])

    def test_lanes_that_join_leave_and_refill_change_no_others_bit(self):
        whole = build(MIXED[0], 0)
        train_lanes([whole], group=Group(whole, 3))
        busy, others = build(MIXED[0], 0), [build(MIXED[1 + s % 2], s) for s in range(5)]
        group = Group(busy, 3)
        group.join(others[0])
        group.advance(0.01)
        group.join(busy)
        while not busy.is_finished:
            for training in group.trainings:
                if training is not busy and training.step > 7:
                    group.leave(training)
            if group.free and others:
                group.join(others.pop())
            group.advance(0.0 if busy.step % 3 else 10.0)
        group.leave(busy)
        group.close()
        # it sat in another lane, too
        assert states_of([busy]) == states_of([whole])


class TestCheckpoints:
    @pytest.mark.parametrize(
        ("model", "name"),
        [
            ("full_urnn", "adam"),
            ("urnn", "rmsprop"),
            ("enrnn", "adagrad"),
            ("urnn", "rmsprop_tf1"),
            ("scornn", "adagrad_tf1"),
        ],
    )
    @pytest.mark.quick_cases(1)
    def test_a_checkpoint_moves_between_lanes_and_a_process_alone(self, model, name):
        optimizer = {"name": name, "momentum": 0.5}
        config = config_of(model, {"name": "text", "reset": True}, optimizer)
        whole = build(config, 3)
        whole.run()
        state = build(config, 3).state_dict()
        for until, lanes in ((0, 2), (9, 3), (17, None), (30, 1), (41, None), (50, 2)):
            training = build(config, 3)
            training.load_state_dict(through_file(state))
            if lanes is None:
                training.run(until)
            else:
                group = Group(training, lanes)
                for seed in range(1, lanes):
                    group.join(build(config, 10 + seed))
                group.join(training)
                while training.step < until and not training.is_finished:
                    group.advance(1e-9)
                group.leave(training)
                group.close()
            state = training.state_dict()
        assert_equal(training, whole)

    def test_loading_and_storing_gives_the_same_state_bit_for_bit(self):
        for optimizer in OPTIMIZERS:
            training = build(config_of("scornn", optimizer=optimizer), 0, precise=False)
            for until in (0, 8):
                training.run(until)
                before = to_exact(training.state_dict())
                group = Group(training, 2)
                group.join(training)
                group.leave(training)
                group.close()
                assert to_exact(training.state_dict()) == before

    def test_a_longer_budget_continues_a_lane_as_alone(self):
        short, long = (config_of("gru", training={"steps": s}) for s in (25, 50))
        lane, alone = build(short, 0), build(short, 0)
        train_lanes([lane], 2)
        alone.run()
        longer = [build(long, 0) for _ in range(2)]
        longer[0].load_state_dict(lane.state_dict())
        longer[1].load_state_dict(alone.state_dict())
        train_lanes(longer[:1], 3)
        longer[1].run()
        assert_equal(*longer)


def through_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_patience_divergence_and_spectra_are_as_alone():
    training = {"evaluate_every": 3, "patience": 2, "spectra": True}
    configs = [
        config_of("scornn", "adding", {"lr": 0.5}, training),
        config_of("scornn", "adding", {"lr": 5.0}, training, divergence={"factor": 1.5}),
        config_of("scornn", "adding", {"lr": 1e-4}, training),
    ]
    lanes = compare(configs)
    assert len({lane.step for lane in lanes}) > 1
    assert lanes[0].drain_spectra()


class TestShape:
    def test_what_changes_no_shape_may_differ(self):
        first = config_of("scornn")
        other = config_of(
            {"name": "scornn", "negative_ones": 5, "readout_init": "orthogonal"},
            optimizer={"lr": 0.5, "betas": [0.1, 0.2], "clip_value": 1.0, "weight_decay": 0.1},
            training={"steps": 7, "evaluate_every": 3, "patience": 2, "log_every": 1},
            seed=9,
        )
        assert shape_key(first) == shape_key(other)
        penalties = [{"name": "nnrnn", "gamma_weight": w} for w in (0.1, 0.2)]
        assert len({shape_key(config_of(p)) for p in penalties}) == 1

    @pytest.mark.parametrize(
        "other",
        [
            config_of({"name": "scornn", "hidden_size": 9}),
            config_of("tanh_rnn"),
            config_of("scornn", {"name": "copying", "delay": 4}),
            config_of("scornn", optimizer={"name": "rmsprop"}),
            config_of("scornn", optimizer={"name_orth": "rmsprop"}),
        ],
    )
    def test_other_sizes_tasks_and_optimizers_are_of_another_shape(self, other):
        assert shape_key(config_of("scornn")) != shape_key(other)

    def test_with_and_without_a_penalty_steps_are_others(self):
        penalties = (0.0, 0.5, 1.0)
        configs = [config_of({"name": "lt_rnn", "orthogonality_penalty": p}) for p in penalties]
        none, small, large = map(shape_key, configs)
        assert none != small == large
        compare(configs[1:])

    def test_memory_short_for_the_copy_leaves_no_lane_behind(self, monkeypatch):
        first, second = (build(config_of("tanh_rnn"), seed) for seed in range(2))
        group = Group(first, 2)
        group.join(first)
        group.join(second)
        group.advance(0.01)
        store, short = Program.store, [True]

        def run_short(program, lane, training):
            if short and short.pop():
                raise torch.OutOfMemoryError("CUDA out of memory")
            store(program, lane, training)

        monkeypatch.setattr(Program, "store", run_short)
        with pytest.raises(torch.OutOfMemoryError):
            group.leave(first)
        step = first.step
        while not second.is_finished:
            group.advance(10.0)
        assert (first.step, group.free) == (step, 1), "it trains on after it has left"

    def test_a_group_refuses_what_does_not_fit_with_the_reason(self):
        first, second, third = (build(config_of("scornn"), seed) for seed in range(3))
        group = Group(first, 1)
        with pytest.raises(ValueError, match="the training is of tanh_rnn-copying"):
            group.join(build(config_of("tanh_rnn")))
        group.join(second)
        assert (group.free, group.trainings) == (0, [second])
        with pytest.raises(ValueError, match="has a lane already"):
            group.join(second)
        with pytest.raises(ValueError, match="all 1 lanes are taken"):
            group.join(third)
        with pytest.raises(ValueError, match="has no lane"):
            group.leave(third)
        group.close()
        with pytest.raises(ValueError, match="at least 1 lane; 0 were asked for"):
            Group(first, 0)

    def test_a_task_that_reads_values_is_refused_with_the_reason(self):
        training = build(config_of("scornn"), precise=False)
        training.task.loss = lambda logits, batch: logits.sum() * logits.detach().sum().item()
        with pytest.raises(ValueError, match=r"scornn on copying cannot train in lanes.*\.item"):
            Group(training, 2)

    @pytest.mark.parametrize("name", ["k", "lr"])
    def test_a_rule_that_remembers_numbers_in_its_groups_is_refused(self, name):
        class Counting(torch.optim.SGD):
            def step(self):
                for group in self.param_groups:
                    group[name] = 0.9 * group.get(name, 1.0)

        training = build(config_of("scornn"), precise=False)
        groups = [replace(each, rule=Counting) for each in training.model.param_groups()]
        training.model.param_groups = lambda: groups
        training.optimizers = Optimizers(training.model, training.config.optimizer)
        with pytest.raises(ValueError, match=r"remembers numbers that all lanes.*train alone"):
            Group(training, 2)

    def test_what_runs_alone_is_told_why(self):
        constructed = {"name": "constructed_copying", "delay": 3, "symbols": 2, "hidden_size": 9}
        assert "nothing is trained" in explain_alone(config_of(constructed))
        with pytest.raises(ValueError, match="nothing is trained"):
            Group(build(config_of(constructed), precise=False), 2)
        scaled = config_of({"name": "lt_rnn", "scale_gradient": True}, "ptb_chars")
        assert "'scale_gradient' runs alone on ptb_chars" in explain_alone(scaled)
        for name in TRAINED:
            assert explain_alone(config_of(name)) is None


@pytest.mark.parametrize("name", ["", "x" * 201, "a%", "a//b", "../a"])
def test_a_name_that_mlflow_refuses_is_told_alone_and_in_lanes(monkeypatch, name):
    monkeypatch.setattr(MODELS["tanh_rnn"], "constraint_report", lambda _: {name: torch.ones(())})
    training = build(config_of("tanh_rnn"))
    group = Group(training, 1)
    group.join(training)
    with pytest.raises(ValueError, match="a name has 1 to 200 letters"):
        group.advance(10.0)
    with pytest.raises(ValueError, match="a name has 1 to 200 letters"):
        training.report_constraint()
