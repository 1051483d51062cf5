#include "treadle_cuda.h"

// C[40, 36] = A[40, 88] * B[88, 36], in three stages of asynchronous copies
extern "C" __global__ void __launch_bounds__(64) staged_matmul(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C) {
    alignas(16) __shared__ float tile_a[3][16][20];
    alignas(16) __shared__ float tile_b[3][16][20];
    const int block = (int)blockIdx.x;
    const int thread = (int)threadIdx.x;
    float acc[4];
    #pragma unroll
    for (int e = 0; e < 4; e++) {
        acc[e] = 0.0f;
    }
    const int row = block / 3 * 16;
    const int column = block % 3 * 16;
    const int i = thread / 4;
    const int j = thread % 4 * 4;
    const bool p = row + i < 40;
    const bool p_1 = column + j < 36;
    #pragma unroll
    for (int stage = 0; stage < 2; stage++) {
        treadle_cp_async_16(&tile_a[stage][i][j], &A[(row + i) * 88 + stage * 16 + j], p);
        treadle_cp_async_16(&tile_b[stage][i][j], &B[(stage * 16 + i) * 36 + column + j], p_1);
        treadle_cp_async_commit();
    }
    const int r = thread / 8 * 2;
    const int c = thread % 8 * 2;
    for (int step = 0; step < 6; step++) {
        treadle_cp_async_wait<1>();
        treadle_barrier();
        const int next = (step + 2) % 3;
        const int k = step * 16 + 32;
        treadle_cp_async_16(&tile_a[next][i][j], &A[(row + i) * 88 + k + j], p && k + j < 88);
        treadle_cp_async_16(&tile_b[next][i][j], &B[(k + i) * 36 + column + j], k + i < 88 && p_1);
        treadle_cp_async_commit();
        const int now = step % 3;
        #pragma unroll
        for (int d = 0; d < 16; d++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                acc[e] += tile_a[now][r + e / 2][d] * tile_b[now][d][c + e % 2];
            }
        }
    }
    #pragma unroll
    for (int e = 0; e < 4; e++) {
        const int y = row + r + e / 2;
        const int x = column + c + e % 2;
        if (y < 40 && x < 36) {
            C[y * 36 + x] = acc[e];
        }
    }
}
