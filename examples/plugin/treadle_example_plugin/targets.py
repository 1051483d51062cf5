"""A target: a processor with AVX2 and caches of its own."""

from dataclasses import replace

from treadle import Target

EXAMPLE = replace(Target.parse("avx2{cores=4 l2_bytes=1048576}"), name="example_avx2")
