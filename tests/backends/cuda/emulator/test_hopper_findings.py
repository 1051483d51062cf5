"""Every kind of finding on functions of treadle_hopper.h, and none on the correct kernel beside it."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.backends.cuda.conformance.hopper_case import aligned
from tests.backends.cuda.emulator.hopper_faults import CASES, Case
from treadle.backends.cuda.emulator import Emulator, Report
from treadle.errors import TreadleError
from treadle.target.tensor_map import PixelBox, TensorMap


def source(body: str, name: str, cluster: bool = False) -> str:
    blocks = "__cluster_dims__(2, 1, 1) " if cluster else ""
    return (
        '#include "treadle_hopper.h"\n'
        f'extern "C" __global__ void {blocks}__launch_bounds__(256, 1) {name}(\n'
        "    float *b, int *count, const __grid_constant__ treadle_tensor_map a_map,\n"
        "    const __grid_constant__ treadle_tensor_map b_map, const __grid_constant__ treadle_tensor_map p_map,\n"
        "    const __grid_constant__ treadle_tensor_map p_box) {\n"
        "  __shared__ alignas(1024) float s[64][32];\n"
        "  __shared__ treadle_mbarrier full[2];\n"
        "  const unsigned s_at = treadle_uniform(treadle_shared_address(s));\n"
        "  const unsigned full_at = treadle_uniform(treadle_shared_address(full));\n"
        "  const unsigned long long tile = treadle_matrix(s_at, 16, 1024, 1);\n"
        "  float *all = b;\n"
        "  b += blockIdx.x * 256;\n"
        f"  const int t = threadIdx.x;\n  {body}\n}}\n"
    )


def twin(case: Case) -> str:
    assert case.edit[0] in case.body
    return case.body.replace(*case.edit)


KERNELS = {name: f"faulty_{number}" for number, name in enumerate(CASES)}
TWINS = {name: f"twin_{number}" for number, name in enumerate(CASES)}
TEXT = "".join(
    source(case.body, KERNELS[name], case.cluster) + source(twin(case), TWINS[name], case.cluster)
    for name, case in CASES.items()
)


def line_of(kernel: str, mark: str) -> int | None:
    before, _, text = TEXT.partition(f" {kernel}(")
    first = before.count("\n") + 1
    own = text.split("\n}\n", 1)[0].splitlines()
    return next((number for number, line in enumerate(own, first) if line.endswith(f"// {mark}")), None)


def launch(emulator: Emulator, kernel: str) -> Report:
    a = aligned(np.arange(4096, dtype=np.float32).reshape(64, 64))
    b = aligned(np.zeros((128, 32), np.float32))
    out = aligned(np.zeros(512, np.float32))
    maps = (
        (TensorMap("f32", (64, 64), (256,), (64, 32), 128), a),
        (TensorMap("f32", (128, 32), (128,), (64, 32), 128), b),
        (TensorMap("f32", (2, 6, 8, 32), (6144, 1024, 128), (64, 32), 128, PixelBox((-1, -1), (-1, -1), (2, 2))), a),
        (TensorMap("f32", (2, 6, 8, 32), (6144, 1024, 128), (1, 8, 8, 32), 128), a),
    )
    return emulator.launch(kernel, (2, 1, 1), (256, 1, 1), [out, np.zeros(1, np.int32), *maps])


@pytest.fixture(scope="module")
def emulator(emulate: Callable[..., Emulator]) -> Emulator:
    return emulate(TEXT)


@pytest.mark.parametrize("name", list(CASES))
def test_a_faulty_kernel_is_found(name: str, emulator: Emulator) -> None:
    case, kernel = CASES[name], KERNELS[name]
    report = launch(emulator, kernel)
    found = [each for each in report.findings if each.kind == case.kind and case.says in each.message]
    assert found, str(report)
    assert line_of(kernel, "HERE") in {each.line for each in found}, str(report)
    if (other := line_of(kernel, "OTHER")) is not None:
        assert other in {each.other_line for each in found}, str(report)
    if case.buffer is not None:
        assert case.buffer in (found[0].buffer, f"{found[0].buffer}[{found[0].element}]")


@pytest.mark.parametrize("kind", ("race", "bounds", "init", "divergence"))
def test_a_finding_is_of_the_check_that_its_kind_names(kind: str, emulate: Callable[..., Emulator]) -> None:
    emulator = emulate(TEXT, ({"race": "races"}.get(kind, kind),))
    seen = 0
    for name, case in CASES.items():
        if case.kind != kind:
            continue
        try:
            report = launch(emulator, KERNELS[name])
        except TreadleError:  # what the fault leads to never ends, which is an error where nothing checks for it
            continue
        assert any(each.kind == kind and case.says in each.message for each in report.findings), f"{name}: {report}"
        seen += 1
    assert seen


@pytest.mark.parametrize("name", list(CASES))
def test_the_correct_twin_stays_silent(name: str, emulator: Emulator) -> None:
    report = launch(emulator, TWINS[name])
    assert not report.findings, str(report)


def test_a_wait_without_end_is_an_error_without_checks(emulate: Callable[..., Emulator]) -> None:
    kernel = KERNELS["bytes that never come"]
    with pytest.raises(TreadleError, match=rf"48 bytes missing; .* at line {line_of(kernel, 'HERE')}"):
        launch(emulate(TEXT, ()), kernel)


def test_a_grid_is_made_of_clusters(emulate: Callable[..., Emulator]) -> None:
    emulator = emulate('extern "C" __global__ void __cluster_dims__(2) k() {}')
    emulator.launch("k", (4, 3, 1), (32, 1, 1), [])
    with pytest.raises(TreadleError, match=r"grid \(3, 2, 1\); accepted: clusters of \(2, 1, 1\) blocks divide it"):
        emulator.launch("k", (3, 2, 1), (32, 1, 1), [])


def test_a_cluster_has_at_most_8_blocks(emulate: Callable[..., Emulator]) -> None:
    with pytest.raises(
        TreadleError, match=r"__cluster_dims__\(4, 4\); accepted: up to three numbers of blocks, 8 in all"
    ):
        emulate('extern "C" __global__ void __cluster_dims__(4, 4) k() {}')


def test_a_map_goes_with_its_array(emulator: Emulator) -> None:
    out, small = np.zeros(256, np.float32), aligned(np.zeros((4, 32), np.float32))
    map = TensorMap("f32", (64, 32), (128,), (64, 32), 128)
    with pytest.raises(TreadleError, match="argument 'a_map' of kernel 'twin_0': got ndarray"):
        emulator.launch("twin_0", (1, 1, 1), (256, 1, 1), [out, np.zeros(1, np.int32), *[small] * 4])
    with pytest.raises(TreadleError, match="got an array of 128 x float32; accepted: at least 8192 bytes"):
        emulator.launch("twin_0", (1, 1, 1), (256, 1, 1), [out, np.zeros(1, np.int32), *[(map, small)] * 4])
