"""Faulty variants of the product for compute capability 9.0, by what was done to which line."""

from __future__ import annotations

from collections.abc import Mapping

from tests.backends.cuda.emulator.hopper_product import CLUSTER, TEXT


def _edit(old: str, new: str, number: int = 0, text: str = TEXT) -> str:
    """The text with one occurrence of `old` replaced."""
    parts = text.split(old)
    assert number < len(parts) - 1, old
    return old.join(parts[: number + 1]) + new + old.join(parts[number + 1 :])


def _moved(old: str, behind: str) -> str:
    """The text with a statement moved behind another one."""
    text = _edit(old, "")
    assert text.count(behind) == 1, behind
    return text.replace(behind, behind + " " + old)


_INIT_FULL = "treadle_mbarrier_init(full_at + 8 * s, 1);"
_INIT_EMPTY = "treadle_mbarrier_init(empty_at + 8 * s, 8);"
_WAIT_EMPTY = "treadle_mbarrier_wait(empty_at + 8 * stage, phase ^ 1);"
_WAIT_FULL = "treadle_mbarrier_wait(full_at + 8 * stage, phase);"
_EXPECT = "treadle_mbarrier_expect(full_at + 8 * stage, 32768);"
_RELEASE = "if (lane == 0) treadle_mbarrier_arrive(empty_at + 8 * before);"
_LOAD_A = "treadle_tensor_load(sa_at + stage * 16384, map_a, full_at + 8 * stage, k * 64, tile % rows * 128);"
_FENCE = "treadle_wgmma_fence();"
_COMMIT = "treadle_wgmma_commit();"
_NAMED = "treadle_named_barrier(1 + consumer, 128);"
_READ = "if (thread % 128 == 0) treadle_bulk_wait_read<0>();"
_A = "treadle_matrix(sa_at, 16, 1024, 1)"
_B = "treadle_matrix(sb_at, 8192, 1024, 1)"

MUTANTS: Mapping[str, str] = {
    # barriers of arrivals and bytes
    "full is not initialised": _edit(_INIT_FULL, ""),
    "full of 2 arrivals": _edit(_INIT_FULL, _INIT_FULL.replace(", 1)", ", 2)")),
    "empty is not initialised": _edit(_INIT_EMPTY, ""),
    "empty of 7 arrivals": _edit(_INIT_EMPTY, _INIT_EMPTY.replace("8);", "7);")),
    "empty of 4 arrivals": _edit(_INIT_EMPTY, _INIT_EMPTY.replace("8);", "4);")),
    "empty of 9 arrivals": _edit(_INIT_EMPTY, _INIT_EMPTY.replace("8);", "9);")),
    "a stage too few is initialised": _edit("for (int s = 0; s < 4; ++s)", "for (int s = 0; s < 3; ++s)"),
    "initialisation is not published to copies": _edit("treadle_mbarrier_fence();", ""),
    "initialisation is not published to threads": _edit("treadle_barrier();", ""),
    "no wait for an empty stage": _edit(_WAIT_EMPTY, ""),
    "wait for an empty stage of the other parity": _edit(_WAIT_EMPTY, _WAIT_EMPTY.replace("phase ^ 1", "phase")),
    "wait for another empty stage": _edit(_WAIT_EMPTY, _WAIT_EMPTY.replace("8 * stage", "8 * ((stage + 3) % 4)")),
    "wait for an empty stage two phases before": _edit(_WAIT_EMPTY, f"if (k / 4 % 2 == 0) {_WAIT_EMPTY}"),
    "wait for an empty stage after the expectation": _moved(_WAIT_EMPTY, _EXPECT),
    "wait for an empty stage after a copy": _moved(_WAIT_EMPTY, _LOAD_A),
    "no wait for a full stage": _edit(_WAIT_FULL, ""),
    "wait for a full stage of the other parity": _edit(_WAIT_FULL, _WAIT_FULL.replace("phase", "phase ^ 1")),
    "wait for another full stage": _edit(_WAIT_FULL, _WAIT_FULL.replace("8 * stage", "8 * ((stage + 3) % 4)")),
    "wait for a full stage by one thread": _edit(_WAIT_FULL, f"if (thread % 128 == 0) {_WAIT_FULL}"),
    "wait for a full stage by one warp": _edit(_WAIT_FULL, f"if (warp == 0) {_WAIT_FULL}"),
    "wait for a full stage by one consumer": _edit(_WAIT_FULL, f"if (consumer == 0) {_WAIT_FULL}"),
    "wait for a full stage after its products": _moved(_WAIT_FULL, _COMMIT),
    "nothing is expected": _edit(_EXPECT, "treadle_mbarrier_arrive(full_at + 8 * stage);"),
    "no arrival at a full stage": _edit(_EXPECT, ""),
    "16 bytes too few": _edit("32768", "32752"),
    "16 bytes too many": _edit("32768", "32784"),
    "bytes of A alone": _edit("32768", "16384"),
    "bytes of two stages": _edit("32768", "65536"),
    "expected by another stage": _edit(_EXPECT, _EXPECT.replace("8 * stage", "8 * ((stage + 1) % 4)")),
    "parity does not turn for the producer": _edit("stage = 0, phase ^= 1;", "stage = 0;", 0),
    "parity does not turn for consumers": _edit("stage = 0, phase ^= 1;", "stage = 0;", 1),
    "stages are not released": _edit(_RELEASE, "", 0),
    "the last stage is not released": _edit(_RELEASE, "", 1),
    "the stage in use is released": _edit(_RELEASE, _RELEASE.replace("before", "stage"), 0),
    "stages are released before the wait": _edit(
        f"treadle_wgmma_wait<1>();\n          {_RELEASE}", f"{_RELEASE} treadle_wgmma_wait<1>();"
    ),
    "the last stage is released before the wait": _edit(
        f"treadle_wgmma_wait<0>();\n      {_RELEASE}", f"{_RELEASE} treadle_wgmma_wait<0>();"
    ),
    "all lanes release a stage": _edit(_RELEASE, _RELEASE.replace("if (lane == 0) ", ""), 0),
    "one consumer releases a stage": _edit(_RELEASE, _RELEASE.replace("lane == 0", "lane == 0 && consumer == 0"), 0),
    "a release reaches another stage": _edit(_RELEASE, _RELEASE.replace("before)", "((before + 1) % 4))"), 0),
    # copies
    "a copy completes at another stage": _edit(_LOAD_A, _LOAD_A.replace("full_at + 8 * stage", "full_at")),
    "a copy goes to another stage": _edit(_LOAD_A, _LOAD_A.replace("stage * 16384", "(stage + 1) % 4 * 16384")),
    "a copy goes beyond the shared memory": _edit(_LOAD_A, _LOAD_A.replace("sa_at + stage", "sa_at + 131072 + stage")),
    "a tile begins between patterns": _edit(_LOAD_A, _LOAD_A.replace("sa_at + stage", "sa_at + 512 + stage")),
    "a tile begins between rows": _edit(_LOAD_A, _LOAD_A.replace("sa_at + stage", "sa_at + 64 + stage")),
    "a coordinate between 16 bytes": _edit(_LOAD_A, _LOAD_A.replace("k * 64", "k * 64 + 4")),
    "a part of B is not copied": _edit("j < 2", "j < 1", 0),
    "a part of B is copied twice": _edit("sb_at + stage * 16384 + j * 8192", "sb_at + stage * 16384"),
    # products
    "no fence of products": _edit(_FENCE, ""),
    "products are not committed": _edit(_COMMIT, ""),
    "products are committed before they are issued": _edit(_COMMIT, "").replace(_FENCE, f"{_FENCE} {_COMMIT}"),
    "a wait lets two groups run": _edit("treadle_wgmma_wait<1>();", "treadle_wgmma_wait<2>();"),
    "no wait before a release": _edit("treadle_wgmma_wait<1>();", ""),
    "the last wait lets a group run": _edit("treadle_wgmma_wait<0>();", "treadle_wgmma_wait<1>();"),
    "no last wait": _edit("treadle_wgmma_wait<0>();", ""),
    "A is read without a swizzle": _edit(_A, _A.replace(", 1)", ", 0)")),
    "A is read with a swizzle of 64 bytes": _edit(_A, _A.replace(", 1)", ", 2)")),
    "B is read with a swizzle of 64 bytes": _edit(_B, _B.replace(", 1)", ", 2)")),
    "a stride of 512 in A": _edit(_A, _A.replace("1024", "512")),
    "a stride of 2048 in A": _edit(_A, _A.replace("1024", "2048")),
    "a stride of 512 in B": _edit(_B, _B.replace("1024", "512")),
    "a leading dimension of 16 in B": _edit(_B, _B.replace("8192", "16")),
    "B lies along the terms": _edit("treadle_half, 0, 1>", "treadle_half, 0, 0>"),
    "A advances by 64 bytes": _edit("stage * 1024 + kk * 2", "stage * 1024 + kk * 4"),
    "B advances by 1024 bytes": _edit("stage * 1024 + kk * 128", "stage * 1024 + kk * 64"),
    "a product of the stage before": _edit("da + stage * 1024", "da + before * 1024"),
    "sums that nobody cleared": _edit("for (int n = 0; n < 16; ++n) acc[n] = treadle_vec<float, 4>{};", "").replace(
        "k + kk > 0", "true"
    ),
    "sums are cleared each step": _edit("k + kk > 0", "kk > 0"),
    "a product by three warps": _edit("for (int kk = 0; kk < 4; ++kk)", "for (int kk = 0; warp < 3 && kk < 4; ++kk)"),
    "sums are written before the wait": _edit(_COMMIT, f"{_COMMIT} acc[3].v[1] = 0;"),
    "sums are read before the wait": _edit(
        "treadle_wgmma_wait<0>();", "const float early = acc[3].v[1]; treadle_wgmma_wait<0>(); acc[3].v[1] = early;"
    ),
    "sums are written after the fence": _edit(_FENCE, f"{_FENCE} if (k == 0) acc[3].v[1] = 0;"),
    # the tile of results
    "stores may still read": _edit(_READ, ""),
    "one store may still read": _edit(_READ, _READ.replace("<0>", "<1>")),
    "no barrier before a tile is written": _edit(_NAMED, "", 0),
    "no barrier before a tile is stored": _edit(_NAMED, "", 1),
    "no fence before a tile is stored": _edit("treadle_fence_async();", ""),
    "a fence by the thread that stores": _edit("treadle_fence_async();", "").replace(
        "treadle_tensor_store", "treadle_fence_async(); treadle_tensor_store"
    ),
    "a fence before a tile is written": _edit("treadle_fence_async();", "").replace(
        "for (int q = 0;", "treadle_fence_async(); for (int q = 0;"
    ),
    "one number for both consumers": _edit(_NAMED, _NAMED.replace("1 + consumer", "1"), 0),
    "a barrier of 96 threads": _edit(_NAMED, _NAMED.replace("128", "96"), 0),
    "a barrier of 256 threads": _edit(_NAMED, _NAMED.replace("128", "256"), 1),
    "a barrier that only counts": _edit(_NAMED, _NAMED.replace("barrier(", "barrier_arrive("), 1),
    "a barrier of the whole block": _edit(_NAMED, "treadle_barrier();", 0),
    "a barrier number of 16": _edit(_NAMED, _NAMED.replace("1 + consumer", "15 + consumer"), 0),
    "stores are not committed": _edit("treadle_bulk_commit();", ""),
    "the last store is not waited for": _edit("if (thread % 128 == 0) treadle_bulk_wait<0>();", ""),
    "results lie in no swizzle": _edit("(column ^ row % 8) * 8", "column * 8"),
    "a tile is stored from the other consumer's": _edit("sc_at + consumer * 8192", "sc_at + (1 - consumer) * 8192"),
    # registers
    "more registers than there are": _edit("treadle_registers_increase<232>", "treadle_registers_increase<240>"),
    "registers are not given back": _edit("treadle_registers_decrease<40>();", ""),
    "registers in steps of 4": _edit("treadle_registers_increase<232>", "treadle_registers_increase<228>"),
    "registers for one warp": _edit(
        "treadle_registers_increase<232>();", "if (thread < 160) treadle_registers_increase<232>();"
    ),
}

_RELEASE_BOTH = "if (lane < 2) treadle_mbarrier_arrive_at(empty_at + 8 * before, lane);"
_CLUSTER_BARRIER = "treadle_cluster_barrier();"

CLUSTER_MUTANTS: Mapping[str, str] = {
    "half of B for one block": _edit("8 * stage, 3,", "8 * stage, 1,", text=CLUSTER),
    "both copy the same half": _edit("8192 + rank * 4096", "8192", text=CLUSTER),
    "a block of its own at the start": _edit(_CLUSTER_BARRIER, "treadle_barrier();", 0, CLUSTER),
    "no barrier at the end": _edit(_CLUSTER_BARRIER, "", 1, CLUSTER),
    "stages are released in one block": _edit(_RELEASE_BOTH, _RELEASE_BOTH.replace(", lane)", ", rank)"), 0, CLUSTER),
    "arrivals of one block": _edit("empty_at + 8 * s, 16)", "empty_at + 8 * s, 8)", text=CLUSTER),
    "stages are released before the wait": _edit(
        f"treadle_wgmma_wait<1>();\n          {_RELEASE_BOTH}",
        f"{_RELEASE_BOTH} treadle_wgmma_wait<1>();",
        text=CLUSTER,
    ),
    "no wait for an empty stage": _edit(_WAIT_EMPTY, "", text=CLUSTER),
    "no wait for a full stage": _edit(_WAIT_FULL, "", text=CLUSTER),
    "a third block": _edit("lane < 2", "lane < 3", text=CLUSTER),
    "bytes of its own copies": _edit("32768", "24576", text=CLUSTER),
}
"""Of the product by clusters."""
