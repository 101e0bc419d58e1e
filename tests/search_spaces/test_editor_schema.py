"""What an editor tells a person who writes a spec."""

from importlib import resources

import pytest
from jsonschema import Draft202012Validator

from eigensweep.search_spaces.editor_schema import make_editor_schema
from eigensweep.search_spaces.shipped.presets import load_preset, preset_names
from eigensweep.search_spaces.spec_text import read_text

SPEC = """
task: {name: copying, delay: 20}
training: {steps: 100}
arms:
  - model: {name: scornn, hidden_size: 8, negative_ones: 4}
  - model: {name: lstm, hidden_size: 8}
search: {space: {optimizer.lr: [1e-1, 1e-2], model.forget_bias: {low: -4, high: 4}}}
"""


@pytest.fixture(scope="module")
def schema():
    return Draft202012Validator(make_editor_schema())


def test_every_preset_fits(schema):
    Draft202012Validator.check_schema(schema.schema)
    for name in preset_names():
        spec = load_preset(name).model_dump(mode="json", exclude_unset=True)
        assert not list(schema.iter_errors(spec)), name
        file = resources.files("eigensweep.search_spaces") / "presets" / f"{name}.yaml"
        assert not list(schema.iter_errors(read_text(file.read_text()))), name


@pytest.mark.parametrize(
    ("before", "after", "path", "words"),
    [
        ("delay: 20", "delai: 20", "task", "'delai'"),
        ("delay: 20", "delay: 0", "task.delay", "0 is less than the minimum of 1"),
        ("negative_ones: 4", "negative_ones: four", "arms.0.model.negative_ones", "'four'"),
        ("name: lstm", "name: lstn", "arms.1.model.name", "'lstn' is not one of"),
        ("steps: 100", "step: 100", "training", "'step'"),
    ],
)
def test_a_wrong_field_is_marked_where_it_is(schema, before, after, path, words):
    assert not list(schema.iter_errors(read_text(SPEC)))
    (error,) = schema.iter_errors(read_text(SPEC.replace(before, after)))
    while error.context:
        error = error.context[0]
    assert ".".join(map(str, error.absolute_path)) == path
    assert words in error.message
