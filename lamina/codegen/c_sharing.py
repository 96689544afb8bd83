"""Functions that differ only in a few numbers are written once, with these as parameters.

Networks repeat layers with other sizes, and drivers take long to compile each function. Each of
the functions stays, but only calls the one that they share.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from lamina.base.records import frozen_dataclass
from lamina.codegen.values import I64
from lamina.codegen.words import Words

# The most parameters that are added: more are slow to pass, and to keep in registers.
_MOST_NUMBERS = 16
# Functions with fewer characters are not shared.
_LEAST_CHARACTERS = 1000


@frozen_dataclass
class FunctionText:
    """A function in a text.

    Attributes:
        qualifiers: the qualifiers before its result.
        result: the type of its result.
        name: the name of the function.
        parameters: the type and the name of each parameter.
        body: the text after its first line; "" while it is being written.
    """

    qualifiers: str
    result: str
    name: str
    parameters: tuple[str, ...]
    body: str = ""

    @property
    def head(self) -> str:
        """Its first line."""
        words = " ".join(filter(None, (self.qualifiers, self.result, self.name)))
        return f"{words}({', '.join(self.parameters)})"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(re.split(r"[ *]", parameter)[-1] for parameter in self.parameters)


@final
class _Group:
    """Functions whose texts are equal except for numbers."""

    def __init__(self, first: _Numbered) -> None:
        self.members = [first]
        # For each number, its values in the functions.
        self._columns = [(number,) for number in first.numbers]

    def fits(self, candidate: _Numbered) -> bool:
        """Whether few enough numbers differ with another function."""
        return len(_differing(self._columns_with(candidate))) <= _MOST_NUMBERS

    def add(self, added: _Numbered) -> None:
        """Adds a function that fits."""
        self._columns = self._columns_with(added)
        self.members.append(added)

    def _columns_with(self, added: _Numbered) -> list[tuple[str, ...]]:
        return [(*seen, number) for seen, number in zip(self._columns, added.numbers, strict=True)]

    def functions(self, words: Words) -> list[FunctionText]:
        """The shared function, and those that call it; a function alone as it is."""
        first = self.members[0]
        if len(self.members) == 1:
            return [first.function]
        differing = _differing(self._columns)
        names = {column: f"given{number}" for number, column in enumerate(differing)}
        numbers = [names.get(column, column[0]) for column in self._columns]
        type = words.unsigned[I64.element]
        pieces = zip(first.texts, (*numbers, ""), strict=True)
        shared = replace(
            first.function,
            name=f"{first.function.name}_with_numbers",
            parameters=(*first.function.parameters, *(f"{type} {name}" for name in names.values())),
            body="".join(piece for pair in pieces for piece in pair),
        )
        functions = [shared]
        for member, numbered in enumerate(self.members):
            function = numbered.function
            arguments = [*function.arguments, *(column[member] for column in differing)]
            call = f"{shared.name}({', '.join(arguments)});"
            returned = "" if function.result == "void" else "return "
            # Compilers may write these in their callers.
            qualifiers = function.qualifiers.removesuffix(words.apart).rstrip()
            body = f" {{\n    {returned}{call}\n}}"
            functions.append(replace(function, qualifiers=qualifiers, body=body))
        return functions


@frozen_dataclass
class _Numbered:
    """A function, the texts before, between and after its numbers, and the numbers."""

    function: FunctionText
    texts: tuple[str, ...]
    numbers: tuple[str, ...]


def with_shared(functions: Sequence[FunctionText], words: Words) -> list[FunctionText]:
    """The functions, with those that they share before the first that calls them."""
    # Only integers are parameters. Divisions by constants are faster, so divisors of scalars stay.
    suffix = words.integer_suffix[I64.element]
    number = re.compile(rf"(?<![\w.])(?<!p[+-])(?<![/%] )(\d+(?:{suffix})?)(?![\w.])")
    groups: dict[object, list[_Group]] = defaultdict(list)
    ordered: list[_Group] = []
    for function in functions:
        pieces = number.split(function.body)
        numbered = _Numbered(function, tuple(pieces[::2]), tuple(pieces[1::2]))
        alike = groups[function.qualifiers, function.result, function.parameters, numbered.texts]
        group = next((group for group in alike if group.fits(numbered)), None)
        if group is not None:
            group.add(numbered)
            continue
        ordered.append(_Group(numbered))
        if len(function.body) >= _LEAST_CHARACTERS:
            alike.append(ordered[-1])
    return [text for group in ordered for text in group.functions(words)]


def _differing(columns: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], None]:
    """The values of numbers that differ between functions, each once, in order."""
    return {column: None for column in columns if len(set(column)) > 1}
