"""Every error Lamina raises on purpose: what was expected, what was found, where, what to do.

All derive from `LaminaError`. The message has one form:

    in net/4:Add (resnet.py:14): the two branches differ in shape
      left    f32[batch, 32, 16, 16]
      right   f32[batch, 32, 32, 32]
      Axes 2 and 3 differ, 16 against 32: give the shortcut stride=2 as well.
"""

from __future__ import annotations


class LaminaError(Exception):
    """The base of all errors raised by Lamina.

    Args:
        problem: one sentence, lower case, without a full stop: what is wrong.
        facts: rows of (name, value) that show what was expected and found.
        advice: what to do about it, a full sentence.
        where: the layer path and source line, the file, or the argument; may be added later
            with `at`, by whoever knows it.
    """

    def __init__(
        self,
        problem: str,
        *,
        facts: tuple[tuple[str, str], ...] = (),
        advice: str = "",
        where: str = "",
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.facts = facts
        self.advice = advice
        self.where = where

    def at(self, where: str) -> LaminaError:
        """Names the place, unless a place nearer to the fault is already named; returns self."""
        if not self.where:
            self.where = where
        return self

    def __str__(self) -> str:
        lines = [f"in {self.where}: {self.problem}" if self.where else self.problem]
        width = max((len(name) for name, _ in self.facts), default=0) + 2
        lines += [f"  {name:<{width}}{value}" for name, value in self.facts]
        if self.advice:
            lines.append(f"  {self.advice}")
        return "\n".join(lines)


class ShapeError(LaminaError):
    """Shapes that do not fit together."""


class DTypeError(LaminaError):
    """Element types that do not fit, or that would be converted with loss."""


class DefinitionError(LaminaError):
    """A layer, loss, optimizer or network that cannot mean anything: a bad hyper-parameter."""


class GradientError(LaminaError):
    """A derivative that does not exist or was asked of the wrong thing."""


class DataError(LaminaError):
    """Data that cannot be used: empty, of uneven length, labels out of range."""


class UnknownNameError(LaminaError, KeyError):
    """A name under which there is nothing."""


class FileFormatError(LaminaError):
    """A file that is cut short, damaged, or of another kind than expected."""


class EngineError(LaminaError):
    """An unknown engine, or a device that is missing or too small."""


class LargestBlockError(EngineError):
    """A buffer that is larger than what a device allocates at once."""


class MissingExtraError(LaminaError):
    """An optional package that is needed for this and not installed."""


class ReleasedError(LaminaError):
    """Use of a training whose memory was already released."""


class NonFiniteError(LaminaError):
    """A loss that became NaN or infinite during training."""


class InternalError(LaminaError):
    """A broken invariant inside Lamina: always a defect, never the user's fault."""


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error for an optional package that is not installed."""
    return MissingExtraError(
        f"{purpose} needs the package {package}, which is not installed",
        advice=f'Install it with: pip install "lamina[{extra}]"',
    )
