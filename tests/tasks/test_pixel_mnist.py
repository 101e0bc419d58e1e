import gzip
import hashlib
import tracemalloc
from math import log

import numpy as np
import pytest
import torch

from eigensweep.tasks import mnist
from eigensweep.tasks.corpus import CorpusMismatchError, CorpusMissingError
from eigensweep.tasks.mnist import NUMBERS, read_idx, read_images
from eigensweep.tasks.pixel_mnist import PixelMnist, PixelMnistConfig, pixel_order, split_rows

PERMUTATIONS = {  # first entries, and SHA-256 as little-endian int64
    92916: (
        [319, 576, 323, 107, 355, 716, 197, 20, 625, 60, 443, 620],
        "96240fe27409981c3ed3e92c20d995f7103a94c2282307bc776923030113be74",
    ),
    1234: (
        [529, 511, 328, 133, 532, 378, 156, 305, 143, 582, 288, 169],
        "12a7f1b0d6e7008aeda289c0542235f012233240cdf05f52552dd062482de577",
    ),
}
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def sha256(numbers):
    return hashlib.sha256(numbers.astype("<i8").tobytes()).hexdigest()


def contents(root, name):
    return gzip.decompress((root / "mnist" / f"{name}.gz").read_bytes())


class TestOrders:
    @pytest.mark.parametrize("seed", PERMUTATIONS)
    def test_the_permutations_are_the_published_ones(self, seed):
        first, digest = PERMUTATIONS[seed]
        assert pixel_order(seed)[:12].tolist() == first
        assert sha256(pixel_order(seed)) == digest

    def test_nnrnns_split_goes_on_with_its_permutations_stream(self):
        train, valid = split_rows("nnrnn")
        assert (len(train), len(valid)) == (50_000, 10_000)
        assert train[:6].tolist() == [8550, 21862, 695, 39481, 32467, 48691]
        digest = "a61fc6d778d7f090d12dd82ab7dd987bfc709a4c4253398d1e4629d979279c18"
        assert sha256(np.concatenate([train, valid])) == digest

    def test_the_other_splits_hold_out_the_first_images_or_none(self):
        train, valid = split_rows("heldout_5000")
        assert (train[[0, -1]].tolist(), valid[[0, -1]].tolist()) == ([5_000, 59_999], [0, 4_999])
        train, valid = split_rows("none")
        assert (train[[0, -1]].tolist(), len(valid)) == ([0, 59_999], 0)

    @pytest.mark.parametrize(
        ("config", "steps"),
        [
            ({}, 430),
            ({"split": "none"}, 469),
            ({"batch_size": 50}, 1_100),
            ({"split": "nnrnn", "batch_size": 100}, 500),
        ],
    )
    def test_steps_per_epoch_are_the_published_ones(self, config, steps):
        assert PixelMnistConfig(**config).steps_per_epoch == steps


class TestBatches:
    """On a few images of noise, so that it runs everywhere."""

    @pytest.mark.parametrize("permutation", ["none", 92916, 1234])
    def test_each_step_shows_the_ordered_pixel_over_255(self, small_corpora, permutation):
        config = PixelMnistConfig(permutation=permutation, order="fixed", batch_size=3)
        batch = PixelMnist(config, small_corpora).train_batch(1, seed=0)
        assert batch.x.shape == (784, 3, 1)
        assert batch.x.dtype == torch.float32
        file, labels = contents(small_corpora, IMAGES), contents(small_corpora, LABELS)
        order = range(784) if permutation == "none" else pixel_order(permutation)
        for b, image in enumerate((8, 9, 10)):  # the second batch of those after the held out 5
            pixels = file[16 + 784 * image :][:784]
            shown = [np.float32(pixels[i]) / np.float32(255) for i in order]
            assert batch.x[:, b, 0].tolist() == shown
            assert int(batch.y[b]) == labels[8 + image]

    def digits(self, task, steps, seed=0):
        return [
            tuple(row.tolist())
            for step in steps
            for row in task.train_batch(step, seed).x[:, :, 0].T
        ]

    def test_each_image_comes_once_an_epoch_in_its_seeds_order(self, small_corpora):
        task = PixelMnist(PixelMnistConfig(batch_size=8), small_corpora)
        assert task.config.steps_per_epoch == 5
        orders = [
            self.digits(task, range(5 * epoch, 5 * epoch + 5), seed)
            for seed in (0, 1)
            for epoch in (0, 1)
        ]
        assert len(orders[0]) == 35
        assert len({tuple(order) for order in orders}) == 4
        assert all(set(order) == set(orders[0]) for order in orders)
        assert task.train_batch(4, 0).x.shape[1] == 3  # what is left of 35

    def test_a_fixed_order_is_the_split_s_own_for_ever(self, small_corpora):
        config = PixelMnistConfig(batch_size=30, order="fixed", split="nnrnn", permutation="none")
        task = PixelMnist(config, small_corpora)
        train, _ = split_rows("nnrnn")
        file = contents(small_corpora, IMAGES)
        shown = [(255 * np.array(row)).round().tolist() for row in self.digits(task, [0])]
        assert shown == [list(file[16 + 784 * image :][:784]) for image in train]
        assert self.digits(task, [0]) == self.digits(task, [1], seed=5)

    @pytest.mark.parametrize("split", ["heldout_5000", "nnrnn"])
    def test_no_image_is_both_trained_on_and_held_out(self, small_corpora, split):
        task = PixelMnist(PixelMnistConfig(batch_size=30, split=split), small_corpora)
        trained = set(self.digits(task, range(task.config.steps_per_epoch)))
        held_out = {tuple(row.tolist()) for b in task.evaluation("valid") for row in b.x[..., 0].T}
        assert len(trained) + len(held_out) == 40
        assert not trained & held_out

    def test_without_a_validation_split_the_test_images_stand_in(self, small_corpora):
        task = PixelMnist(PixelMnistConfig(batch_size=40, split="none"), small_corpora)
        valid, test = next(task.evaluation("valid")), next(task.evaluation("test"))
        assert torch.equal(valid.x, test.x)
        assert len(test.y) == 12

    def test_chance_scores_the_baselines(self, small_corpora):
        task = PixelMnist(PixelMnistConfig(batch_size=35), small_corpora)
        batch = task.train_batch(0, 0)
        logits = torch.zeros(len(batch.y), 10)
        assert float(task.loss(logits, batch)) == pytest.approx(task.config.baseline())
        assert task.config.baseline() == log(10)
        right = sum(
            float(task.scores(torch.eye(10)[guess].expand(35, 10), batch)["accuracy"][0])
            for guess in range(10)
        )
        assert right / 10 / 35 == pytest.approx(task.config.baseline("accuracy"))


class TestFiles:
    @pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "mnist/MNIST/raw"])
    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("point", [True, False])
    def test_they_are_read_in_each_spelling_and_from_torchvisions(
        self, small_corpora, folder, packed, point
    ):
        original = {name: contents(small_corpora, name) for name in mnist.FILES}
        for name in mnist.FILES:
            (small_corpora / "mnist" / f"{name}.gz").unlink()
        (small_corpora / folder).mkdir(parents=True, exist_ok=True)
        for name, content in original.items():
            spelt = name.replace("-idx", ".idx") if point else name
            path = small_corpora / folder / (f"{spelt}.gz" if packed else spelt)
            path.write_bytes(gzip.compress(content, 1) if packed else content)
        PixelMnist.check_corpus(PixelMnistConfig(), small_corpora)
        images = read_images(small_corpora)
        assert images["train"].pixels.tobytes() == original[IMAGES][16:]
        assert images["train"].labels.tobytes() == original[LABELS][8:]

    def test_a_missing_file_is_told_with_what_will_do(self, tmp_path):
        with pytest.raises(CorpusMissingError) as error:
            PixelMnist.check_corpus(PixelMnistConfig(), tmp_path)
        words = str(error.value)
        assert f"there is no {tmp_path / 'mnist' / IMAGES}" in words
        assert "may stay packed; torchvision's folder MNIST/raw" in words

    @pytest.mark.parametrize("damage", [lambda b: b[:-20], lambda b: b[:30] + b[:10] + b[40:]])
    def test_a_damaged_gzip_file_is_told_as_one(self, small_corpora, damage):
        path = small_corpora / "mnist" / f"{IMAGES}.gz"
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(CorpusMismatchError, match=r"ubyte.gz is damaged, or no gzip file \("):
            read_images(small_corpora)

    def test_a_gzip_file_that_is_none_is_told(self, small_corpora):
        (small_corpora / "mnist" / f"{IMAGES}.gz").write_bytes(b"<html>not found</html>")
        with pytest.raises(CorpusMismatchError, match="Not a gzipped file"):
            read_images(small_corpora)

    def test_a_packed_file_with_a_truncated_one_is_refused(self, small_corpora):
        short = contents(small_corpora, IMAGES)[:-784]
        (small_corpora / "mnist" / f"{IMAGES}.gz").write_bytes(gzip.compress(short))
        with pytest.raises(CorpusMismatchError, match="holds 30,592 bytes; expected 31,376"):
            read_images(small_corpora)

    def test_a_plain_file_comes_first_a_truncated_one_is_refused(self, small_corpora):
        (small_corpora / "mnist" / IMAGES).write_bytes(b"short")
        with pytest.raises(CorpusMismatchError, match="has 5 bytes; expected 31,376"):
            PixelMnist.check_corpus(PixelMnistConfig(), small_corpora)

    def test_other_images_of_the_same_size_are_refused(self, small_corpora):
        path = small_corpora / "mnist" / f"{IMAGES}.gz"
        content = contents(small_corpora, IMAGES)
        path.write_bytes(gzip.compress(content[:-1] + bytes([255 - content[-1]])))
        with pytest.raises(CorpusMismatchError, match=r"ubyte.gz has SHA-256 \w{64}; expected"):
            read_images(small_corpora)

    def test_a_file_of_another_kind_is_told_by_its_first_bytes(self, small_corpora):
        with pytest.raises(ValueError, match="of 3 axes begins with 2051, not with 2049"):
            read_idx(contents(small_corpora, LABELS), axes=3)
        with pytest.raises(ValueError, match="begins with 2049, not with 0"):
            read_idx(b"", axes=1)

    @pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b + b"0", lambda b: b[:6]])
    def test_a_body_that_is_not_what_the_header_says_is_refused(self, small_corpora, change):
        with pytest.raises(ValueError, match=r"of shape \[.*\] has .* bytes, not"):
            read_idx(change(contents(small_corpora, IMAGES)), axes=3)


@pytest.mark.data
class TestMnist:
    def test_the_counts_are_the_published_ones(self, data_root):
        images = read_images(data_root)
        assert {part: len(i.labels) for part, i in images.items()} == NUMBERS
        assert {part: i.pixels.shape for part, i in images.items()} == {
            part: (number, 784) for part, number in NUMBERS.items()
        }
        assert np.bincount(images["train"].labels).tolist() == [
            *(5923, 6742, 5958, 6131, 5842),
            *(5421, 5918, 6265, 5851, 5949),
        ]
        assert np.bincount(images["test"].labels).tolist() == [
            *(980, 1135, 1032, 1010, 982),
            *(892, 958, 1028, 974, 1009),
        ]

    def test_images_are_held_as_single_bytes(self, data_root):
        held = read_images(data_root).values()
        assert sum(part.pixels.nbytes + part.labels.nbytes for part in held) == 70_000 * 785

    def test_the_first_image_is_a_five_and_stands_upright(self, data_root):
        config = PixelMnistConfig(permutation="none", split="none", order="fixed", batch_size=1)
        batch = PixelMnist(config, data_root).train_batch(0, 0)
        rows, columns = batch.x[:, 0, 0].reshape(28, 28).nonzero().T
        assert int(batch.y) == 5
        assert float(batch.x.max()) == 1
        assert (int(rows.min()), int(rows.max())) == (5, 24)
        assert (int(columns.min()), int(columns.max())) == (4, 23)

    @pytest.mark.parametrize(
        ("split", "sizes"),
        [
            ("heldout_5000", (55_000, 5_000, 10_000)),
            ("none", (60_000, 10_000, 10_000)),
            ("nnrnn", (50_000, 10_000, 10_000)),
        ],
    )
    def test_the_splits_have_the_published_sizes(self, data_root, split, sizes):
        task = PixelMnist(PixelMnistConfig(split=split), data_root)
        found = [sum(len(b.y) for b in task.evaluation(part)) for part in ("valid", "test")]
        assert (task.config.train_size, *found) == sizes

    def test_constant_answers_score_chance_and_the_share_of_ones(self, data_root):
        task = PixelMnist(PixelMnistConfig(), data_root)
        right, nats, count = torch.zeros(10), 0.0, 0
        for batch in task.evaluation("test"):
            for guess in range(10):
                logits = torch.eye(10)[guess].expand(len(batch.y), 10)
                right[guess] += task.scores(logits, batch)["accuracy"][0]
            total, n = task.scores(torch.zeros(len(batch.y), 10), batch)["cross_entropy"]
            nats, count = nats + float(total), count + n
        assert nats / count == pytest.approx(task.config.baseline(), rel=1e-6)
        assert float(right.mean()) / count == pytest.approx(task.config.baseline("accuracy"))
        assert int(right.max()) == int(right[1]) == 1135

    def test_a_batch_touches_the_images_of_its_own_rows_alone(self, data_root):
        task = PixelMnist(PixelMnistConfig(), data_root)
        task.train_batch(0, seed=0)
        tracemalloc.start()
        batch = task.train_batch(1, seed=0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 * batch.x.nbytes  # all 60,000 images would take 100 times as much
