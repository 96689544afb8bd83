"""Calls of CUDA's driver, of NVRTC and of cuBLASLt: a failure becomes an exception of ours.

`cuda-bindings` has a function for each function of CUDA, which returns the status and the results.
Those of cuBLASLt are called by ctypes. All of Lamina's calls pass through a `Calls` or
`LibraryCalls`, so tests can give them functions of a device of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, final

from lamina.base.records import frozen_dataclass
from lamina.engines.cuda.requirements import (
    cublaslt_library,
    missing_packages,
    no_device,
    no_library,
    no_start,
    packages,
    too_old,
)


class CudaError(Exception):
    """A function of CUDA has failed.

    Attributes:
        function: the name of the function.
        status: the name of its status, `"CUDA_ERROR_OUT_OF_MEMORY"`.
    """

    def __init__(self, function: str, status: str, text: str) -> None:
        super().__init__(f"{status} in {function}: {text}" if text else f"{status} in {function}")
        self.function, self.status = function, status


@final
class Calls:
    """The functions of a module of `cuda-bindings`, as attributes. They return the results alone.

    `explain` returns the description of a status.
    """

    def __init__(self, module: Any, explain: Callable[[Any], str]) -> None:
        self.module = module
        self._explain = explain

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.module, name)

        def call(*arguments: Any) -> Any:
            status, *results = function(*arguments)
            if int(status):
                raise CudaError(name, status.name, self._explain(status))
            return results[0] if len(results) == 1 else tuple(results)

        # Later calls find it without `__getattr__`.
        setattr(self, name, call)
        return call


@final
class LibraryCalls:
    """The functions of cuBLASLt, as attributes that return nothing, and its version.

    The library is loaded when the first of them is called.
    """

    def __init__(self, load: Callable[[], Any]) -> None:
        self._library = cache(load)

    def version(self) -> int:
        """The version of the library, such as 130201."""
        return int(self._library().cublasLtGetVersion())

    def __getattr__(self, name: str) -> Callable[..., None]:
        library = self._library()
        function = getattr(library, name)

        def call(*arguments: int) -> None:
            status = function(*arguments)
            if status:
                text = library.cublasLtGetStatusName(status)
                raise CudaError(name, text.decode(), "")

        setattr(self, name, call)
        return call


@frozen_dataclass
class Cuda:
    """What the engine calls: the driver, the compiler NVRTC, and cuBLASLt.

    `missing` returns the packages that cannot be loaded.
    """

    driver: Calls
    nvrtc: Calls
    cublaslt: LibraryCalls
    missing: Callable[[], list[str]]


def made_of(
    driver: Any, nvrtc: Any, cublaslt: Callable[[], Any], missing: Callable[[], list[str]] = list
) -> Cuda:
    """The calls of modules like `cuda.bindings.driver` and `cuda.bindings.nvrtc`, and of cuBLASLt.

    `cublaslt` returns an object with the functions of that library. `missing` returns the packages
    that cannot be loaded.
    """

    def explain(error_string: Callable[[Any], tuple[Any, bytes | None]], status: Any) -> str:
        failed, text = error_string(status)
        return "" if int(failed) or text is None else text.decode()

    of_driver = Calls(driver, partial(explain, driver.cuGetErrorString))
    of_nvrtc = Calls(nvrtc, partial(explain, nvrtc.nvrtcGetErrorString))
    return Cuda(of_driver, of_nvrtc, LibraryCalls(cublaslt), missing)


@cache
def cuda() -> Cuda:
    """The driver and the compiler of this machine; EngineError if one, or a package, is missing."""
    api = made_of(*packages(), cublaslt_library, missing_packages)
    try:
        api.driver.cuInit(0)
    except CudaError as error:
        if error.status == "CUDA_ERROR_NO_DEVICE":
            raise no_device(str(error)) from error
        raise no_start(str(error), error.status) from error
    # The package raises different exceptions if the driver's library is missing.
    except Exception as error:
        if "cuGetProcAddress" in str(error):
            lacking = "one that cannot tell which functions it has (cuGetProcAddress_v2)"
            raise too_old(lacking) from error
        raise no_library(error, api.missing()) from None
    return api
