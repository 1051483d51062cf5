/* SHA-256 of bytes in memory. Source: FIPS 180-4, sections 4.1.2, 4.2.2, 5.1.1 and 6.2. */
#ifndef TREADLE_SHA256_H
#define TREADLE_SHA256_H

#include <stdint.h>
#include <stddef.h>
#include <string.h>

static const uint32_t treadle_sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc,
    0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08,
    0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t treadle_rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void treadle_sha256_block(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 16; t++)
        w[t] = (uint32_t)block[4 * t] << 24 | (uint32_t)block[4 * t + 1] << 16 | (uint32_t)block[4 * t + 2] << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; t++) {
        uint32_t x = w[t - 15], y = w[t - 2];
        uint32_t first = treadle_rotated(x, 7) ^ treadle_rotated(x, 18) ^ x >> 3;
        uint32_t second = treadle_rotated(y, 17) ^ treadle_rotated(y, 19) ^ y >> 10;
        w[t] = w[t - 16] + first + w[t - 7] + second;
    }
    for (int t = 0; t < 64; t++) {
        uint32_t one = treadle_rotated(e, 6) ^ treadle_rotated(e, 11) ^ treadle_rotated(e, 25);
        uint32_t t1 = h + one + (g ^ (e & (f ^ g))) + treadle_sha256_k[t] + w[t];
        uint32_t zero = treadle_rotated(a, 2) ^ treadle_rotated(a, 13) ^ treadle_rotated(a, 22);
        uint32_t t2 = zero + ((a & b) | (c & (a | b)));
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static void treadle_sha256(const unsigned char *data, size_t bytes, unsigned char digest[32]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    size_t whole = bytes / 64 * 64, rest = bytes - whole, padded = rest < 56 ? 64 : 128;
    for (size_t at = 0; at < whole; at += 64) treadle_sha256_block(state, data + at);
    unsigned char tail[128] = {0};
    if (rest) memcpy(tail, data + whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++) tail[padded - 1 - i] = (unsigned char)((uint64_t)bytes * 8 >> 8 * i);
    for (size_t at = 0; at < padded; at += 64) treadle_sha256_block(state, tail + at);
    for (int i = 0; i < 32; i++) digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
}

#endif
