"""A compiled model as a custom operator of ONNX Runtime: an ONNX model of one node, and the library that runs it."""

from __future__ import annotations

import shutil
import sys
from math import prod
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from treadle.artifact.artifact import Artifact
from treadle.artifact.manifest import Manifest, Tensor, element_type
from treadle.backends.c.compiler import Unit, compile_objects, find_toolchain, link
from treadle.backends.c.static_library import (
    check_library,
    compile_parts,
    entry_target,
    given_tensors,
    made_tensors,
    quoted,
    shown_dimensions,
)
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.shapes.dynamic import ExtentExpression
from treadle.support.progress import Progress, no_progress
from treadle.support.version import __version__
from treadle.target import Target

DOMAIN = "treadle."
"""What the domain of an operator begins with; its name follows: a session takes each domain from one library."""
_WHERE = "a custom operator of ONNX Runtime"
_SOURCES = Path(__file__).parent / "provider"
_SOURCE = "custom_op.c"
_IR_VERSION, _OPSET = 9, 17
"""What the oldest ONNX Runtime that takes the library reads, and has types of eight bits."""
_IN_ONE_BYTE = frozenset(
    (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ)
)
_LAST_PLAIN = TensorProto.BFLOAT16
"""Types up to this one have the elements that a C library takes; of later ones, `_IN_ONE_BYTE` do."""


def operator_files(name: str) -> tuple[str, ...]:
    """The files of an operator; the weights are there if the model has constants."""
    return f"{name}.onnx", f"lib{name}.so", f"{name}.weights"


def check_operator(target: Target, name: str) -> None:
    """TreadleError for a target, a system or a name that cannot be an operator's."""
    check_library(target, name)
    if sys.platform != "linux":
        raise TreadleError(f"no custom operator on {sys.platform}", _WHERE, "Linux")
    if find_toolchain(load_environment(), target).is_wasm:
        raise TreadleError(f"target {target.name}", _WHERE, "a cpu target of which ONNX Runtime opens libraries")


def write_operator(
    artifact: Artifact, target: Target, name: str, folder: Path, progress: Progress = no_progress
) -> None:
    """Writes the ONNX model, the library and the weights of an artifact that was compiled for `target` into a folder.

    TreadleError for a model that keeps states or whose shapes depend on data, for elements that ONNX Runtime packs, for
    an output that has the name of another tensor, and what `write_library` raises.
    """
    manifest = artifact.manifest
    model, library, weights = (folder / file for file in operator_files(name))
    _check(manifest)
    shown = shown_dimensions(manifest, _WHERE)
    model.write_bytes(operator_model(manifest, name).SerializeToString())
    parts = compile_parts(artifact, target, name, weights, progress)
    text = _operator_text(manifest, name, shown, weights.name if parts.weights_bytes else "")
    headers = {file: (_SOURCES / file).read_text() for file in ("ort_api.h", "model_call.h")}
    operator = compile_objects([Unit(_SOURCE, text)], headers=headers, target=entry_target(manifest))
    progress("linking the operator", 0.9)
    shutil.copyfile(link([*parts.objects, *operator], target=target), library)


def operator_model(manifest: Manifest, name: str) -> ModelProto:
    """A model of one node, with the inputs and outputs of the compiled one. Extents of ranges have their names, those
    that are computed of them their expressions."""
    inputs, outputs = given_tensors(manifest), made_tensors(manifest)
    domain = f"{DOMAIN}{name}"
    node = helper.make_node(name, [t.name for t in inputs], [t.name for t in outputs], name, domain=domain)
    graph = helper.make_graph([node], name, [_value(t) for t in inputs], [_value(t) for t in outputs])
    model = helper.make_model(
        graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(domain, 1)],
        producer_name="treadle", producer_version=__version__,
    )  # fmt: skip
    helper.set_model_props(model, dict(manifest.metadata))
    return model


def _value(tensor: Tensor) -> ValueInfoProto:
    extents = [_extent(text) for text in tensor.extents] if tensor.extents else tensor.shape
    return helper.make_tensor_value_info(tensor.name, _element(tensor), extents)


def _extent(text: str) -> int | str:
    """An extent, whose factors the manifest has with commas between them; a number if it is the same in every call."""
    factors = [factor.strip() for factor in text.split(",")]
    try:
        return prod(ExtentExpression(factor, ()).value({}) for factor in factors)
    except ValueError:
        return factors[0] if len(factors) == 1 else " * ".join(f"({factor})" for factor in factors)


def _element(tensor: Tensor) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(element_type(tensor.dtype)))


def _check(manifest: Manifest) -> None:
    inputs, outputs = given_tensors(manifest), made_tensors(manifest)
    if manifest.states:
        kept = ", ".join(f"'{manifest.inputs[state.argument].name}'" for state in manifest.states)
        raise TreadleError(f"the model keeps {kept} between calls", _WHERE, "a model without --states")
    for tensor in (*inputs, *outputs):
        element = _element(tensor)
        if element > _LAST_PLAIN and element not in _IN_ONE_BYTE:
            accepted = "types whose elements take whole bytes"
            raise TreadleError(f"'{tensor.name}' has elements of {tensor.dtype}", _WHERE, accepted)
    names = [tensor.name for tensor in inputs]
    for tensor in outputs:
        if tensor.name in names:
            accepted = "names of their own, by an Identity before such an output"
            raise TreadleError(f"output '{tensor.name}' has the name of another tensor", _WHERE, accepted)
        names.append(tensor.name)


def _operator_text(manifest: Manifest, name: str, shown: str, weights: str) -> str:
    inputs, outputs = given_tensors(manifest), made_tensors(manifest)
    definitions = {
        "MODEL": name,
        "NAME": quoted(name),
        "DOMAIN": quoted(f"{DOMAIN}{name}"),
        "INPUTS": str(len(inputs)),
        "OUTPUTS": str(len(outputs)),
        "DIMENSIONS": str(len(manifest.symbols)),
        "SHOWN": shown,
        "WEIGHTS": quoted(weights),
    }
    lines = [f"#define {word} {text}" for word, text in definitions.items()]
    return "\n".join([*lines, (_SOURCES / _SOURCE).read_text()])
