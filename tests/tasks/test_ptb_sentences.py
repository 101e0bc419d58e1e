import numpy as np
import pytest
import torch

from eigensweep.tasks.ptb_chars import PtbChars, PtbCharsConfig, read_lines
from eigensweep.tasks.treebank import COUNTS, LINES, LONGEST_LINE, SYMBOLS, read_streams


class TestSentences:
    """On the same small text: lines of different lengths, some of them several times."""

    @pytest.fixture
    def task(self, small_corpora):
        config = PtbCharsConfig(reading="sentences", batch_size=5, eval_batch_size=2)
        return PtbChars(config, small_corpora)

    def lines_in(self, batch):
        """Return (input, target) of each line in a batch, without its padding, as symbol ids."""
        lengths = batch.mask.sum(0).tolist()
        assert batch.mask.equal(torch.arange(len(batch.x))[:, None] < batch.mask.sum(0))
        columns = zip(batch.x.T.tolist(), batch.y.T.tolist(), lengths, strict=True)
        return [(x[:n], y[:n]) for x, y, n in columns]

    def expected(self, task, split):
        """Return the same of every line of a file, straight from its text."""
        train, text = (
            (task.data_root / "ptb" / f"ptb.{s}.txt").read_text() for s in ("train", split)
        )
        ids = {symbol: i for i, symbol in enumerate(dict.fromkeys(train.replace("\n", "")))}
        lines = [[ids[c] for c in line[:-2]] for line in text.splitlines(keepends=True)]
        return [(line[:-1], line[1:]) for line in lines]

    @pytest.mark.parametrize("epoch", [0, 1])
    def test_each_line_comes_once_an_epoch_from_space_to_letter(self, task, epoch):
        steps = task.config.steps_per_epoch
        batches = [task.train_batch(epoch * steps + step, seed=3) for step in range(steps)]
        assert [b.x.shape[1] for b in batches].count(5) == steps - 1  # 12 lines: 5, 5 and 2
        found = [line for batch in batches for line in self.lines_in(batch)]
        assert sorted(found) == sorted(self.expected(task, "train"))

    def test_evaluation_has_every_line_and_the_shortest_first(self, task):
        found = [line for batch in task.evaluation("valid") for line in self.lines_in(batch)]
        assert sorted(found) == sorted(self.expected(task, "valid"))
        assert found == sorted(found, key=lambda line: len(line[0]))

    def test_the_state_is_carried_nowhere(self, task):
        batches = [task.train_batch(0, 0), *task.evaluation("valid")]
        assert all(batch.starts is None for batch in batches)

    def test_seed_and_epoch_draw_which_lines_meet(self, task):
        steps = task.config.steps_per_epoch
        passes = [
            [task.train_batch(step, seed).x.tolist() for step in range(first, first + steps)]
            for seed, first in [(0, 0), (0, steps), (1, 0), (2, 0)]
        ]
        assert all(one != other for i, one in enumerate(passes) for other in passes[:i])

    def test_what_is_said_on_padding_changes_no_loss_or_score(self, task):
        batch = task.train_batch(0, 0)
        assert not batch.mask.all()
        logits = torch.randn(*batch.x.shape, 49, generator=torch.Generator().manual_seed(0))
        other = torch.where(batch.mask[..., None], logits, 1e4)
        results = []
        for answer in (logits.requires_grad_(), other.requires_grad_()):
            task.loss(answer, batch).backward()
            assert answer.grad[~batch.mask].eq(0).all()
            scores = task.scores(answer.detach(), batch).values()
            results.append((answer.grad, [float(t) for t, _ in scores], [n for _, n in scores]))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)

    def test_scores_do_not_depend_on_lines_side_by_side(self, task, small_corpora):
        answers = torch.randn(49, 49, generator=torch.Generator().manual_seed(0))
        found = []
        for lines in (1, 2, 10):
            config = PtbCharsConfig(reading="sentences", eval_batch_size=lines)
            batches = PtbChars(config, small_corpora).evaluation("valid")
            scores = [task.scores(answers[b.x], b)["cross_entropy"] for b in batches]
            found.append((sum(float(total) for total, _ in scores), sum(int(n) for _, n in scores)))
        assert found[1] == pytest.approx(found[0])
        assert found[2] == pytest.approx(found[0])

    def test_the_loss_is_the_mean_over_characters_not_over_lines(self, task):
        batch = task.train_batch(0, 0)
        logits = torch.randn(*batch.x.shape, 49, generator=torch.Generator().manual_seed(0))
        nats = -logits.log_softmax(-1).gather(-1, batch.y[..., None])[..., 0]
        assert float(task.loss(logits, batch)) == pytest.approx(float(nats[batch.mask].mean()))

    def test_whole_lines_make_bptt_the_longest_line(self):
        config = PtbCharsConfig(reading="sentences")
        assert config.bptt == config.sequence_length == 518
        assert PtbCharsConfig.model_validate(config.model_dump()) == config
        assert PtbCharsConfig().bptt == 150


@pytest.mark.data
class TestSentencesOfThePennTreebank:
    def test_the_counts_are_the_corpus_s(self, data_root):
        lines = read_lines(data_root)
        assert {split: len(part) for split, part in lines.items()} == LINES
        assert {s: int(part.steps.sum()) for s, part in lines.items()} == COUNTS["sentences"]
        assert lines["train"].steps.max() == LONGEST_LINE
        stream = read_streams(data_root, "sentences")["train"]
        assert len(np.unique(stream)) == SYMBOLS["sentences"] + 1  # the end of a line beside them

    def test_lines_of_like_length_meet_so_that_little_is_padding(self, data_root):
        config = PtbCharsConfig(reading="sentences")
        task = PtbChars(config, data_root)
        assert config.steps_per_epoch == 329
        masks = [task.train_batch(step, 0).mask for step in range(329)]
        scored = sum(int(mask.sum()) for mask in masks)
        assert scored == COUNTS["sentences"]["train"]
        assert sum(mask.numel() for mask in masks) < 1.01 * scored
        lengths = [mask.shape[0] for mask in masks]
        assert lengths != sorted(lengths)

    def test_a_forgetting_predictor_scores_the_baseline(self, data_root):
        task = PtbChars(PtbCharsConfig(reading="sentences", eval_batch_size=400), data_root)
        batches = [task.train_batch(step, 0) for step in range(329)]
        targets = torch.cat([batch.y[batch.mask] for batch in batches])
        logits = targets.bincount(minlength=49).float().log()
        for split in ("valid", "test"):
            totals = {metric.name: [0.0, 0] for metric in task.config.metrics}
            for batch in task.evaluation(split):
                scores = task.scores(logits.expand(*batch.x.shape, 49), batch)
                for name, (total, count) in scores.items():
                    totals[name][0] += float(total)
                    totals[name][1] += count
            for name, (total, count) in totals.items():
                assert count == COUNTS["sentences"][split]
                known = task.config.baselines_on(split)[name]
                assert total / count == pytest.approx(known, abs=1e-5)
