"""Faulty kernels of functions of treadle_hopper.h, and the edit that makes each correct.

Marks are those of test_findings.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """The body of a faulty kernel, and the kind and a part of the message of the finding that it gives."""

    kind: str
    says: str
    body: str
    edit: tuple[str, str]
    """What turns the faulty body into the correct one."""
    buffer: str | None = None
    cluster: bool = False
    """Whether the two blocks are one cluster."""


START = """if (t == 0) {
    treadle_mbarrier_init(full_at, 1);
    treadle_mbarrier_fence();
  }
  treadle_barrier();"""
LOAD = """if (t == 0) {
    treadle_mbarrier_expect(full_at, 8192);
    treadle_tensor_load(s_at, a_map, full_at, 0, 0); // OTHER
  }"""
PIXELS = f"""{START}
  if (t == 0) {{
    treadle_mbarrier_expect(full_at, 8192);
    treadle_tensor_load_pixels(s_at, p_map, full_at, 0, -1, -1, 0, 2, 1); // HERE
  }}
  treadle_mbarrier_wait(full_at, 0);"""
LOADED = f"{START}\n  {LOAD}\n  treadle_mbarrier_wait(full_at, 0);"
WRITTEN = """for (int n = t; n < 2048; n += 256) s[n / 32][n % 32] = n; // OTHER
  treadle_fence_async();
  treadle_barrier();"""
STORED = """if (t == 0) {
    treadle_mbarrier_init(full_at, 1);
    treadle_mbarrier_init(full_at + 8, 1);
    treadle_mbarrier_fence();
    treadle_mbarrier_expect(full_at, 2048);
  }
  treadle_barrier();
  treadle_cluster_arrive();
  treadle_cluster_wait();
  const int other = 1 - treadle_cluster_rank();
  const unsigned there = treadle_remote_address(s_at, other) + t * 8;
  const unsigned full_there = treadle_remote_address(full_at, other);
  treadle_store_async(there, full_there, treadle_vec<float, 2>{{(float)t, 1}});
  treadle_mbarrier_wait_cluster(full_at, 0);
  b[t] = s[t / 16][t % 16 * 2];"""
WAIT = "treadle_mbarrier_wait_cluster(full_at, 0);"
PRODUCT = "treadle_wgmma<64, treadle_tf32, treadle_tf32, 0, 0>"
SUMS = "treadle_vec<float, 4> sums[8];"

CASES = {
    "a barrier that nobody initialised": Case(
        "init",
        "no barrier was initialised here",
        "// start\n  if (t == 0) treadle_mbarrier_arrive(full_at); // HERE",
        ("// start", START),
        "full[0]",
    ),
    "a barrier initialised while a phase is under way": Case(
        "race",
        "a barrier initialised again while a phase of it is under way",
        """if (t == 0) {
    treadle_mbarrier_init(full_at, 2);
    treadle_mbarrier_arrive(full_at);
    treadle_mbarrier_init(full_at, 2); // HERE
  }""",
        ("    treadle_mbarrier_arrive(full_at);", ""),
        "full[0]",
    ),
    "a barrier that copies do not know": Case(
        "race",
        "whose initialisation no treadle_mbarrier_fence has published",
        f"{LOADED.replace('treadle_mbarrier_fence();', '// publish').replace('// OTHER', '// HERE')}",
        ("// publish", "treadle_mbarrier_fence();"),
        "full[0]",
    ),
    "a barrier that other threads do not know": Case(
        "race",
        "a read and a write that no barrier orders",
        """if (t == 0) treadle_mbarrier_init(full_at, 256); // OTHER
  // barrier
  treadle_mbarrier_arrive(full_at); // HERE""",
        ("// barrier", "treadle_barrier();"),
        "full[0]",
    ),
    "more arrivals than a phase has": Case(
        "divergence",
        "more than 1 arrivals in one phase of a barrier",
        f"""{START}
  if (t == 0) {{
    treadle_mbarrier_expect(full_at, 8192);
    treadle_mbarrier_arrive(full_at); // HERE
    treadle_tensor_load(s_at, a_map, full_at, 0, 0);
  }}
  treadle_mbarrier_wait(full_at, 0);""",
        ("    treadle_mbarrier_arrive(full_at); // HERE", ""),
        "full[0]",
    ),
    "a barrier without arrivals": Case(
        "divergence",
        "a barrier of 0 arrivals; it takes 1 to 1048575",
        "if (t == 0) treadle_mbarrier_init(full_at, 0); // HERE",
        ("(full_at, 0)", "(full_at, 1)"),
        "full[0]",
    ),
    "more bytes than a barrier counts": Case(
        "bounds",
        "a phase that waits for 1048576 bytes",
        f"{START}\n  if (t == 0) treadle_mbarrier_expect(full_at, 1048576); // HERE",
        ("1048576", "1048575"),
        "full[0]",
    ),
    "a wait for a phase long gone": Case(
        "race",
        "a wait for phase 0 of a barrier, after which phase 2 has ended already",
        f"""{START}
  if (t == 0) for (int n = 0; n < 3; ++n) treadle_mbarrier_arrive(full_at);
  if (t == 32) treadle_mbarrier_wait(full_at, 0); // HERE""",
        ("n < 3", "n < 1"),
        "full[0]",
    ),
    "an arrival that never comes": Case(
        "divergence",
        "phase 0 never ends: 1 of 1 arrivals missing",
        f"{START}\n  // arrive\n  if (t >= 32) treadle_mbarrier_wait(full_at, 0); // HERE",
        ("// arrive", "if (t == 0) treadle_mbarrier_arrive(full_at);"),
        "full[0]",
    ),
    "bytes that never come": Case(
        "divergence",
        "phase 0 never ends: 48 bytes missing",
        f"{START}\n  {LOAD}\n  treadle_mbarrier_wait(full_at, 0); // HERE".replace("8192", "8240").replace(
            "// OTHER", ""
        ),
        ("8240", "8192"),
        "full[0]",
    ),
    "bytes that nobody expects": Case(
        "divergence",
        "48 bytes came that nobody expects",
        f"{START}\n  {LOAD}\n  treadle_mbarrier_wait(full_at, 0); // HERE".replace("8192", "8144").replace(
            "// OTHER", ""
        ),
        ("8144", "8192"),
        "full[0]",
    ),
    "a numbered barrier without a number": Case(
        "divergence",
        "numbered barrier 16 of 256 threads",
        "treadle_named_barrier(16, 256); // HERE",
        ("16", "15"),
    ),
    "a numbered barrier of two counts": Case(
        "divergence",
        "numbered barrier 3 of 128 threads, which others came to as one of 256",
        """if (t < 128) treadle_named_barrier(3, 256);
  else treadle_named_barrier(3, 128); // HERE""",
        ("(3, 128)", "(3, 256)"),
    ),
    "a thread that comes twice": Case(
        "divergence",
        "a thread comes to numbered barrier 3 again before all came",
        """if (t < 32) {
    treadle_named_barrier_arrive(3, 256);
    treadle_named_barrier_arrive(3, 256); // HERE
  } else {
    treadle_named_barrier(3, 256);
  }""",
        ("    treadle_named_barrier_arrive(3, 256); // HERE", ""),
    ),
    "a part of a warp at a numbered barrier": Case(
        "divergence",
        "numbered barrier 3, to which lanes of warp 0 did not come with it",
        "if (t % 32 < 16 && t < 64) treadle_named_barrier(3, 32); // HERE",
        ("t % 32 < 16 && t < 64", "t < 32"),
    ),
    "too few threads at a numbered barrier": Case(
        "divergence",
        "numbered barrier 3, to which 128 of 256 threads come",
        "if (t < 128) treadle_named_barrier(3, 256); // HERE",
        ("256", "128"),
    ),
    "what one thread wrote before another barrier": Case(
        "race",
        "a read and a write that no barrier orders",
        """if (t < 128) s[t / 32][t % 32] = t; // OTHER
  if (t < 128) treadle_named_barrier_arrive(3, 256);
  else treadle_named_barrier(4, 128);
  if (t >= 128) b[t] = s[t / 32 - 4][t % 32]; // HERE""",
        ("treadle_named_barrier(4, 128)", "treadle_named_barrier(3, 256)"),
        "s",
    ),
    "a sum of blocks, of which one thread counts its block": Case(
        "race",
        "a read and a write that no barrier orders",
        """if (t < 128) {
    all[256 + blockIdx.x * 128 + t] = t; // OTHER
    // barrier
    if (t == 0) s[0][0] = treadle_arrive(count, 2);
    treadle_named_barrier(3, 128);
    if (s[0][0] != 0) all[t] = all[256 + t] + all[384 + t]; // HERE
  }""",
        ("// barrier", "treadle_named_barrier(3, 128);"),
        "b",
    ),
    "a block that a cluster does not have": Case(
        "bounds",
        "block 2 of a cluster of 2",
        f"""{START.replace("treadle_barrier", "treadle_cluster_barrier")}
  if (t == 0) treadle_mbarrier_arrive_at(full_at, 2 * treadle_cluster_rank()); // HERE
  treadle_cluster_barrier();""",
        ("2 * treadle", "treadle"),
        cluster=True,
    ),
    "a block that may have ended": Case(
        "race",
        "block 0 of the cluster may have ended",
        f"""{START.replace("treadle_barrier", "treadle_cluster_barrier")}
  if (t == 0) treadle_mbarrier_arrive_at(full_at, 0); // HERE
  // barrier""",
        ("// barrier", "treadle_cluster_barrier();"),
        cluster=True,
    ),
    "a barrier of the cluster that one block leaves out": Case(
        "divergence",
        "a barrier of the cluster that not all threads come to",
        "if (treadle_cluster_rank() == 0) treadle_cluster_barrier(); // HERE",
        ("if (treadle_cluster_rank() == 0) ", ""),
        cluster=True,
    ),
    "a copy to another block that still reads": Case(
        "race",
        "a read and a write that no barrier orders",
        f"""{START.replace("treadle_barrier", "treadle_cluster_barrier")}
  {WRITTEN.replace("// OTHER", "").replace("treadle_barrier", "treadle_cluster_barrier")}
  b[t] = s[t / 32][t % 32]; // OTHER
  // barrier
  if (t == 0) treadle_mbarrier_expect(full_at, 8192);
  if (t == 0 && treadle_cluster_rank() == 1) treadle_tensor_load_multicast(s_at, a_map, full_at, 3, 0, 0); // HERE
  treadle_mbarrier_wait(full_at, 0);
  treadle_cluster_barrier();""",
        ("// barrier", "treadle_cluster_barrier();"),
        "s",
        cluster=True,
    ),
    "a store to a block that may not have started": Case(
        "init",
        "no barrier was initialised here",
        STORED.replace("treadle_cluster_arrive();\n  treadle_cluster_wait();", "// meet").replace(
            "{(float)t, 1}});", "{(float)t, 1}}); // HERE"
        ),
        ("// meet", "treadle_cluster_arrive();\n  treadle_cluster_wait();"),
        cluster=True,
    ),
    "what another block stores, read before it came": Case(
        "race",
        "touched while an asynchronous copy to it is under way",
        STORED.replace(WAIT, "// wait").replace("t % 16 * 2];", f"t % 16 * 2]; // HERE\n  {WAIT}"),
        ("// wait", WAIT),
        "s",
        cluster=True,
    ),
    "what another block stores, waited for in the scope of the block": Case(
        "race",
        "a wait in the scope of the block for what other blocks store",
        STORED.replace(WAIT, "treadle_mbarrier_wait(full_at, 0); // HERE"),
        ("treadle_mbarrier_wait(full_at, 0);", WAIT),
        "full",
        cluster=True,
    ),
    "a store that completes at a barrier of another block": Case(
        "bounds",
        "a store to block 1 of the cluster that completes at a barrier of block 0",
        STORED.replace("{(float)t, 1}});", "{(float)t, 1}}); // HERE").replace("(there, full_there", "(there, full_at"),
        ("(there, full_at", "(there, full_there"),
        cluster=True,
    ),
    "a store of which nobody knows that it came": Case(
        "race",
        "the block ended before a copy to it arrived",
        STORED.replace("{(float)t, 1}});", "{(float)t, 1}}); // HERE")
        .replace(WAIT, "// wait")
        .replace("b[t] = s", "//"),
        ("// wait", WAIT),
        cluster=True,
    ),
    "a store between two numbers": Case(
        "bounds",
        "an address that is no multiple of 8",
        STORED.replace("+ t * 8;", "+ 4 + t * 8;").replace("{(float)t, 1}});", "{(float)t, 1}}); // HERE"),
        ("+ 4 + t * 8", "+ t * 8"),
        cluster=True,
    ),
    "bytes that other blocks do not store": Case(
        "divergence",
        "phase 0 never ends: 8 bytes missing",
        STORED.replace("2048", "2056").replace(WAIT, f"{WAIT} // HERE"),
        ("2056", "2048"),
        "full[0]",
        cluster=True,
    ),
    "two arrivals at the barrier of the cluster": Case(
        "divergence",
        "a second arrival before the wait at the barrier of the cluster",
        """treadle_cluster_arrive();
  // wait
  treadle_cluster_arrive(); // HERE
  treadle_cluster_wait();""",
        ("// wait", "treadle_cluster_wait();"),
        cluster=True,
    ),
    "a wait that no arrival precedes": Case(
        "divergence",
        "a wait without an arrival at the barrier of the cluster",
        "// arrive\n  treadle_cluster_wait(); // HERE",
        ("// arrive", "treadle_cluster_arrive();"),
        cluster=True,
    ),
    "a copy that nobody waits for": Case(
        "race",
        "the block ended before a copy to it arrived",
        f"{START}\n  {LOAD.replace('// OTHER', '// HERE')}\n  // wait",
        ("// wait", "treadle_mbarrier_wait(full_at, 0);"),
        "s",
    ),
    "pixels by a map of a box": Case(
        "bounds",
        "a copy of pixels by a map of a box",
        PIXELS.replace("p_map", "p_box"),
        ("p_box", "p_map"),
    ),
    "a box by a map of pixels": Case(
        "bounds",
        "a copy of a box by a map of pixels",
        PIXELS.replace(
            "load_pixels(s_at, p_map, full_at, 0, -1, -1, 0, 2, 1)", "load(s_at, p_map, full_at, 0, -1, -1, 0)"
        ),
        ("p_map", "p_box"),
    ),
    "a pixel between those of a walk": Case(
        "bounds",
        "a copy that begins at pixel 0 along dimension 2",
        PIXELS.replace("0, -1, -1", "0, 0, -1"),
        ("0, 0, -1", "0, 1, -1"),
    ),
    "a pixel before the walk": Case(
        "bounds",
        "a copy that begins at pixel -3 along dimension 1",
        PIXELS.replace("0, -1, -1", "0, -1, -3"),
        ("-3", "1"),
    ),
    "a pixel behind the walk": Case(
        "bounds", "a copy that begins at pixel 7 along dimension 2", PIXELS.replace("0, -1, -1", "0, 7, -1"), ("7", "5")
    ),
    "an offset of more than 8 bits": Case(
        "bounds", "an offset of 256 pixels; a copy takes 0 to 255", PIXELS.replace("2, 1)", "2, 256)"), ("256", "255")
    ),
    "an offset back": Case(
        "bounds",
        "an offset of -1 pixels; a copy takes 0 to 255",
        PIXELS.replace("2, 1)", "-1, 1)"),
        ("0, -1, 1)", "0, 0, 1)"),
    ),
    "a map of other dimensions": Case(
        "bounds",
        "a copy of 3 dimensions by a map of 2",
        f"{LOADED.replace('full_at, 0, 0); // OTHER', 'full_at, 0, 0, 0); // HERE')}",
        ("full_at, 0, 0, 0)", "full_at, 0, 0)"),
    ),
    "a tile within a swizzle's pattern": Case(
        "bounds",
        "a tile of a copy that does not begin at a multiple of 1024 bytes",
        LOADED.replace("load(s_at", "load(s_at - 128").replace("// OTHER", "// HERE"),
        ("s_at - 128", "s_at"),
    ),
    "a copy from within 16 bytes": Case(
        "bounds",
        "a copy from innermost coordinate 2 on, of elements of 4 bytes",
        LOADED.replace("full_at, 0, 0); // OTHER", "full_at, 2, 0); // HERE"),
        ("full_at, 2, 0)", "full_at, 4, 0)"),
    ),
    "a tile that ends behind its array": Case(
        "bounds",
        "8192 bytes outside of the buffer",
        LOADED.replace("load(s_at", "load(s_at + 2048").replace("// OTHER", "// HERE"),
        ("s_at + 2048", "s_at"),
        "s",
    ),
    "a read of what is being copied": Case(
        "race",
        "touched while an asynchronous copy to it is under way",
        f"{START}\n  {LOAD}\n  // wait\n  b[t] = s[t / 32][t % 32]; // HERE",
        ("// wait", "treadle_mbarrier_wait(full_at, 0);"),
        "s",
    ),
    "a copy to what is being read": Case(
        "race",
        "a read and a write that no barrier orders",
        f"""{WRITTEN.replace("// OTHER", "")}
  {START}
  b[t] = s[t / 32][t % 32]; // OTHER
  // barrier
  {LOAD.replace("// OTHER", "// HERE")}
  treadle_mbarrier_wait(full_at, 0);""",
        ("// barrier", "treadle_barrier();"),
        "s",
    ),
    "a wait by one thread for all": Case(
        "race",
        "a read and a write that no barrier orders",
        f"""{START}
  {LOAD}
  if (t == 0) treadle_mbarrier_wait(full_at, 0);
  if (t == 128) treadle_mbarrier_wait(full_at, 0);
  b[t] = s[t / 32][t % 32]; // HERE""",
        ("if (t == 0) treadle_mbarrier_wait", "treadle_mbarrier_wait"),
        "s",
    ),
    "a store that still reads at the end": Case(
        "race",
        "the thread ended while a store still read shared memory",
        f"""{WRITTEN}
  if (t == 0) {{
    treadle_tensor_store(b_map, s_at, 0, blockIdx.x * 64); // HERE
    treadle_bulk_commit();
    // wait
  }}""".replace("// OTHER", ""),
        ("// wait", "treadle_bulk_wait_read<0>();"),
    ),
    "a store of what is not visible to it": Case(
        "race",
        "read by a copy or a product, but no treadle_fence_async of its writer precedes",
        f"""{WRITTEN.replace("treadle_fence_async();", "// fence")}
  if (t == 0) {{
    treadle_tensor_store(b_map, s_at, 0, blockIdx.x * 64); // HERE
    treadle_bulk_commit();
    treadle_bulk_wait<0>();
  }}""",
        ("// fence", "treadle_fence_async();"),
        "s",
    ),
    "a write to what is being stored": Case(
        "race",
        "a read and a write that no barrier orders",
        f"""{WRITTEN.replace("// OTHER", "")}
  if (t == 0) {{
    treadle_tensor_store(b_map, s_at, 0, blockIdx.x * 64); // OTHER
    treadle_bulk_commit();
    // wait
    s[0][0] = 1; // HERE
    treadle_bulk_wait<0>();
  }}""",
        ("// wait", "treadle_bulk_wait_read<0>();"),
        "s[0]",
    ),
    "a product of what is not visible to it": Case(
        "race",
        "read by a copy or a product, but no treadle_fence_async of its writer precedes",
        f"""{WRITTEN.replace("treadle_fence_async();", "// fence")}
  {SUMS}
  treadle_wgmma_fence();
  {PRODUCT}(sums, tile, tile, false); // HERE
  treadle_wgmma_commit();
  treadle_wgmma_wait<0>();
  b[t] = sums[0].v[0];""",
        ("// fence", "treadle_fence_async();"),
        "s",
    ),
    "sums that are read too early": Case(
        "race",
        "registers touched while a product on them is under way",
        f"""{LOADED}
  {SUMS}
  treadle_wgmma_fence();
  {PRODUCT}(sums, tile, tile, false);
  treadle_wgmma_commit();
  // wait
  b[t] = sums[0].v[0]; // HERE
  treadle_wgmma_wait<0>();""".replace("// OTHER", ""),
        ("// wait", "treadle_wgmma_wait<0>();"),
    ),
    "sums that are written behind the fence": Case(
        "race",
        "a product whose registers no treadle_wgmma_fence orders",
        f"""{LOADED}
  {SUMS}
  for (int n = 0; n < 2; ++n) {{
    if (n == 0) treadle_wgmma_fence();
    {PRODUCT}(sums, tile, tile, n > 0); // HERE
    treadle_wgmma_commit();
    treadle_wgmma_wait<0>();
    sums[0].v[0] += 1;
  }}
  b[t] = sums[0].v[0];""".replace("// OTHER", ""),
        ("if (n == 0) ", ""),
    ),
    "a product of another swizzle": Case(
        "bounds",
        "read with a swizzle of 64 bytes, but written with one of 128",
        f"""{LOADED}
  {SUMS}
  treadle_wgmma_fence();
  {PRODUCT}(sums, tile ^ 3ull << 62, tile, false); // HERE
  treadle_wgmma_commit();
  treadle_wgmma_wait<0>();
  b[t] = sums[0].v[0];""",
        (" ^ 3ull << 62", ""),
        "s",
    ),
    "a stride that is no pattern's": Case(
        "bounds",
        "the matrix descriptor of operand B: its stride is no multiple of its swizzle's pattern",
        f"""{LOADED}
  {SUMS}
  treadle_wgmma_fence();
  {PRODUCT}(sums, tile, treadle_matrix(s_at, 16, 512, 1), false); // HERE
  treadle_wgmma_commit();
  treadle_wgmma_wait<0>();
  b[t] = sums[0].v[0];""".replace("// OTHER", ""),
        ("512", "1024"),
    ),
    "a product that clears sums under way": Case(
        "race",
        "a product clears sums of products under way, which no thread can have read",
        f"""{LOADED.replace("// OTHER", "")}
  {SUMS}
  treadle_wgmma_fence();
  {PRODUCT}(sums, tile, tile, false); // OTHER
  {PRODUCT}(sums, tile + 2, tile + 2, false); // HERE
  treadle_wgmma_commit();
  treadle_wgmma_wait<0>();
  b[t] = sums[0].v[0];""",
        ("tile + 2, false", "tile + 2, true"),
    ),
    "a leading dimension that is no pattern's": Case(
        "bounds",
        "the matrix descriptor of operand B: its leading dimension is no multiple of its swizzle's pattern",
        f"""{LOADED}
  treadle_vec<float, 4> sums[16];
  treadle_wgmma_fence();
  treadle_wgmma<128, treadle_half, treadle_half, 0, 1>(sums, tile, treadle_matrix(s_at, 16, 1024, 1), false); // HERE
  treadle_wgmma_commit();
  treadle_wgmma_wait<0>();
  b[t] = sums[0].v[0];""".replace("// OTHER", ""),
        ("treadle_matrix(s_at, 16,", "treadle_matrix(s_at, 2048,"),
    ),
    "an operand behind its array": Case(
        "bounds",
        "16 bytes outside of the buffer",
        f"""{LOADED}
  {SUMS}
  treadle_wgmma_fence();
  {PRODUCT}(sums, tile, tile + 64, false); // HERE
  treadle_wgmma_commit();
  treadle_wgmma_wait<0>();
  b[t] = sums[0].v[0];""".replace("// OTHER", ""),
        ("tile + 64", "tile"),
        "s",
    ),
    "threads with different products": Case(
        "divergence",
        "threads of a warpgroup issue different products",
        f"""{LOADED}
  {SUMS}
  treadle_wgmma_fence();
  {PRODUCT}(sums, tile + t / 64 % 2 * 2, tile, false); // HERE
  treadle_wgmma_commit();
  treadle_wgmma_wait<0>();
  b[t] = sums[0].v[0];""".replace("// OTHER", ""),
        ("t / 64 % 2 * 2", "t / 128 * 2"),
    ),
    "a product of three warps": Case(
        "divergence",
        "a wait for a product that not all threads of the warpgroup issue",
        f"""{LOADED}
  {SUMS}
  if (t % 128 < 96) {{
    treadle_wgmma_fence();
    {PRODUCT}(sums, tile, tile, false);
    treadle_wgmma_commit();
    treadle_wgmma_wait<0>(); // HERE
    b[t] = sums[0].v[0];
  }}""".replace("// OTHER", ""),
        ("t % 128 < 96", "t % 128 < 128"),
    ),
    "a product that nobody waits for": Case(
        "race",
        "the thread ended while a product was under way",
        f"""{LOADED}
  {SUMS}
  treadle_wgmma_fence();
  {PRODUCT}(sums, tile, tile, false); // HERE
  treadle_wgmma_commit();
  // wait""".replace("// OTHER", ""),
        ("// wait", "treadle_wgmma_wait<0>();"),
    ),
    "registers in steps of 4": Case(
        "bounds",
        "100 registers for each thread; 24 to 240 are possible, in steps of 8",
        "treadle_registers_decrease<100>(); // HERE",
        ("100", "104"),
    ),
    "registers of a part of a warpgroup": Case(
        "divergence",
        "threads of a warpgroup ask for 0 and for 104 registers",
        "if (t < 64) treadle_registers_decrease<104>(); // HERE",
        ("t < 64", "t < 128"),
    ),
}
