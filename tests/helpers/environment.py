"""The environment variables that only the tests read, in one place."""

import os
from collections.abc import Mapping
from pathlib import Path


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")


def blessing() -> bool:
    """TREADLE_BLESS=1: rewrite recorded expectations instead of comparing with them (`make bless`)."""
    return _is_set("TREADLE_BLESS")


def models_are_required() -> bool:
    """TREADLE_REQUIRE_MODELS=1: a missing model file is a failure, not a skip (CI)."""
    return _is_set("TREADLE_REQUIRE_MODELS")


def paper_models_folder() -> Path | None:
    """TREADLE_PAPER_MODELS: a folder of the five models of Hidet's paper, exported to ONNX; None if it is not set."""
    folder = os.environ.get("TREADLE_PAPER_MODELS")
    return Path(folder) if folder else None


def sanitizer_flags() -> tuple[str, ...]:
    """TREADLE_SANITIZER_FLAGS: of compilers whose libraries are instrumented (`make test-sanitized`), for tests that
    choose their flags themselves."""
    return tuple(os.environ.get("TREADLE_SANITIZER_FLAGS", "").split())


def environment_with(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a child, with further variables."""
    return os.environ | settings


def keep_onnx_models_in(folder: str) -> None:
    """Where ONNX's suite writes the inputs of its light models, else the user's home."""
    os.environ["ONNX_MODELS"] = folder
