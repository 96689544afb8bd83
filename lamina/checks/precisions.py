"""Names of precisions in other frameworks, for the advice of errors."""

from __future__ import annotations

from collections.abc import Sequence

_ELSEWHERE = {
    "bf16": "bfloat16",
    **dict.fromkeys(("half", "fp16", "f16"), "float16"),
    **dict.fromkeys(("single", "float", "fp32", "f32"), "float32"),
    **dict.fromkeys(("double", "fp64", "f64"), "float64"),
    **dict.fromkeys(("amp", "autocast", "mixed-precision"), "mixed"),
    **dict.fromkeys(("bf16-mixed", "mixed-bf16"), "mixed-bfloat16"),
    **dict.fromkeys(("16-mixed", "mixed-fp16", "mixed-f16"), "mixed-float16"),
}


def precision_advice(given: str, known: Sequence[str]) -> str:
    """How to write a precision that is written otherwise elsewhere; "" if none is near.

    Args:
        given: the text, such as `"torch.bfloat16"` or `"mixed_bfloat16"`.
        known: Lamina's names.
    """
    from lamina.elsewhere.near import nearest  # only errors need it

    text = given.rpartition(".")[2].lower().replace("_", "-")
    if text in _ELSEWHERE:
        return f"Write dtype={_ELSEWHERE[text]!r}."
    near = nearest(text, known, 0.75)
    return f"Write dtype={near!r}." if near else ""
