"""Texts that would stop or flood a reader, and values that only look like numbers or names."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from eigensweep.client.spec_file import InputError, parse, parse_toml
from eigensweep.search_spaces.checks.problems import list_problems
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.spec_text import TextError, read_text, write_text

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{inner}'] * 9)}]\n"
    for inner, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "more than 200,000 values when its aliases are written out"),
        ("a: &a [*a]", r"line 1: .*\*a is inside of itself"),
        ("[" * 100_000, "nested more than 100 deep"),
        ("- " * 3_000, "nested more than 100 deep"),
        ('{"a":' * 100_000, "nested more than 100 deep"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested more than 100 deep"),
        ("a: " + "9" * 6_000, "at most 300 digits; got 6000"),
        ('{"a": ' + "9" * 6_000 + "}", "at most 300 digits; got 6000"),
        ("a: 0x" + "f" * 9_000, "at most 300 digits"),
        ("a: !!int x", "line 1: .*'x' is no whole number"),
        ("- {b: 1}\n- {lr: 1, b: {}, lr: 2}", "line 2: .*the key 'lr' stands twice"),
        ('{"a": {"b": 1, "b": 2}}', "the key 'b' stands twice"),
        ("a: !!bool x", "x"),
        ("a: 1\nb: 010", "line 2: .*010 begins with 0: is it 10?"),
        ("a: -007", "-007 begins with 0"),
        ("b: 1\na: !!int {b: 1}", "line 2: "),
        ("a: !!int [1]", "line 1: "),
        ("b: 1\na: 0x_", "line 2: .*'0x_' is no whole number"),
        ("a: !!timestamp x", "tag"),
        ("a: !!python/object/apply:os.getcwd []", "tag"),
    ],
    ids=lambda value: None if len(value) < 40 else value[:20],
)
def test_a_text_that_would_stop_a_reader_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(TextError, match=why):
        read_text(text)
    with pytest.raises(InputError, match=r"^spec.yaml.*neither YAML nor JSON"):
        parse(text, "spec.yaml")


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 6_000])
def test_toml_is_refused_in_words_too(text: str) -> None:
    with pytest.raises(InputError, match=r"^spec.toml: not TOML"):
        parse_toml(text, "spec.toml")


def test_whole_numbers_are_those_of_yaml_1_2() -> None:
    read = read_text("[0, -5, +7, 1_000, 0x1f, 1:30, 12:30:45, 0b11, 0o17, -0]")
    assert read == [0, -5, 7, 1000, 31, "1:30", "12:30:45", 3, "0o17", 0]
    assert read_text(write_text({"at": "1:30", "n": 90, "key": "010"}, 80))["key"] == "010"


def test_aliases_are_read() -> None:
    assert read_text("a: &rates [1e-3, 0.01]\nb: *rates") == {"a": [1e-3, 0.01], "b": [1e-3, 0.01]}
    merged = read_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}")
    assert merged == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}}


def spec(**changes: Any) -> dict[str, Any]:
    return {
        "task": {"name": "copying", "delay": 5},
        "model": {"name": "scornn", "hidden_size": 8, "negative_ones": 2},
        "training": {"steps": 20},
        **changes,
    }


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("optimizer.lr", {"optimizer": {"lr": True}}),
        ("optimizer.lr", {"optimizer": {"lr": "1e-3"}}),
        ("optimizer.lr_orth", {"optimizer": {"lr_orth": "0.1"}}),
        ("optimizer.betas.0", {"optimizer": {"betas": ["0.9", 0.99]}}),
        ("training.steps", {"training": {"steps": "20"}}),
        ("task.delay", {"task": {"name": "copying", "delay": True}}),
        ("model.hidden_size", {"model": {"name": "lstm", "hidden_size": "8"}}),
    ],
)
def test_a_number_is_written_as_a_number(path: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refused:
        ExperimentSpec.model_validate(spec(**changes))
    (problem,) = list_problems(refused.value)
    assert problem["path"] == path
    assert "should be a valid" in problem["message"]


def test_a_whole_number_may_be_written_with_a_point_or_a_power() -> None:
    read = ExperimentSpec.model_validate(spec(training={"steps": 1e3}, optimizer={"lr": 1}))
    assert (read.training.steps, read.optimizer.lr) == (1000, 1.0)


@pytest.mark.parametrize("sign", ["\x00", "\n", "\x1b", "\x85", "\u202e", "\u2066", "\u200b"])
@pytest.mark.parametrize("field", ["name", "project"])
def test_a_name_has_no_signs_that_cannot_be_seen(field: str, sign: str) -> None:
    with pytest.raises(ValidationError, match=f"control characters .*U\\+{ord(sign):04X}"):
        ExperimentSpec.model_validate(spec(**{field: f"a{sign}b"}))
    assert ExperimentSpec.model_validate(spec(**{field: "Größe 語 עברית"}))


@pytest.mark.parametrize("sign", ["\x00", "\x1b", "\x85", "\u202e"])
@pytest.mark.parametrize("field", ["description", "source"])
def test_a_text_of_several_lines_has_none_either(field: str, sign: str) -> None:
    with pytest.raises(ValidationError, match=f"control characters .*U\\+{ord(sign):04X}"):
        ExperimentSpec.model_validate(spec(**{field: f"a{sign}b"}))
    kept = ExperimentSpec.model_validate(spec(**{field: "two\n\tlines"})).model_dump(mode="json")
    stored = ExperimentSpec.from_stored(kept | {field: f"two\n\tlines{sign}"})
    assert getattr(stored, field) == "two\n\tlines"


def test_a_tab_is_called_a_tab():
    with pytest.raises(TextError, match="a tab stands where YAML wants spaces") as refused:
        read_text("training:\n\tsteps: 5\n")
    assert refused.value.line == 2
