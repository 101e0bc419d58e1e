"""What every task promises, small enough to look at each number."""

import hashlib
import sys
import tracemalloc
from dataclasses import replace

import pytest
import torch
from helpers.no_host import NoHost

from eigensweep.tasks import TASKS, streams
from eigensweep.tasks.adding import Adding, AddingConfig
from eigensweep.tasks.base import Batch, Metric, Shapes
from eigensweep.tasks.copying import Copying, CopyingConfig
from eigensweep.tasks.denoise import Denoise, DenoiseConfig
from eigensweep.tasks.noisy_cifar import NoisyCifarConfig
from eigensweep.tasks.pixel_cifar import PixelCifarConfig
from eigensweep.tasks.pixel_mnist import PixelMnistConfig
from eigensweep.tasks.ptb_chars import PtbCharsConfig
from eigensweep.tasks.selective_copying import SelectiveCopying, SelectiveCopyingConfig
from eigensweep.tasks.speech_frames import SpeechFramesConfig
from eigensweep.tasks.variable_copying import VariableCopying, VariableCopyingConfig

VOICES = "56b31ff3da3c29349f01bc49d2a56a6c71691f8b6c4f708aef28622a57060b76"
"""Digest of the recordings that the tests make."""
SMALL = {
    "adding": AddingConfig(length=12, batch_size=4, train_size=8, valid_size=20, test_size=30),
    "copying": CopyingConfig(delay=5, symbols=3, batch_size=4, valid_size=20, test_size=30),
    "variable_copying": VariableCopyingConfig(delay=5, symbols=3, batch_size=4, test_size=30),
    "denoise": DenoiseConfig(delay=5, symbols=3, batch_size=4, test_size=30),
    "selective_copying": SelectiveCopyingConfig(delay=5, symbols=3, batch_size=4, test_size=30),
    "pixel_mnist": PixelMnistConfig(batch_size=4),
    "pixel_cifar": PixelCifarConfig(batch_size=4),
    "noisy_cifar": NoisyCifarConfig(batch_size=4, length=40),
    "ptb_chars": PtbCharsConfig(batch_size=4, eval_batch_size=2, bptt=6),
    "ptb_chars, sentences": PtbCharsConfig(batch_size=4, eval_batch_size=2, reading="sentences"),
    "speech_frames": SpeechFramesConfig(corpus="voices", digest=VOICES, batch_size=4),
}


@pytest.fixture(params=dict.fromkeys([*TASKS, *SMALL]))
def task(request, small_corpora):
    if request.param not in SMALL:
        pytest.skip(f"'{request.param}' comes from an installed package")
    config = SMALL[request.param]
    return TASKS[config.name](config, small_corpora)


def same(one, other):
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(vars(one).values(), vars(other).values(), strict=True)
    )


def logits_for(task, batch):
    steps = () if task.config.shapes.readout == "last" else (batch.x.shape[0],)
    shape = (*steps, batch.x.shape[1], task.config.shapes.output_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)


class TestEveryTask:
    def test_a_batch_is_a_function_of_step_and_seed_in_any_order(self, task):
        forth = {(step, seed): task.train_batch(step, seed) for step in range(5) for seed in (0, 9)}
        list(task.evaluation("valid"))
        anew = type(task)(task.config, task.data_root)
        for (step, seed), batch in reversed(forth.items()):
            assert same(batch, anew.train_batch(step, seed))

    def test_batches_have_the_shapes_that_the_config_states(self, task):
        shapes, config = task.config.shapes, task.config
        batches = [task.train_batch(0, 0), next(task.evaluation("valid"))]
        for batch in batches:
            if batch.mask is None:
                assert batch.x.shape[0] == config.sequence_length
            else:
                assert batch.mask.shape[:2] == batch.y.shape[:2]
                assert batch.mask.dtype == torch.bool
                assert batch.x.shape[0] <= config.sequence_length
            if shapes.input_kind == "symbols":
                assert batch.x.dtype == torch.int64
                assert 0 <= int(batch.x.min()) <= int(batch.x.max()) < shapes.input_size
            else:
                assert batch.x.dtype == torch.float32
                assert batch.x.shape[2] == shapes.input_size
            if shapes.readout == "all" and batch.y.dtype == torch.float32:
                assert batch.y.shape == (*batch.x.shape[:2], shapes.output_size)
            elif shapes.readout == "all":
                assert batch.y.shape == batch.x.shape[:2]
                assert int(batch.y.max()) < shapes.output_size
            elif batch.y.dtype == torch.int64:
                assert batch.y.shape == (batch.x.shape[1],)
                assert 0 <= int(batch.y.min()) <= int(batch.y.max()) < shapes.output_size
            else:
                assert batch.y.shape == (batch.x.shape[1], shapes.output_size)
        assert batches[0].x.shape[1] == config.batch_size

    def test_the_first_metric_is_the_loss_and_each_has_a_baseline(self, task):
        batch = task.train_batch(0, 0)
        logits = logits_for(task, batch)
        scores = task.scores(logits, batch)
        names = list(task.config.objectives)
        assert list(scores) == names
        total, count = scores[names[0]]
        torch.testing.assert_close(total / count, task.loss(logits, batch))
        assert all(task.baselines[name] > 0 for name in names)
        assert all(
            task.config.baseline(name) == task.baselines[name] for name in task.config.baselines
        )
        task.loss(logits, batch).backward()
        assert logits.grad.isfinite().all()

    def test_losses_of_lanes_are_those_of_batches_and_never_wait(self, task):
        batches = [task.train_batch(0, seed) for seed in (0, 9)]
        if len({batch.x.shape for batch in batches}) > 1:
            batches = batches[:1] * 2
        logits = torch.stack(
            [logits_for(task, b).detach() * (i + 1) for i, b in enumerate(batches)]
        )
        parts = [[getattr(b, part) for b in batches] for part in ("x", "y", "mask")]
        given = [None if part[0] is None else torch.stack(part) for part in parts]
        dims = (0, *(None if part is None else 0 for part in given))

        def loss(logits, x, y, mask):
            return task.loss(logits, replace(batches[0], x=x, y=y, mask=mask))

        run = torch.vmap(torch.func.grad_and_value(loss), dims)
        gradients, losses = run(logits, *given)
        for i, batch in enumerate(batches):
            alone = logits[i].clone().requires_grad_()
            expected = task.loss(alone, batch)
            expected.backward()
            torch.testing.assert_close(losses[i], expected.detach())
            torch.testing.assert_close(gradients[i], alone.grad)
        spoilt = logits.clone()
        spoilt[0] = torch.nan
        beside = run(spoilt, *given)
        assert torch.equal(beside[0][1], gradients[1])
        assert torch.equal(beside[1][1], losses[1])
        there = [None if part is None else part.to("meta") for part in (logits, *given)]
        with NoHost():
            run(*there)

    def test_an_unknown_metric_is_refused_with_the_known_ones(self, task):
        with pytest.raises(
            ValueError, match=f"no metric 'bleu'; it has {task.config.metrics[0].name}"
        ):
            task.config.baseline("bleu")

    def test_evaluation_data_stays_the_same_and_its_splits_differ(self, task):
        first, second = list(task.evaluation("valid")), list(task.evaluation("valid"))
        assert len(first) == len(second)
        assert all(same(a, b) for a, b in zip(first, second, strict=True))
        assert not torch.equal(first[0].x[:, :1], next(task.evaluation("test")).x[:, :1])


GOLDEN = {
    "adding": "d9bfe197eae04d34",
    "copying": "1a068e3399393a02",
    "variable_copying": "970f081ad6ff0858",
    "denoise": "74641708ef5dd7a0",
    "selective_copying": "d759a550ca108b59",
    "pixel_mnist": "5bb3acddb93f513a",
    "pixel_cifar": "53239f427c8b3080",
    "noisy_cifar": "e48e4faf77074a99",
    "ptb_chars": "58ae76fe811715aa",
    "ptb_chars, sentences": "f15e663d4dd8cfb4",
    "speech_frames": "e2fc95a518bcef03",
}


def digest(*batches):
    content = b"".join(t.numpy().tobytes() for b in batches for t in (b.x, b.y))
    return hashlib.sha256(content).hexdigest()[:16]


def test_the_same_seed_gives_the_same_bits_on_every_machine(small_corpora):
    found = {}
    for name, config in SMALL.items():
        task = TASKS[config.name](config, small_corpora)
        found[name] = digest(task.train_batch(3, seed=7), next(task.evaluation("test")))
    assert found == GOLDEN


@pytest.mark.parametrize(
    ("make", "config", "field"),
    [
        (AddingConfig, {"length": 1}, "length"),
        (AddingConfig, {"length": 10**7}, "length"),
        (AddingConfig, {"train_size": 0}, "train_size"),
        (AddingConfig, {"variant": "thirds"}, "variant"),
        (AddingConfig, {"batch_size": 0}, "batch_size"),
        (AddingConfig, {"lenght": 5}, "lenght"),
        (CopyingConfig, {"delay": 0}, "delay"),
        (CopyingConfig, {"delay": 1_000_001}, "delay"),
        (CopyingConfig, {"delay": float("nan")}, "delay"),
        (CopyingConfig, {"alphabet": 1}, "alphabet"),
        (PtbCharsConfig, {"bptt": 0}, "bptt"),
        (PtbCharsConfig, {"reading": "words"}, "reading"),
        (VariableCopyingConfig, {"delay": 1}, "delay"),
        (DenoiseConfig, {"symbols": 0}, "symbols"),
        (PixelMnistConfig, {"permutation": 5}, "permutation"),
        (PixelMnistConfig, {"split": "heldout"}, "split"),
        (PixelMnistConfig, {"batch_size": 60_001}, "batch_size"),
        (PixelCifarConfig, {"colour": "red"}, "colour"),
        (NoisyCifarConfig, {"length": 32}, "length"),
        (SpeechFramesConfig, {"corpus": "../voices"}, "corpus"),
        (SpeechFramesConfig, {"digest": "12"}, "digest"),
        (SpeechFramesConfig, {"normalisation": "mean"}, "normalisation"),
        (SpeechFramesConfig, {"mask": "all"}, "mask"),
        (SpeechFramesConfig, {"pad_frames": 3}, "pad_frames"),
    ],
)
def test_a_field_out_of_range_is_refused_by_name(make, config, field):
    with pytest.raises(ValueError, match=field):
        make(**config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (AddingConfig(length=2), "'length' of at least 3; it is 2"),
        (AddingConfig(train_size=49), "'train_size' of at least 'batch_size' \\(50\\)"),
        (CopyingConfig(delay=999_980, batch_size=101), "'batch_size' of at most 100; it is 101"),
        (PtbCharsConfig(bptt=39_199), "'bptt' of at most 39198; it is 39199"),
        (
            PtbCharsConfig(reading="sentences", bptt=50),
            "of 518; leave it out. It is 50",
        ),
        (
            PixelMnistConfig(batch_size=55_001),
            "at most 55000, its number of training images; it is 55001",
        ),
        (
            NoisyCifarConfig(batch_size=47_001),
            "at most 47000, its number of training images; it is 47001",
        ),
        (
            SpeechFramesConfig(batch_size=3_697),
            "of training recordings; it is 3697",
        ),
    ],
)
def test_fields_that_contradict_are_refused_with_the_range(config, words):
    with pytest.raises(ValueError, match=words):
        TASKS[config.name](config)


@pytest.mark.parametrize(
    "config",
    [
        AddingConfig(train_size=None),
        CopyingConfig(train_size=None),
        VariableCopyingConfig(),
        DenoiseConfig(),
        SelectiveCopyingConfig(),
    ],
    ids=lambda config: config.name,
)
def test_fresh_data_has_no_epochs_and_says_so(config):
    config.check()
    with pytest.raises(ValueError, match=r"give the budget as 'training.steps'"):
        _ = config.steps_per_epoch


@pytest.mark.parametrize(
    "task",
    [
        Adding(AddingConfig()),
        Copying(CopyingConfig()),
        VariableCopying(VariableCopyingConfig()),
        Denoise(DenoiseConfig()),
        SelectiveCopying(SelectiveCopyingConfig()),
    ],
    ids=lambda task: task.config.name,
)
def test_a_batch_draws_its_own_numbers_and_no_set_is_held(task, monkeypatch):
    drawn = []

    def draw_and_count(*arguments):
        numbers = streams.draw(*arguments)
        drawn.append(numbers.size)
        return numbers

    tracemalloc.start()
    task.train_batch(0, seed=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6  # the training set of adding alone would take 300 MB

    monkeypatch.setattr(sys.modules[type(task).__module__], "draw", draw_and_count)
    task.train_batch(1, seed=0)
    sequences, steps = task.config.batch_size, task.config.sequence_length
    assert 0 < sum(drawn) <= sequences * (steps + 2)


@pytest.mark.parametrize(
    "make",
    [AddingConfig, CopyingConfig, VariableCopyingConfig, DenoiseConfig, SelectiveCopyingConfig],
)
def test_training_data_depends_on_the_seed_and_is_no_test_data(make):
    task = TASKS[make().name](make(train_size=None, batch_size=20, test_size=20, valid_size=20))
    batches = [task.train_batch(0, 0), task.train_batch(1, 0), task.train_batch(0, 1)]
    batches += [next(task.evaluation("valid")), next(task.evaluation("test"))]
    each = torch.cat([batch.x for batch in batches], dim=1).transpose(0, 1).flatten(1)
    distinct = each.unique(dim=0)
    assert len(distinct) == 5 * 20


def test_targets_of_the_last_step_alone_are_padded_by_rows():
    """Numbers as targets have an axis more than symbols."""
    for y in (torch.ones(3, 1), torch.ones(3, dtype=torch.long)):
        batch = Batch(torch.ones(5, 3, 2), y).pad(5, 4)
        assert batch.y.shape == batch.mask.shape == (4, *y.shape[1:])
        assert batch.x.shape == (5, 4, 2)
        assert batch.mask.flatten().tolist() == [True] * 3 + [False]
        with pytest.raises(ValueError, match="cannot be padded to 6 steps"):
            Batch(torch.ones(5, 3, 2), y).pad(6, 3)


def test_a_metric_that_would_be_ranked_upside_down_is_refused():
    with pytest.raises(ValueError, match=r"Metric\('mse'\).better is 'min'; it is 'lower' or"):
        Metric("mse", "", "min")
    with pytest.raises(ValueError, match=r"Shapes\.readout is 'end'; it is 'all' or 'last'"):
        Shapes(3, "symbols", 3, "end")
