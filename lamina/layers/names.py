"""Names that users give to layers, inputs and networks."""

from __future__ import annotations

import re
from typing import Annotated, Any

from lamina.checks.kinds import Kind, Misfit, Operands, OrNone

# Words that are joined by dots. The first does not begin with a digit: numbers are the names of
# layers without a name.
_PATTERN = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*", re.ASCII)


class Name(Kind):
    """The name of a layer, an input or a network."""

    def read(self, value: Any, operands: Operands = ()) -> str:
        if isinstance(value, str) and _PATTERN.fullmatch(value):
            return value
        raise Misfit(
            "a name of letters, digits, '_' and '-'",
            "'head' or 'block1.conv'",
            advice="It begins with a letter or '_'; words may be joined by dots.",
        )


OwnName = Annotated[str | None, OrNone(Name())]
