"""The types of languages like C."""

from __future__ import annotations

from lamina.codegen.c_text import stored_as
from lamina.codegen.values import Type
from lamina.codegen.words import GroupWords, VectorWords, Words
from lamina.errors import InternalError


class Types:
    """Types as a language writes them.

    Args:
        words: of the language.
        fused: whether the device multiplies and adds in one rounding.
        widens_division: whether divisions and square roots of floats of 32 bits are computed in 64
            bits and then rounded.

    Attributes:
        has_doubles: whether a type of 64 bits was written.
        has_halves: whether float16 was converted, or computed with.
    """

    def __init__(self, words: Words, *, fused: bool, widens_division: bool) -> None:
        self.words = words
        self.fused = fused
        self.widens_division = widens_division
        self.has_doubles = self.has_halves = False

    def type(self, type: Type) -> str:
        """A type as the language writes it."""
        if type.element == "double":
            self.has_doubles = True
        words = self.words
        if type.lanes and type.element == "i1":
            return self._vector(words.signed["i32"], type.lanes)
        return self._vector(words.unsigned[type.element], type.lanes)

    def signed(self, type: Type) -> str:
        """The signed type of integers."""
        return self._vector(self.words.signed[type.element], type.lanes)

    def _vector(self, element: str, lanes: int) -> str:
        return self.vectors(lanes).type.format(element=element, lanes=lanes) if lanes else element

    def vectors(self, lanes: int) -> VectorWords:
        """How vectors of this number of lanes are written."""
        vectors = self.words.vectors
        if vectors is None or lanes not in vectors.lanes:
            known = ", ".join(map(str, vectors.lanes)) if vectors is not None else "none"
            raise InternalError(
                f"{self.words.language} has no vectors of {lanes} lanes",
                facts=(("supported lanes", known),),
                advice="Write scalars, or vectors of supported lanes.",
            )
        return vectors

    @property
    def groups(self) -> GroupWords:
        """How groups of work items are written."""
        if self.words.groups is None:
            raise InternalError(
                f"{self.words.language} has no groups of work items",
                advice="Choose schedules whose work items are independent of each other.",
            )
        return self.words.groups

    def pointer(self, element: str, lanes: int = 0, *, local: bool = False) -> str:
        """The type of an address of elements, or of vectors, followed by a blank or star.

        It is in a buffer or in local memory.
        """
        word = self._vector(self.words.unsigned[stored_as(element)], lanes)
        return (self.groups if local else self.words).address.format(element=word)
