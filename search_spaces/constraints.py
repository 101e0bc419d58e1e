"""Rules between parameters that a person gives, such as `optimizer.lr_orth <= optimizer.lr`.

Python's own parser reads a rule, and nothing is taken but comparisons, arithmetic, `and`, `or` and
`not`. No library for expressions knows paths such as `optimizer.betas.1`.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from eigensweep.search_spaces.config_fields import read_field

WORD = re.compile(r"""'[^']*'|"[^"]*"|(?<![\w.])[A-Za-z_]\w*(\.\w+)*""")
"""A text in quotes, which stays as it is, or a path or another word."""
KEPT = {"and", "or", "not"}
CONSTANTS = {"true": "True", "false": "False"}

COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class _AbsentError(Exception):
    """A field that the rule reads is not there, or empty."""


class Constraint:
    """A rule between fields of a configuration.

    >>> rule = Constraint("optimizer.lr_orth <= 0.1 * optimizer.lr")
    >>> rule.paths
    ('optimizer.lr_orth', 'optimizer.lr')
    >>> rule.holds({"optimizer": {"lr_orth": 0.01, "lr": 0.01}})
    False
    """

    def __init__(self, text: str) -> None:
        """Read the rule.

        Raises:
            ValueError: if it is none.
        """
        self.text = text
        paths: dict[str, str] = {}

        def replace(found: re.Match[str]) -> str:
            word = found[0]
            if word[0] in "'\"" or word in KEPT:
                return word
            return CONSTANTS.get(word) or paths.setdefault(word, f"path_{len(paths)}")

        try:
            tree = ast.parse(WORD.sub(replace, text).strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise ValueError(EXPECTED) from None
        self._tree, self._paths = tree, {name: path for path, name in paths.items()}
        if not paths or not _is_rule(tree):
            raise ValueError(EXPECTED)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths that the rule reads."""
        return tuple(self._paths.values())

    def holds(self, config: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tell whether a configuration keeps the rule; it has the fields of each section.

        Where a field is empty, or the configuration lacks it, the rule asks nothing.

        Raises:
            ValueError: if the rule makes no sense there: it compares a number with a text, say.
        """
        try:
            return bool(self._evaluate(self._tree, config))
        except _AbsentError:
            return True
        except (TypeError, ArithmeticError) as error:
            raise ValueError(f"'{self.text}' cannot be computed: {error}") from None

    def _evaluate(self, node: ast.expr, config: Mapping[str, Mapping[str, Any]]) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                section, _, field = self._paths[node.id].partition(".")
                try:
                    value = read_field(config[section], field)
                except LookupError:
                    raise _AbsentError from None
                if value is None:
                    raise _AbsentError
                return value
            case ast.BoolOp(op=ast.And()):
                return all([self._evaluate(each, config) for each in node.values])
            case ast.BoolOp():
                return any([self._evaluate(each, config) for each in node.values])
            case ast.UnaryOp(op=ast.Not()):
                return not self._evaluate(node.operand, config)
            case ast.UnaryOp():
                return -_number(self._evaluate(node.operand, config))
            case ast.BinOp():
                left = _number(self._evaluate(node.left, config))
                right = _number(self._evaluate(node.right, config))
                return ARITHMETIC[type(node.op)](left, right)
            case ast.Compare():
                values = [self._evaluate(each, config) for each in (node.left, *node.comparators)]
                pairs = zip(node.ops, values, values[1:], strict=False)
                return all(COMPARISONS[type(op)](a, b) for op, a, b in pairs)
        raise AssertionError(node)


EXPECTED = (
    "a rule compares fields, numbers and texts, as in optimizer.lr_orth <= 0.1 * optimizer.lr, or "
    "optimizer.name != 'sgd' or optimizer.lr > 0.01"
)


def _is_rule(node: ast.expr) -> bool:
    """Return whether a tree is a comparison, or comparisons joined by `and`, `or` and `not`."""
    match node:
        case ast.BoolOp():
            return all(map(_is_rule, node.values))
        case ast.UnaryOp(op=ast.Not()):
            return _is_rule(node.operand)
        case ast.Compare():
            known = all(type(op) in COMPARISONS for op in node.ops)
            return known and all(map(_is_term, (node.left, *node.comparators)))
    return False


def _is_term(node: ast.expr) -> bool:
    match node:
        case ast.Name():
            return True
        case ast.Constant():
            value = node.value
            if isinstance(value, int):
                return abs(value) < 2**63
            return isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))
        case ast.UnaryOp(op=ast.USub()):
            return _is_term(node.operand)
        case ast.BinOp():
            return type(node.op) in ARITHMETIC and _is_term(node.left) and _is_term(node.right)
    return False


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return value
