"""The templates, and the order in which they are tried by default."""

from treadle.schedules.template import Template
from treadle.schedules.templates.attention_cpu import AttentionCpu
from treadle.schedules.templates.attention_cuda import AttentionCuda
from treadle.schedules.templates.attention_decode_cpu import AttentionDecodeCpu
from treadle.schedules.templates.attention_decode_mma import AttentionDecodeMma
from treadle.schedules.templates.attention_mma import AttentionMma
from treadle.schedules.templates.attention_wgmma import AttentionWgmma
from treadle.schedules.templates.conv_tiles_cpu import ConvTilesCpu
from treadle.schedules.templates.generic_cpu import GenericCpu
from treadle.schedules.templates.generic_cuda import GenericCuda
from treadle.schedules.templates.matmul_cluster import MatmulCluster
from treadle.schedules.templates.matmul_cpu import MatmulCpu
from treadle.schedules.templates.matmul_mma import MatmulInt8, MatmulMma, MatmulTf32
from treadle.schedules.templates.matmul_rows_mma import MatmulRowsMma
from treadle.schedules.templates.matmul_simt import MatmulSimt
from treadle.schedules.templates.matmul_tiles_cpu import MatmulRoundedCpu, MatmulTilesCpu
from treadle.schedules.templates.matmul_wgmma import MatmulWgmma
from treadle.schedules.templates.reduce_cpu import ReduceCpu
from treadle.schedules.templates.reduce_cuda import ReduceCuda
from treadle.schedules.templates.row_cpu import RowCpu
from treadle.schedules.templates.row_cuda import RowCuda
from treadle.schedules.templates.transpose_cuda import TransposeCuda
from treadle.schedules.templates.window_cpu import WindowCpu
from treadle.schedules.templates.window_cuda import WindowCuda
from treadle.schedules.templates.winograd_cpu import WinogradCpu
from treadle.support.extensions import watch

TEMPLATES: dict[str, Template] = {
    template.name: template
    for template in (
        AttentionCpu(),
        AttentionDecodeCpu(),
        MatmulCpu(),
        MatmulTilesCpu(),
        MatmulRoundedCpu(),
        ConvTilesCpu(),
        WinogradCpu(),
        RowCpu(),
        WindowCpu(),
        ReduceCpu(),
        GenericCpu(),
        AttentionDecodeMma(),
        AttentionWgmma(),
        AttentionMma(),
        AttentionCuda(),
        RowCuda(),
        WindowCuda(),
        MatmulRowsMma(),
        ReduceCuda(),
        MatmulWgmma(),
        MatmulCluster(),
        MatmulMma(),
        MatmulInt8(),
        MatmulSimt(),
        TransposeCuda(),
        GenericCuda(),
        MatmulTf32(),
    )
}
"""Every template by name; for an anchor, the first that fits is the default. `treadle.scheduling` adds some."""
watch(__name__, TEMPLATES)

__all__ = ["TEMPLATES"]
