"""The core dependencies at the lowest versions that pyproject.toml accepts: `make test-lowest`.

`python tests/lowest_versions.py` makes an environment of its own, installs them and the package there, and runs itself
in it with `--here`: every module is imported, and a model is compiled, saved, loaded and compared with NumPy. Warnings
are errors. The exit status is 0 if all of that works.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
EXTRAS = ("cuda", "distributed", "pycuda", "sklearn", "torch")
"""What modules of extras import."""


def lowest(requirements: Sequence[str]) -> list[str]:
    """Each requirement with its lower bound alone: `numpy>=1.26` becomes `numpy==1.26`."""
    pinned: list[str] = []
    for text in requirements:
        found = re.fullmatch(r"([\w.-]+)\s*(?:>=|==)\s*([\w.]+)", text)
        if found is None:
            raise ValueError(f"{text!r} has no lower bound; accepted: NAME>=VERSION or NAME==VERSION")
        pinned.append(f"{found[1]}=={found[2]}")
    return pinned


def install_and_check() -> int:
    """The exit status of the check in a new environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    with TemporaryDirectory(prefix="treadle-lowest-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = f"{folder}/bin/python"
        pins = lowest(project["project"]["dependencies"])
        print("installing", *pins, flush=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "--only-binary", ":all:", *pins], check=True)
        subprocess.run([*pip, "--no-deps", str(ROOT)], check=True)
        check = ["env", f"TREADLE_CACHE_DIR={folder}/cache", python, "-I", __file__, "--here"]
        return subprocess.run(check, cwd=folder, check=False).returncode


def check_here() -> None:
    """Raises what does not work in this environment."""
    import_all()
    with TemporaryDirectory(prefix="treadle-lowest-") as folder:
        compile_and_run(Path(folder))
    print("all modules are imported, and a model agrees with NumPy")


def import_all() -> None:
    """Imports every module but those of extras that are not installed."""
    package = importlib.import_module("treadle")
    for module in pkgutil.walk_packages(package.__path__, "treadle."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in EXTRAS:
                raise


def compile_and_run(folder: Path) -> None:
    """A product, a sum of small integers of two bits, and a cast, as compiled C and from a folder."""
    np, onnx, treadle = (importlib.import_module(name) for name in ("numpy", "onnx", "treadle"))
    helper, types = onnx.helper, onnx.TensorProto
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    w = np.linspace(-2, 2, 40, dtype=np.float32).reshape(8, 5)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Cast", ["few"], ["wide"], to=types.FLOAT),
        helper.make_node("Add", ["product", "wide"], ["y"]),
    ]
    few = helper.make_tensor("few", types.INT2, [5], [-2, -1, 0, 1, 1])
    graph = helper.make_graph(
        nodes, "lowest",
        [helper.make_tensor_value_info("x", types.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", types.FLOAT, (3, 5))],
        [onnx.numpy_helper.from_array(w, "w"), few],
    )  # fmt: skip
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)]).SerializeToString())
    model = treadle.compile(path)
    model.save(folder / "saved")
    for each in (model, treadle.load(folder / "saved")):
        np.testing.assert_allclose(each(x)[0], x @ w + [-2, -1, 0, 1, 1], rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:
        warnings.simplefilter("error")
        check_here()
    else:
        sys.exit(install_and_check())
