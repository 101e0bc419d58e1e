"""CIFAR-10 on a few images in the published formats: files, sequences, splits."""

import pickle
from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from helpers.small_files import cifar_images, python2_pickle

from eigensweep.tasks import cifar
from eigensweep.tasks.cifar import read_binary, read_images, read_pickle
from eigensweep.tasks.corpus import CorpusMismatchError, CorpusMissingError
from eigensweep.tasks.noisy_cifar import NoisyCifar, NoisyCifarConfig
from eigensweep.tasks.pixel_cifar import PixelCifar, PixelCifarConfig


def binary(pixels, labels):
    return np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8).tobytes()


@pytest.fixture
def binary_corpus(small_corpora, monkeypatch):
    """The data root with the binary format in place of the python one."""
    files = {f"{name}.bin": binary(*cifar_images(name)) for name in (*cifar.TRAIN, *cifar.TEST)}
    for name in (*cifar.TRAIN, *cifar.TEST):
        (small_corpora / "cifar10" / name).unlink()
    (small_corpora / "cifar-10-batches-bin").mkdir()
    for name, content in files.items():
        (small_corpora / "cifar-10-batches-bin" / name).write_bytes(content)
    sized = {name: (len(content), None) for name, content in files.items()}
    monkeypatch.setattr(cifar, "BINARY", replace(cifar.BINARY, files=sized))
    return small_corpora


class TestFormats:
    def test_both_hold_the_same_images(self, small_corpora, request):
        of_pickles = read_images(small_corpora)
        cifar.read_images.cache_clear()
        of_bytes = read_images(request.getfixturevalue("binary_corpus"))
        for part in ("train", "test"):
            assert np.array_equal(of_pickles[part].pixels, of_bytes[part].pixels)
            assert np.array_equal(of_pickles[part].labels, of_bytes[part].labels)
        pixels, labels = zip(*map(cifar_images, cifar.TRAIN), strict=True)
        assert np.array_equal(of_bytes["train"].pixels, np.concatenate(pixels))
        assert np.array_equal(of_bytes["train"].labels, np.concatenate(labels))

    def test_a_pickle_of_this_python_is_read_too(self):
        pixels, labels = cifar_images("test_batch")
        content = pickle.dumps({b"data": pixels, b"labels": labels.tolist()}, protocol=4)
        found = read_pickle(content)
        assert np.array_equal(found.pixels, pixels)
        assert np.array_equal(found.labels, labels)

    @pytest.mark.parametrize("folder", ["cifar10", "cifar-10-batches-py"])
    def test_they_are_read_from_the_folder_that_the_archive_unpacks(self, small_corpora, folder):
        (small_corpora / "cifar10").rename(small_corpora / folder)
        PixelCifar.check_corpus(PixelCifarConfig(), small_corpora)
        paths = PixelCifar.list_corpus(PixelCifarConfig(), small_corpora)
        assert [path.parent.name for path in paths] == 6 * [folder]
        assert len(read_images(small_corpora)["train"].labels) == 40

    def test_nothing_but_arrays_comes_out_of_a_pickle(self, tmp_path):
        mark = tmp_path / "ran"

        class Evil:
            def __reduce__(self):
                return open, (str(mark), "w")

        for content in (pickle.dumps(Evil()), pickle.dumps({b"data": Evil(), b"labels": [1]})):
            with pytest.raises(CorpusMismatchError, match=r"it names _?io\.open"):
                read_pickle(content)
        assert not mark.exists()

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "no python file of CIFAR-10"),
            (pickle.dumps([1, 2]), "no python file of CIFAR-10"),
            (pickle.dumps({b"labels": [1]}), "no python file of CIFAR-10: b'data'"),
            (
                pickle.dumps({b"data": np.zeros((2, 9), np.uint8), b"labels": [1, 2]}),
                "3,072 numbers for each of its labels",
            ),
            (
                pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [1]}),
                "bytes and labels from 0 to 9; these are float64 and 1 to 1",
            ),
        ],
    )
    def test_another_pickle_is_told_by_what_it_lacks(self, content, words):
        with pytest.raises(CorpusMismatchError, match=words):
            read_pickle(content)

    def test_a_binary_file_has_whole_images_and_ten_classes(self):
        whole = binary(*cifar_images("test_batch"))
        with pytest.raises(CorpusMismatchError, match=r"has 3,073 bytes for each image; this one"):
            read_binary(whole[:-1])
        with pytest.raises(CorpusMismatchError, match="labels from 0 to 9; these are uint8 and"):
            read_binary(bytes([10]) + whole[1:])

    def test_each_class_has_a_tenth_of_the_images(self, binary_corpus):
        path = binary_corpus / "cifar-10-batches-bin" / "test_batch.bin"
        content = path.read_bytes()
        path.write_bytes(bytes([(content[0] + 1) % 10]) + content[1:])
        with pytest.raises(CorpusMismatchError, match="images of each class; expected 1 of each"):
            read_images(binary_corpus)

    def test_a_damaged_python_file_is_told_by_its_digest(self, small_corpora):
        path = small_corpora / "cifar10" / "data_batch_2"
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        with pytest.raises(CorpusMismatchError, match=r"data_batch_2 has MD5 \w{32}; expected \w"):
            read_images(small_corpora)

    def test_a_file_of_another_size_is_told_at_once(self, small_corpora, binary_corpus):
        (binary_corpus / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(b"short")
        with pytest.raises(CorpusMismatchError, match="has 5 bytes; expected 30,730"):
            PixelCifar.check_corpus(PixelCifarConfig(), binary_corpus)

    def test_a_missing_corpus_is_told_with_what_will_do(self, tmp_path):
        with pytest.raises(CorpusMissingError) as error:
            PixelCifar.check_corpus(PixelCifarConfig(), tmp_path)
        words = str(error.value)
        assert f"there is no {tmp_path / 'cifar10' / 'data_batch_1'}" in words
        assert "`eigensweep data fetch cifar10` gets it" in words
        assert "cifar-10-batches-py, which it unpacks" in words

    def test_the_published_files_have_their_published_sizes(self):
        assert sum(size for size, _ in cifar.PYTHON.files.values()) == 186_213_868
        assert {size for size, _ in cifar.BINARY.files.values()} == {30_730_000}
        assert cifar.NUMBERS == {"train": 50_000, "test": 10_000}


class TestSequences:
    def test_a_step_shows_one_pixels_colours_row_by_row(self, small_corpora):
        config = PixelCifarConfig(normalisation="unit", split="none", batch_size=9)
        batch = next(PixelCifar(config, small_corpora).evaluation("test"))
        assert batch.x.shape == (1024, 10, 3)
        pixels, labels = cifar_images("test_batch")
        for image, row, column in ((0, 0, 5), (3, 7, 31), (9, 31, 0)):
            step = 32 * row + column
            shown = [pixels[image, 1024 * colour + step] / np.float32(255) for colour in range(3)]
            assert batch.x[step, image].tolist() == shown
        assert batch.y.tolist() == labels.tolist()

    def test_grey_is_the_brightness_that_pillow_computes(self):
        pixels = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [200, 100, 50]], np.uint8)
        images = np.zeros((1, 3, 32, 32), np.uint8)
        images[0, :, 0, :4] = pixels.T
        config = PixelCifarConfig(colour="grey", normalisation="unit")
        shown = PixelCifar(config).sequences(images)
        assert shown.shape == (1024, 1, 1)
        assert (255 * shown[:4, 0, 0]).round().tolist() == [76, 150, 29, 124]

    @pytest.mark.parametrize("colour", ["rgb", "grey"])
    def test_standard_values_are_less_the_mean_by_the_deviation(self, colour):
        images = np.full((1, 3, 32, 32), 128, np.uint8)
        shown = PixelCifar(PixelCifarConfig(colour=colour)).sequences(images)[0, 0]
        level = 128 / 255
        expected = (
            [(level - m) / d for m, d in ((0.4914, 0.247), (0.4822, 0.243), (0.4465, 0.261))]
            if colour == "rgb"
            else [(128 - 122.6) / 61]
        )
        assert shown.tolist() == pytest.approx(expected, rel=1e-5)

    def test_a_padded_image_is_its_rows_then_the_same_noise(self, small_corpora):
        task = NoisyCifar(NoisyCifarConfig(length=50, split="none", batch_size=9), small_corpora)
        batch = next(task.evaluation("test"))
        assert batch.x.shape == (50, 10, 96)
        pixels, _ = cifar_images("test_batch")
        for image, row in ((0, 0), (9, 31)):
            values = [pixels[image, 1024 * c + 32 * row + i] for c in range(3) for i in range(32)]
            assert batch.x[row, image].tolist() == [v / np.float32(255) for v in values]
        rest = batch.x[32:]
        assert torch.equal(rest, rest[:, :1].expand_as(rest))
        assert torch.equal(task.train_batch(7, seed=3).x[32:, 0], rest[:, 0])

    def test_the_noise_is_standard_normal_and_starts_alike(self):
        from eigensweep.tasks.noisy_cifar import noise

        drawn = noise(968)
        assert drawn.shape == (968, 96)
        assert abs(float(drawn.mean())) < 0.02
        assert float(drawn.std()) == pytest.approx(1, abs=0.02)
        assert np.array_equal(noise(5), drawn[:5])

    def test_the_defaults_are_those_of_the_papers(self):
        pixels, rows = PixelCifarConfig(), NoisyCifarConfig()
        assert (pixels.sequence_length, pixels.shapes.input_size, pixels.steps_per_epoch) == (
            *(1024, 3, 900),
        )
        assert (rows.sequence_length, rows.shapes.input_size, rows.steps_per_epoch) == (
            *(1000, 96, 470),
        )


@pytest.mark.parametrize("make", [PixelCifar, NoisyCifar], ids=["pixels", "rows"])
class TestBothTasks:
    def build(self, make, root, **fields):
        return make(make.Config(**fields), root)

    def images(self, batches):
        return [tuple(row.tolist()) for b in batches for row in b.x[:32, :, 0].T]

    def test_each_image_comes_up_once_an_epoch_and_none_is_held_out(self, make, small_corpora):
        task = self.build(make, small_corpora, batch_size=8, split="heldout_5000")
        steps = task.config.steps_per_epoch
        orders = [
            self.images(task.train_batch(steps * epoch + i, seed) for i in range(steps))
            for seed in (0, 1)
            for epoch in (0, 1)
        ]
        held_out = self.images(task.evaluation("valid"))
        assert (len(orders[0]), len(held_out)) == (35, 5)
        assert len({tuple(order) for order in orders}) == 4
        assert all(set(order) == set(orders[0]) for order in orders)
        assert not set(held_out) & set(orders[0])

    def test_without_a_validation_split_the_test_images_stand_in(self, make, small_corpora):
        task = self.build(make, small_corpora, batch_size=40, split="none")
        valid, test = next(task.evaluation("valid")), next(task.evaluation("test"))
        assert torch.equal(valid.x, test.x)

    def test_chance_scores_the_baselines(self, make, small_corpora):
        task = self.build(make, small_corpora, batch_size=35, split="heldout_5000")
        batch = task.train_batch(0, 0)
        logits = torch.zeros(len(batch.y), 10)
        assert float(task.loss(logits, batch)) == pytest.approx(task.config.baseline())
        assert task.config.baseline() == log(10)
        right = sum(
            float(task.scores(torch.eye(10)[guess].expand(35, 10), batch)["accuracy"][0])
            for guess in range(10)
        )
        assert right / 10 / 35 == pytest.approx(task.config.baseline("accuracy"))


def test_the_written_files_are_those_of_python_2():
    """A pickle of protocol 2 with strings of bytes, as the published ones are."""
    content = python2_pickle("testing batch 1 of 1", *cifar_images("test_batch"))
    assert content.startswith(b"\x80\x02}")
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in content
    held = pickle.loads(content, encoding="bytes")
    assert list(held) == [b"batch_label", b"labels", b"data", b"filenames"]
    assert held[b"data"].shape == (10, 3072)
