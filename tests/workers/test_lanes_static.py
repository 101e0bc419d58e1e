"""A step of lanes waits for nothing: no value is read back, and nothing comes from the host.

On the device `meta`, which has shapes and no values, reading a value is an error.
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from lanes import build, config_of
from small_files import put_small_corpora
from test_lanes import VARIANTS
from torch.utils._python_dispatch import TorchDispatchMode

from eigensweep.workers.engine.program import Program


class NoCopies(TorchDispatchMode):
    """Refuses what a captured step must not do: copies between host and device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = [t for t in torch.utils._pytree.tree_leaves((args, kwargs)) if is_large(t)]
        made = [t for t in torch.utils._pytree.tree_leaves(result) if is_large(t)]
        devices = {t.device.type for t in (*given, *made)}
        assert devices <= {"meta"} or "meta" not in devices, f"{func} takes tensors to {devices}"
        return result


def is_large(t):
    return isinstance(t, torch.Tensor) and t.dim() > 0


def make_program(config, **options):
    """Return a program whose tensors have shapes and no values."""
    training = build(config, precise=False, **options)
    program = Program(training, 2, static=True)
    program.load(0, training)
    program.batches.place(0, 2)
    strip(program, set())
    return program


def strip(holder, seen):
    """Move all tensors below an object to the device `meta`."""
    if isinstance(holder, torch.nn.Module):
        holder.to("meta")
        return
    if id(holder) in seen or not (
        isinstance(holder, dict | list) or type(holder).__module__.startswith("eigensweep.workers")
    ):
        return
    seen.add(id(holder))
    parts = holder if isinstance(holder, dict | list) else vars(holder)
    for key, value in list(enumerate(parts) if isinstance(parts, list) else parts.items()):
        if isinstance(value, torch.Tensor):
            parts[key] = value.to("meta")
        elif isinstance(value, torch.device):
            parts[key] = torch.device("meta")
        else:
            strip(value, seen)


def step_without_host(program):
    with NoCopies():
        program._tick()
        program._tick()
    program.close()


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_no_step_of_any_model_asks_the_device_or_the_host(name, fields):
    step_without_host(make_program(config_of({"name": name, **fields})))


@pytest.mark.parametrize("name", ["rmsprop", "adagrad", "rmsprop_tf1", "adagrad_tf1"])
def test_no_optimizer_asks_the_device(name):
    step_without_host(make_program(config_of("scornn", optimizer={"name": name})))


@pytest.mark.parametrize("task", ["adding", "ptb_chars", "speech_frames"])
def test_no_task_asks_the_device(task, tmp_path, monkeypatch):
    put_small_corpora(tmp_path, monkeypatch)
    step_without_host(make_program(config_of("lstm", task), data_root=tmp_path))


def test_a_step_that_reads_a_value_is_noticed():
    program = make_program(config_of("scornn"))
    program._task = mock.Mock(loss=lambda logits, batch: logits.sum() * float(logits.sum()))
    with pytest.raises(RuntimeError):
        step_without_host(program)
