/* exp, log, tanh, erf for one float32 type, scalar or vector; treadle.h includes this once a type (hence no guard).
 *
 * The includer defines TREADLE_F, _I, _U (the type and its integer twins), TREADLE_NAME, TREADLE_BITS, _FROM_BITS,
 * TREADLE_SELECT, TREADLE_TO_FLOAT; this file undefines them at its end. Only operators that mean the same on scalars
 * and on GNU vectors are used, and no branches. The polynomials are weighted minimax fits (Lawson's algorithm on
 * Chebyshev nodes, in double); the comments give the fitted function and interval.
 */

/* A constant of the type; x - 0 keeps the sign of a zero. */
#define TREADLE_SPLAT(x) ((x) - (TREADLE_F){0})

/* e^x where |x| < 104; NaN stays NaN. 2^n is applied in two factors, so the result overflows and underflows gradually. */
TREADLE_INLINE TREADLE_F TREADLE_NAME(exp_bounded)(TREADLE_F x) {
    /* 1.5 * 2^23 + 2 * 127: adding it rounds to a whole number n, and n + 254 is in the low bits. */
    const float magic = 12583166.0f;
    TREADLE_F shifted = x * 1.44269504f + magic;
    TREADLE_F n = shifted - magic;
    TREADLE_F r = x - n * 0.693145752f - n * 1.42860677e-6f; /* ln 2 in two parts: n * the first is exact */
    /* (e^r - 1 - r) / r^2 on |r| <= ln(2)/2 */
    TREADLE_F p = r * 0.00139421609f + 0.00836377591f;
    p = p * r + 0.0416663624f;
    p = p * r + 0.166665733f;
    p = p * r + 0.5f;
    p = r * r * p + r; /* e^r - 1; adding 1 after the first factor rounds alike, and is one operation with it */
    /* Both factors' exponents with their bias of 127; shifts leave the higher bits out. */
    TREADLE_U k = (TREADLE_U)TREADLE_BITS(shifted);
    TREADLE_U half = k >> 1;
    TREADLE_F scale = TREADLE_FROM_BITS((TREADLE_I)(half << 23));
    TREADLE_F scale_rest = TREADLE_FROM_BITS((TREADLE_I)((k - half) << 23));
    return (p * scale + scale) * scale_rest;
}

/* At most 1.5 ulp. */
TREADLE_INLINE TREADLE_F TREADLE_NAME(exp)(TREADLE_F x) {
    x = TREADLE_LESS(TREADLE_SPLAT(89.0f), x);      /* e^89 is infinity */
    x = TREADLE_GREATER(TREADLE_SPLAT(-104.0f), x); /* e^-104 is zero */
    return TREADLE_NAME(exp_bounded)(x);
}

/* At most 1.5 ulp. */
TREADLE_INLINE TREADLE_F TREADLE_NAME(log)(TREADLE_F x) {
    TREADLE_F bias = TREADLE_SELECT(x < 1.17549435e-38f, TREADLE_SPLAT(-23.0f), TREADLE_SPLAT(0.0f));
    TREADLE_F normal = TREADLE_SELECT(x < 1.17549435e-38f, x * 8388608.0f, x);
    /* normal = 2^e * m with m in [sqrt(1/2), sqrt(2)) */
    TREADLE_U bits = (TREADLE_U)TREADLE_BITS(normal);
    TREADLE_I e = (TREADLE_I)(bits - 0x3f3504f3u) >> 23;
    TREADLE_F f = TREADLE_FROM_BITS((TREADLE_I)(bits - ((TREADLE_U)e << 23))) - 1.0f;
    TREADLE_F exponent = TREADLE_TO_FLOAT(e) + bias;
    /* (log(1 + f) - f + f^2/2) / f^3 */
    TREADLE_F p = f * 0.0691536814f - 0.117898077f;
    p = p * f + 0.118729763f;
    p = p * f - 0.123843484f;
    p = p * f + 0.142186582f;
    p = p * f - 0.16669251f;
    p = p * f + 0.200022265f;
    p = p * f - 0.249999866f;
    p = p * f + 0.333333105f;
    TREADLE_F square = f * f;
    TREADLE_F tail = exponent * 1.42860677e-6f + p * f * square;
    tail = tail - 0.5f * square;
    TREADLE_F y = exponent * 0.693145752f + (f + tail);
    y = TREADLE_SELECT(x == TREADLE_INFINITY, x, y);
    y = TREADLE_SELECT(x == 0.0f, TREADLE_SPLAT(-TREADLE_INFINITY), y);
    return TREADLE_SELECT(x >= 0.0f, y, TREADLE_SPLAT(TREADLE_NAN));
}

/* `magnitude` (not negative, or NaN) with the sign of x. */
TREADLE_INLINE TREADLE_F TREADLE_NAME(with_sign_of)(TREADLE_F magnitude, TREADLE_F x) {
    return TREADLE_FROM_BITS(TREADLE_BITS(magnitude) | (TREADLE_BITS(x) & (int)0x80000000u));
}

/* At most 2 ulp. */
TREADLE_INLINE TREADLE_F TREADLE_NAME(tanh)(TREADLE_F x) {
    /* On |x|; the sign comes last, which also keeps -0. */
    TREADLE_F a = TREADLE_NAME(abs)(x);
    TREADLE_F s = x * x;
    /* (tanh(x) - x) / x^3 in s = x^2, |x| < 0.625 */
    TREADLE_F p = s * 0.00214967527f - 0.00818527117f;
    p = p * s + 0.0217041597f;
    p = p * s - 0.0539474599f;
    p = p * s + 0.133332118f;
    p = p * s - 0.333333313f;
    p = p * s * a + a;
    TREADLE_F bounded = TREADLE_SELECT(a > 10.0f, TREADLE_SPLAT(10.0f), a);
    TREADLE_F far = 1.0f - 2.0f / (TREADLE_NAME(exp_bounded)(bounded + bounded) + 1.0f);
    return TREADLE_NAME(with_sign_of)(TREADLE_SELECT(a < 0.625f, p, far), x);
}

/* At most 2 ulp. */
TREADLE_INLINE TREADLE_F TREADLE_NAME(erf)(TREADLE_F x) {
    TREADLE_F a = TREADLE_NAME(abs)(x);
    TREADLE_F s = x * x;
    /* erf(x)/x - 1 in s = x^2, |x| < 0.93 */
    TREADLE_F p = s * 8.34522507e-05f - 0.00081374374f;
    p = p * s + 0.00520063424f;
    p = p * s - 0.0268592704f;
    p = p * s + 0.112836942f;
    p = p * s - 0.376126349f;
    p = p * s + 0.128379166f;
    p = p * a + a;
    /* -log(erfc(t))/t on 0.92 <= t <= 4, beyond which erf rounds to 1 */
    TREADLE_F t = TREADLE_SELECT(a > 4.0f, TREADLE_SPLAT(4.0f), a);
    TREADLE_F q = t * 4.80647577e-06f - 4.3999964e-05f;
    q = q * t - 5.75130507e-05f;
    q = q * t + 0.0029516716f;
    q = q * t - 0.0227082986f;
    q = q * t + 0.105294444f;
    q = q * t + 0.635609269f;
    q = q * t + 1.12855518f;
    TREADLE_F far = 1.0f - TREADLE_NAME(exp_bounded)(-(q * t));
    return TREADLE_NAME(with_sign_of)(TREADLE_SELECT(a < 0.925f, p, far), x);
}

#undef TREADLE_SPLAT
#undef TREADLE_F
#undef TREADLE_I
#undef TREADLE_U
#undef TREADLE_NAME
#undef TREADLE_BITS
#undef TREADLE_FROM_BITS
#undef TREADLE_SELECT
#undef TREADLE_LESS
#undef TREADLE_GREATER
#undef TREADLE_TO_FLOAT
