"""Targets: names, limits, and which one a device gets."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.compiler.pipeline import STAGES, passes_of
from treadle.errors import TreadleError
from treadle.passes.registry import parse_passes
from treadle.target import KIB, TARGETS, Target


@pytest.mark.parametrize(
    "name", ["cpu", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"]
)
def test_parse_returns_the_target_of_that_name(name: str) -> None:
    assert Target.parse(name).name == name


def test_unknown_name_lists_what_is_accepted() -> None:
    with pytest.raises(TreadleError) as caught:
        Target.parse("sm_42")
    assert "sm_42" in caught.value.message
    assert caught.value.accepted == ", ".join(TARGETS)


def test_cuda_is_left_to_the_caller() -> None:
    with pytest.raises(TreadleError, match="must be resolved first"):
        Target.parse("cuda")


NUMBERS = {each.name: each for each in fields(Target) if each.type in ("int", "float") and each.name != "warp_size"}
OF_CPUS = ("vector_registers", "l1_bytes", "cores")


@st.composite
def changed(draw: st.DrawFn) -> Target:
    """A target of the table with other values in some fields."""
    values: dict[str, object] = {}
    base = draw(st.sampled_from(list(TARGETS.values())))
    names = [name for name in sorted(NUMBERS) if not (base.is_cuda and name in OF_CPUS)]
    for name in draw(st.sets(st.sampled_from(names), max_size=5)):
        if name == "vector_bytes":
            values[name] = 2 ** draw(st.integers(0, 8) if base.is_cuda else st.integers(4, 6))
        elif NUMBERS[name].type == "float":
            values[name] = draw(st.floats(1, allow_infinity=False) | st.integers(1, 10**15))
        else:
            values[name] = draw(st.integers(1, 2**40))
    if draw(st.booleans()):
        values["device"] = draw(st.text(st.characters(exclude_categories=("C",), exclude_characters="'\"\\\\{}")))
    return replace(base, **values)  # pyright: ignore[reportArgumentType]


@given(changed())
def test_the_text_of_a_target_says_all_of_it(target: Target) -> None:
    assert Target.parse(str(target)) == target
    assert (str(target) in TARGETS) == (target in TARGETS.values())


@given(changed(), changed())
def test_equal_targets_have_one_text(one: Target, other: Target) -> None:
    assert (str(one) == str(other)) == (one == other)
    assert str(Target.parse(str(one))) == str(one)


@settings(max_examples=20)
@given(changed())
def test_the_text_of_a_target_is_an_option_of_a_pass(target: Target) -> None:
    for stage in STAGES:
        for each in passes_of(stage, target):
            assert Target.parse(getattr(each, "target", str(target))) == target
            assert parse_passes(str(each)) == (each,)


def test_a_target_that_is_not_in_the_table() -> None:
    orin = Target("sm_88", "cuda", "Orin", 5e12, 2e11, warp_size=32, multiprocessors=16)
    assert str(orin) == (
        "sm_88{kind=cuda device='Orin' peak_f32=5000000000000.0 peak_bandwidth=200000000000.0 warp_size=32 "
        "multiprocessors=16}"
    )
    assert Target.parse(str(orin)) == orin and orin.capability == 88
    assert Target.parse("zen4{kind=cpu device='Zen 4' peak_f32=1 peak_bandwidth=1}").vector_bytes == 16


UNREADABLE = {
    "sm_80{": "cannot read the target 'sm_80{'; accepted: NAME, or NAME{field=value ...} such as",
    "": "cannot read the target ''",
    "sm_80 sm_86": "cannot read the target",
    "sm_80{multiprocessors}": "cannot read 'multiprocessors'; accepted: NAME, or",
    "sm_80{device='A}": 'cannot read "device=\'A"',
    "sm_80{device='A'multiprocessors=1}": "cannot read \"device='A'multiprocessors=1\"",
    "sm_80{sms=4}": "there is no field 'sms'; accepted: kind, device, peak_f32",
    "sm_80{cores=4}": "there is no field 'cores'; accepted: kind, device, peak_f32",
    "sm_80{name=sm_86}": "there is no field 'name'",
    "sm_80{multiprocessors=1 multiprocessors=2}": "field 'multiprocessors' is given twice; accepted: each field once",
    "sm_80{multiprocessors=1.5}": "multiprocessors is '1.5'; accepted: a whole number",
    "sm_80{peak_f32=fast}": "peak_f32 is 'fast'; accepted: a number",
    "sm_88{multiprocessors=16}": "target 'sm_88' has no kind and no device and no peak_f32 and no peak_bandwidth",
    "gpu": "unknown target 'gpu'; accepted: cpu, avx512, avx2, sse2, neon, wasm, sm_75",
    "sm_80{multiprocessors=0}": "target 'sm_80': multiprocessors is 0; accepted: a whole number from 1 to",
    "sm_80{multiprocessors=9999999999999}": "accepted: a whole number from 1 to 1099511627776",
    "sm_80{peak_f32=nan}": "peak_f32 is nan; accepted: a number from 1",
    "sm_80{peak_f32=inf}": "peak_f32 is inf; accepted: a number from 1",
    "sm_80{peak_f16_tensor=-1}": "peak_f16_tensor is -1.0; accepted: a number from 0",
    "sm_80{vector_bytes=24}": "vector_bytes is 24; accepted: a power of 2",
    "cpu{vector_bytes=128}": "target 'cpu': vector_bytes is 128; accepted: 16, 32, 64",
    "cpu{matrix_unit=sme}": "target 'cpu': matrix_unit is 'sme'; accepted: none, amx, vnni, vnni_bf16",
    "sm_80{matrix_unit=amx}": "there is no field 'matrix_unit'",
    "cpu{isa=i386}": "target 'cpu': isa is 'i386'; accepted: native, x86-64, x86-64-v2",
    "sm_80{warp_size=64}": "warp_size is 64; accepted: 32 on a GPU, else 1",
    "cpu{kind=cuda}": "'cpu' is no GPU to compile for; accepted: sm_75 and later architectures",
    "sm_70{kind=cuda device=V100 peak_f32=1 peak_bandwidth=1}": "'sm_70' is no GPU to compile for; accepted: sm_75",
    "sm_80{kind=cpu}": "'sm_80' is no name of a processor; accepted: small letters, digits and _",
    "sm_80{kind=tpu}": "kind is 'tpu'; accepted: cpu, cuda",
}


@pytest.mark.parametrize(("text", "reason"), UNREADABLE.items())
def test_what_is_no_text_of_a_target(text: str, reason: str) -> None:
    with pytest.raises(TreadleError) as caught:
        Target.parse(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize("device", ["a 'quoted' one", 'a "quoted" one', "{}", "\\", "two\nlines"])
def test_a_device_that_a_text_cannot_hold(device: str) -> None:
    with pytest.raises(TreadleError, match="accepted: text without quotes, braces and backslashes"):
        replace(TARGETS["sm_80"], device=device)


def test_limits_of_ampere_differ_by_chip() -> None:
    assert Target.parse("sm_80").shared_per_block == 163 * KIB
    assert Target.parse("sm_86").shared_per_block == 99 * KIB
    assert Target.parse("sm_86").max_warps_per_multiprocessor == 48


# CUDA C++ Programming Guide 13.0, technical specifications per compute capability: resident threads and blocks of a
# multiprocessor, and KiB of shared memory of a multiprocessor and of a block.
LIMITS = {
    "sm_75": (1024, 16, 64, 64),
    "sm_80": (2048, 32, 164, 163),
    "sm_86": (1536, 16, 100, 99),
    "sm_87": (1536, 16, 164, 163),
    "sm_89": (1536, 24, 100, 99),
    "sm_90": (2048, 32, 228, 227),
    "sm_90a": (2048, 32, 228, 227),
    "sm_100": (2048, 32, 228, 227),
    "sm_120": (1536, 24, 100, 99),
}


@pytest.mark.parametrize(("name", "limits"), LIMITS.items())
def test_limits_are_those_of_the_programming_guide(name: str, limits: tuple[int, int, int, int]) -> None:
    threads, blocks, shared, shared_of_block = limits
    target = Target.parse(name)
    assert target.max_warps_per_multiprocessor * target.warp_size == threads
    assert target.max_blocks_per_multiprocessor == blocks
    assert target.shared_per_multiprocessor == shared * KIB
    assert target.shared_per_block == shared_of_block * KIB
    assert target.shared_per_block_static == 48 * KIB
    assert (target.registers_per_multiprocessor, target.registers_per_thread) == (65536, 255)
    assert target.max_threads_per_block == 1024


def test_every_gpu_has_its_limits_checked() -> None:
    assert set(LIMITS) == {name for name, target in TARGETS.items() if target.is_cuda}


# f32 lanes of a multiprocessor, boost clock in GHz, bits of the memory's bus, Gbit/s of one of its pins.
CHIPS = {
    "sm_75": (64, 1.590, 256, 10.0),
    "sm_80": (64, 1.410, 5120, 3.186),
    "sm_86": (128, 1.695, 384, 19.5),
    "sm_87": (128, 1.300, 256, 6.4),
    "sm_89": (128, 2.520, 384, 21.0),
    "sm_90": (128, 1.980, 5120, 5.2376),
    "sm_100": (128, 1.980, 8192, 7.8125),
    "sm_120": (128, 2.407, 512, 28.0),
}


@pytest.mark.parametrize(("name", "chip"), CHIPS.items())
def test_peaks_follow_from_the_chip(name: str, chip: tuple[int, float, int, float]) -> None:
    lanes, clock, bus, pin = chip
    target = Target.parse(name)
    assert target.peak_f32 == pytest.approx(target.multiprocessors * lanes * 2 * clock * 1e9, rel=2e-3)
    assert target.peak_bandwidth == pytest.approx(bus / 8 * pin * 1e9, rel=2e-3)
    assert target.peak_tf32_tensor == pytest.approx(target.peak_f16_tensor / 2, rel=5e-3)
    # GeForce cards sum products of f16 in f32 at half of the rate of f16.
    times = 4 if "GeForce" in target.device else 2
    assert target.peak_int8_tensor == pytest.approx(target.peak_f16_tensor * times, rel=5e-3)


@pytest.mark.parametrize(
    ("text", "multiplies"),
    [
        ("sm_80", True),
        ("sm_80{peak_int8_tensor=0}", False),
        ("sm_88{kind=cuda device=Orin peak_f32=1 peak_bandwidth=1 warp_size=32}", False),
        ("cpu", False),
        ("cpu{matrix_unit=vnni}", True),
        ("cpu{peak_int8_tensor=1e12}", False),
    ],
)
def test_who_multiplies_bytes(text: str, multiplies: bool) -> None:
    assert Target.parse(text).multiplies_bytes == multiplies


def test_a_cpu_block_is_one_thread_without_shared_memory() -> None:
    cpu = Target.parse("cpu")
    assert (cpu.max_threads_per_block, cpu.warp_size, cpu.shared_per_block) == (1, 1, 0)
    assert cpu.vector_bytes == 64
    assert cpu.capability == 0


VECTORS = {"cpu": (64, 32), "avx512": (64, 32), "avx2": (32, 16), "sse2": (16, 16), "neon": (16, 32)}
"""Bytes and number of the vector registers: Intel 64 manual, volume 1, 13.5 and 15.1; Arm architecture manual, A1.4."""


@pytest.mark.parametrize(("name", "registers"), VECTORS.items())
def test_processors_have_their_vector_registers(name: str, registers: tuple[int, int]) -> None:
    target = Target.parse(name)
    assert (target.vector_bytes, target.vector_registers, target.lanes) == (*registers, registers[0] // 4)


def test_sm_90a_is_sm_90_by_another_name() -> None:
    assert Target.parse("sm_90a").capability == 90
    assert Target.parse("sm_90a").peak_f32 == Target.parse("sm_90").peak_f32


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((7, 5), "sm_75"),
        ((8, 0), "sm_80"),
        ((8, 8), "sm_87"),
        ((9, 0), "sm_90a"),
        ((10, 3), "sm_100"),
        ((12, 1), "sm_120"),
    ],
)
def test_a_device_gets_the_newest_target_that_it_runs(capability: tuple[int, int], name: str) -> None:
    assert Target.for_capability(*capability).name == name


def test_a_device_of_another_generation_gets_none() -> None:
    with pytest.raises(TreadleError, match=r"capability 7\.2"):
        Target.for_capability(7, 2)
