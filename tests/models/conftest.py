"""What the tests of models share."""

import os
from types import SimpleNamespace

import pytest
import torch
from helpers.compilers import need_libraries, need_nvrtc
from helpers.small_models import REQUIRED

from eigensweep.models import MODELS
from eigensweep.models.recurrence.native import ungated


def shapes_of(input_size=5, output_size=3, input_kind="symbols", readout="all"):
    return SimpleNamespace(
        input_size=input_size, output_size=output_size, input_kind=input_kind, readout=readout
    )


def draw_input(shapes, steps=7, batch=3, lanes=()):
    if shapes.input_kind == "symbols":
        return torch.randint(0, shapes.input_size, (*lanes, steps, batch))
    return torch.randn(*lanes, steps, batch, shapes.input_size)


def config_of(name, **fields):
    sizes = {} if "parameters" in fields else {"hidden_size": 10}
    required = REQUIRED.get(name, {})
    # what is given displaces what excludes it
    stems = {field.rsplit("_", 1)[0] for field in fields}
    kept = {k: v for k, v in required.items() if k.rsplit("_", 1)[0] not in stems}
    return MODELS[name].Config(**{**sizes, **kept, **fields})


def build(name, shapes=None, seed=0, **fields):
    torch.manual_seed(seed)
    return MODELS[name](config_of(name, **fields), shapes or shapes_of())


def build_generic(name, shapes=None, seed=0, scale=0.3, **fields):
    """Return a model in float64 whose every parameter is away from special values."""
    model = build(name, shapes, seed, **fields).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, dtype=torch.float64))
    model.after_update({"main": 0.0, "orth": 0.0})
    return model


@pytest.fixture(scope="session")
def nets():
    """The builders above, for test modules that cannot import this file."""
    return SimpleNamespace(
        shapes=shapes_of,
        input=draw_input,
        config=config_of,
        build=build,
        generic=build_generic,
    )


@pytest.fixture(scope="session")
def kernels_folder(tmp_path_factory):
    """A folder for kernels that are compiled for the CPU: one for all processes of a test run."""
    need_libraries(ungated.SOURCE)
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kernels"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def nvrtc():
    """Skip where kernels cannot be compiled for a GPU."""
    need_nvrtc()
