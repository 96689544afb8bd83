"""Model files: safetensors with the network as data, and a checksum over everything.

A checkpoint is a model file with further tensors (the optimizer's state) and notes (the history);
it can be loaded as a model too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from lamina import data
from lamina.base.disk import open_regular
from lamina.base.records import frozen_dataclass
from lamina.base.shapes import (
    PUBLIC_DTYPES,
    Array,
    as_dtype,
    converted,
    float32,
    shape_text,
    static,
    uint32,
)
from lamina.checks.stored import stored
from lamina.errors import DataError, FileFormatError, LaminaError, errors_at
from lamina.files.atomic import write_atomically
from lamina.files.decode import ADVICE, NONSENSE, decode
from lamina.files.encode import encode
from lamina.network import Network
from lamina.step.member_numbers import groups_of
from lamina.step.precision import MIXED, Precision

FORMAT = "lamina-model-1"

_Value = TypeVar("_Value")


@frozen_dataclass
class ModelFile:
    """The contents of a model file.

    Attributes:
        values: parameters and states, by name; of a population with a first axis of members.
        extra: further tensors of a checkpoint, by name.
        notes: further JSON data of a checkpoint.
        coding: the coding of the table on which the model was trained, if any.
        seeds: of a population those of its members, int64 (members,).
        networks: the networks of its members, which differ in the numbers of penalties only.
    """

    network: Network
    precision: Precision
    seed: int
    values: Mapping[str, Array]
    extra: Mapping[str, Array] = field(default_factory=dict[str, Array])
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    coding: data.Coding | None = None
    seeds: Array | None = None
    networks: Sequence[Network] = ()

    def require_members(self, *, several: bool) -> None:
        """Raises FileFormatError unless it holds a population, or unless it holds a model."""
        if (self.seeds is None) is several:
            kinds = ("a model", "lm.load(path)"), ("a population", "lm.Population.load(path)")
            (expected, _), (found, advice) = kinds[::-1] if several else kinds
            raise FileFormatError(
                f"this file holds {found}, not {expected}",
                facts=(("expected", expected), ("found", found)),
                advice=f"Read it by {advice}.",
            )


def write_model(path: str | os.PathLike[str], model: ModelFile) -> None:
    """Writes a model file atomically."""
    from safetensors.numpy import save

    definition, constants = encode(model.network)
    tensors = {f"values/{name}": value for name, value in model.values.items()}
    tensors |= {f"constants/{name}": value for name, value in constants.items()}
    tensors |= {f"extra/{name}": value for name, value in model.extra.items()}
    tensors = {name: np.ascontiguousarray(t).reshape(t.shape) for name, t in tensors.items()}
    metadata = {
        "format": FORMAT,
        "network": json.dumps(definition),
        "dtype": model.precision.name,
        "seed": str(model.seed),
        "notes": json.dumps(dict(model.notes)),
    }
    if model.seeds is not None:
        metadata["seeds"] = json.dumps(model.seeds.tolist())
        definitions = [json.dumps(encode(one)[0]) for one in dict.fromkeys(model.networks)]
        numbers = {network: n for n, network in enumerate(dict.fromkeys(model.networks))}
        if len(numbers) > 1:
            of = [numbers[network] for network in model.networks]
            metadata["networks"] = json.dumps({"definitions": definitions, "of": of})
    if model.coding is not None:
        metadata["coding"] = json.dumps(asdict(model.coding))
    if model.precision.tf32:
        # Files of models without it can be read by earlier versions.
        metadata["precision"] = model.precision.products
    metadata["checksum"] = _checksum(metadata, tensors)
    write_atomically(path, save(tensors, metadata))


def read_model(path: str | os.PathLike[str], layers: Sequence[type] = ()) -> ModelFile:
    """Reads a model file, which may contain these classes of the caller; runs no code from it."""
    with errors_at(os.fspath(path)):
        tensors, metadata = _parse(path)
        _require_model(tensors, metadata)
        try:
            return _assemble(tensors, metadata, layers)
        except FileFormatError as error:
            # What the file holds is the cause; how its reader noticed it tells users nothing.
            raise error from None
        except NONSENSE as error:
            is_ours = isinstance(error, LaminaError)
            cause = str(error) if is_ours else f"{type(error).__name__}: {error}"
            raise _damaged("its network cannot be rebuilt", cause) from error


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The parameters and states in a model file, or the arrays of another safetensors file."""
    with errors_at(os.fspath(path)):
        tensors, metadata = _parse(path)
        if metadata.get("format") == FORMAT:
            _require_model(tensors, metadata)
            tensors = with_prefix(tensors, "values/")
    # The order in a file means nothing.
    return dict(sorted(tensors.items()))


# How a pickle begins: its protocol, and the opcode of a number, a frame, a class or a table.
_PICKLE = re.compile(rb"\x80[\x02-\x05][\x8a\x95c}]")


def _require_no_pickle(data: bytes) -> None:
    """Raises FileFormatError for a file of PyTorch: a zip archive with a pickle, or a pickle."""
    zipped = data.startswith(b"PK") and b"data.pkl" in data
    if zipped or _PICKLE.match(data):
        content = "a zip archive with a pickle" if zipped else "a pickle"
        raise FileFormatError(
            "this is a file of PyTorch, or another pickle",
            facts=(("expected", "a model file, as Model.save writes it"), ("found", content)),
            advice="Pickles are not read, because they may run code. Write the network in Lamina, "
            "and give it the weights: "
            "lm.from_torch(net, torch.load(path, weights_only=True)).",
        )


def _parse(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    import safetensors
    from safetensors import SafetensorError

    try:
        with open_regular(path) as file:
            data = file.read()
    except (DataError, OSError) as error:
        is_ours = isinstance(error, DataError)
        problem, facts = (error.problem, error.facts) if is_ours else (error.strerror or error, ())
        unread = f"the file cannot be read: {problem}"
        cause = None if is_ours else error
        if isinstance(error, FileNotFoundError):
            facts = (("current folder", os.getcwd()),)
        advice = "Check the path; a relative one counts from the current folder."
        raise FileFormatError(unread, facts=facts, advice=advice) from cause
    read: Any = safetensors  # it has no types
    try:
        tensors: dict[str, Array] = {}
        for name, content in read.deserialize(data):
            dtype = _DTYPES[content["dtype"]].numpy
            tensors[name] = np.frombuffer(content["data"], dtype).reshape(content["shape"])
        length = int.from_bytes(data[:8], "little")
        header: Any = json.loads(data[8 : 8 + length])
        metadata: dict[str, str] = header.get("__metadata__") or {}
    except (SafetensorError, *NONSENSE) as error:
        _require_no_pickle(data)
        raise _of_another_kind(Path(path).suffix, data, error) from error
    return tensors, metadata


def _require_model(tensors: Mapping[str, Array], metadata: dict[str, str]) -> None:
    """Raises FileFormatError for another format, or a checksum that does not match."""
    if metadata.get("format") != FORMAT:
        raise FileFormatError(
            "this is not a model file of Lamina",
            facts=(("expected", FORMAT), ("found", str(metadata.get("format")))),
            advice="lm.load reads files that Model.save or a checkpoint of fit has written; "
            "model.load_parameters(path) takes the arrays of other safetensors files.",
        )
    if metadata.pop("checksum", "") != _checksum(metadata, tensors):
        raise _damaged("the file is damaged", "a checksum that does not match its contents")


# The names of dtypes in safetensors files: F32, BF16, U8.
_DTYPES = {dtype.short.upper(): dtype for dtype in (*PUBLIC_DTYPES.values(), uint32)}


def with_prefix(named: Mapping[str, _Value], prefix: str) -> dict[str, _Value]:
    """The values whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in named.items() if k.startswith(prefix)}


def _assemble(
    tensors: Mapping[str, Array], metadata: Mapping[str, str], layers: Sequence[type]
) -> ModelFile:
    network = decode(json.loads(metadata["network"]), with_prefix(tensors, "constants/"), layers)
    name, products = metadata["dtype"], metadata.get("precision", "float32")
    if products not in ("float32", "tf32") or (products == "tf32" and name != "float32"):
        raise ValueError(f"dtype {name}, precision {products}")
    # `"mixed"`, which depends on the device, is no precision of a file.
    half = MIXED.get(name)
    precision = Precision(float32 if half else as_dtype(name), half, products == "tf32")
    dtype = precision.dtype
    seed, notes = int(metadata["seed"]), json.loads(metadata["notes"])
    if not dtype.is_float or not -(2**63) <= seed < 2**63 or not isinstance(notes, dict):
        raise ValueError(f"dtype {dtype.name}, seed {seed}, notes {type(notes).__name__}")
    seeds = _seeds(json.loads(metadata["seeds"])) if "seeds" in metadata else None
    members = () if seeds is None else seeds.shape
    networks: list[Network] = []
    if seeds is not None and "networks" in metadata:
        each = json.loads(metadata["networks"])
        constants = with_prefix(tensors, "constants/")
        known = [decode(json.loads(text), constants, layers) for text in each["definitions"]]
        networks = [known[number] for number in each["of"]]
        if len(networks) != len(seeds) or min(each["of"]) < 0:
            raise ValueError(f"{len(networks)} networks of {len(seeds)} members")
        if len(groups_of(networks, dtype)) > 1:
            raise ValueError("networks of different graphs")
    values = with_prefix(tensors, "values/")
    # Traces the network in training mode and in inference mode, so that errors are raised here.
    record = network.variables(dtype)
    variables = {**record.parameters, **record.states}
    for name, variable in variables.items():
        value = values.get(name)
        shape, expected = (*members, *static(variable.tensor.shape)), variable.tensor.dtype
        if value is not None and not expected.is_float and value.dtype == dtype.numpy:
            # Earlier files have counters as floats.
            value = values[name] = converted(value, expected.numpy)
        if value is None or value.shape != shape or value.dtype != expected.numpy:
            array_type = "nothing" if value is None else f"{value.dtype}{value.shape}"
            raise FileFormatError(
                f"the tensor {name!r} does not fit the network",
                facts=(("expected", shape_text(shape, expected)), ("found", array_type)),
                advice=ADVICE,
            )
    values = {name: values[name] for name in variables}
    coding = None
    if "coding" in metadata:
        coding = stored(data.Coding, json.loads(metadata["coding"]), "coding")
    extra = with_prefix(tensors, "extra/")
    given = network, precision, seed, values, extra, cast(Any, notes), coding, seeds, networks
    return ModelFile(*given)


def _seeds(each: Any) -> Array:
    """The seeds of the members of a population."""
    seeds = cast(list[Any], each) if isinstance(each, list) else []
    if not seeds or not all(type(s) is int and -(2**63) <= s < 2**63 for s in seeds):
        raise ValueError(f"seeds {each}")
    return np.array(seeds, np.int64)


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Array]) -> str:
    """SHA-256 of all metadata, and of names, dtypes, shapes and bytes of all tensors."""
    digest = hashlib.sha256()
    for name, text in sorted(metadata.items()):
        digest.update(json.dumps([name, text]).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.dtype.str, list(tensor.shape)]).encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()


def _damaged(problem: str, content: str) -> FileFormatError:
    expected = "a whole model file, as Model.save writes it"
    facts = (("expected", expected), ("found", content))
    return FileFormatError(problem, facts=facts, advice=ADVICE)


def _of_another_kind(suffix: str, data: bytes, cause: Exception) -> FileFormatError:
    from lamina.data.load import SUFFIXES  # only errors need it

    content = f"{len(data):,} bytes that are not a safetensors file: {cause}"
    error = _damaged("the file is damaged or of another kind", content)
    if data[8:9] != b"{":
        error.advice = "Give a file that model.save or lamina train has written."
    if suffix.lower() in SUFFIXES:
        error.advice = "This is the name of a data file: lm.data.load(path) reads those, and "
        error.advice += "model.load_parameters takes dict(numpy.load(path))."
    return error
