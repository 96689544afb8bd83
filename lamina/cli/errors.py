"""Errors of commands: one message on standard error, and no traceback."""

from __future__ import annotations

import errno
import linecache
import traceback
import warnings
from typing import Any

import click

from lamina.errors import LaminaError, LaminaWarning

# The key of the user's own file in a click context's `meta`.
USER_FILE = "lamina.user_file"


class Commands(click.Group):
    """A group of commands that prints errors as messages, unless `--debug` is given.

    Exit status: 0, 1 for an error, 2 for wrong usage (from click).
    """

    def invoke(self, ctx: click.Context) -> Any:

        def show(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
            # Lamina's own warnings are shown without the line in the package.
            if not issubclass(category, LaminaWarning):
                text = warnings.formatwarning(message, category, filename, lineno)
                click.echo(text, err=True, nl=False)
                return
            user_file = ctx.meta.get(USER_FILE, "")
            where = f" ({filename}:{lineno})" if user_file and filename == user_file else ""
            click.echo(f"warning{where}: {message}", err=True)

        try:
            with warnings.catch_warnings():
                warnings.showwarning = show
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            message = message_of(error, ctx.meta.get(USER_FILE, ""))
            if ctx.params.get("debug") or not message:
                raise
            click.echo(message, err=True)
            ctx.exit(1)


def message_of(error: Exception, user_file: str = "") -> str:
    """The message for the user; "" for a defect of Lamina, which needs its traceback."""
    name = type(error).__name__
    if isinstance(error, LaminaError):
        text = f"{name} {error}" if error.where else f"{name}: {error}"
        return "\n".join((text, *getattr(error, "__notes__", ())))
    if isinstance(error, SyntaxError) and error.filename is None and user_file:
        return f"{name} in {user_file}: this is not a Python file: {error.msg}"
    if isinstance(error, SyntaxError) and error.filename == user_file:
        return _quoted(f"{name} in {user_file}:{error.lineno}: {error.msg}", error.text)
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return ""  # the reader of the pipe has ended: click handles this
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if user_file and frame.filename == user_file
    ]
    if lines:
        line = lines[-1] or 0
        where = f"{name} in {user_file}:{line}"
        linecache.checkcache(user_file)
        source = linecache.getline(user_file, line)
        return _quoted(f"{where}: {error}" if str(error) else where, source)
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return f"{name}: {error.filename}: {reason}" if error.filename else f"{name}: {reason}"
    return ""


def _quoted(message: str, source: str | None) -> str:
    """The message, the source line, and a hint at `--debug`."""
    quote = f"\n    {source.strip()}" if source and source.strip() else ""
    return f"{message}{quote}\n  lamina --debug ... shows the traceback."
