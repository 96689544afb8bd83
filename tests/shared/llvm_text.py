"""LLVM's text without the names of functions, for comparisons."""

import re


def functions(text: str) -> set[str]:
    """The bodies of the functions of a module, without names."""
    bodies = re.findall(r"^define .*?^}", text, re.MULTILINE | re.DOTALL)
    return {re.sub(r"@[\w.]+", "@", body) for body in bodies}
