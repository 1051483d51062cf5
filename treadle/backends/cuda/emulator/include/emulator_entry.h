// How the emulator calls a kernel, and what it learns about the kernel's parameters.
#pragma once

enum treadle_emu_kind : uint32_t { TREADLE_EMU_OTHER, TREADLE_EMU_SIGNED, TREADLE_EMU_UNSIGNED, TREADLE_EMU_FLOAT,
                                   TREADLE_EMU_BOOL, TREADLE_EMU_BFLOAT, TREADLE_EMU_TENSOR_MAP };

// One parameter: for a pointer, what it points to. native.py mirrors it.
struct treadle_emu_parameter {
  uint32_t pointer, constant, kind, bytes;
};

template <typename T> struct treadle_emu_type { static constexpr uint32_t kind = TREADLE_EMU_OTHER; };
#define TREADLE_EMU_TYPE(TYPE, KIND) \
  template <> struct treadle_emu_type<TYPE> { static constexpr uint32_t kind = KIND; };
TREADLE_EMU_TYPE(bool, TREADLE_EMU_BOOL)
TREADLE_EMU_TYPE(char, TREADLE_EMU_SIGNED)
TREADLE_EMU_TYPE(signed char, TREADLE_EMU_SIGNED)
TREADLE_EMU_TYPE(short, TREADLE_EMU_SIGNED)
TREADLE_EMU_TYPE(int, TREADLE_EMU_SIGNED)
TREADLE_EMU_TYPE(long, TREADLE_EMU_SIGNED)
TREADLE_EMU_TYPE(long long, TREADLE_EMU_SIGNED)
TREADLE_EMU_TYPE(unsigned char, TREADLE_EMU_UNSIGNED)
TREADLE_EMU_TYPE(unsigned short, TREADLE_EMU_UNSIGNED)
TREADLE_EMU_TYPE(unsigned, TREADLE_EMU_UNSIGNED)
TREADLE_EMU_TYPE(unsigned long, TREADLE_EMU_UNSIGNED)
TREADLE_EMU_TYPE(unsigned long long, TREADLE_EMU_UNSIGNED)
TREADLE_EMU_TYPE(float, TREADLE_EMU_FLOAT)
TREADLE_EMU_TYPE(double, TREADLE_EMU_FLOAT)
TREADLE_EMU_TYPE(treadle_half, TREADLE_EMU_FLOAT)
TREADLE_EMU_TYPE(treadle_bfloat16, TREADLE_EMU_BFLOAT)
TREADLE_EMU_TYPE(treadle_tensor_map, TREADLE_EMU_TENSOR_MAP)
#undef TREADLE_EMU_TYPE

template <typename T> struct treadle_emu_size { static constexpr uint32_t bytes = sizeof(T); };
template <> struct treadle_emu_size<void> { static constexpr uint32_t bytes = 0; };

template <typename T> struct treadle_emu_describe {
  static constexpr treadle_emu_parameter value = {0, 0, treadle_emu_type<T>::kind, treadle_emu_size<T>::bytes};
};
template <typename T> struct treadle_emu_describe<const T> : treadle_emu_describe<T> {};
template <typename T> struct treadle_emu_describe<volatile T> : treadle_emu_describe<T> {};
template <typename T> struct treadle_emu_describe<T *> {
  static constexpr treadle_emu_parameter value = {1, 0, treadle_emu_describe<T>::value.kind,
                                                  treadle_emu_describe<T>::value.bytes};
};
template <typename T> struct treadle_emu_describe<const T *> {
  static constexpr treadle_emu_parameter value = {1, 1, treadle_emu_describe<T>::value.kind,
                                                  treadle_emu_describe<T>::value.bytes};
};
template <typename T> struct treadle_emu_describe<T *__restrict__> : treadle_emu_describe<T *> {};

template <typename... P> struct treadle_emu_call;
template <> struct treadle_emu_call<> {
  template <typename F, typename... A> TREADLE_EMU_INLINE static void run(F *kernel, void **, A... given) {
    kernel(given...);
  }
};
template <typename P, typename... Rest> struct treadle_emu_call<P, Rest...> {
  template <typename F, typename... A> TREADLE_EMU_INLINE static void run(F *kernel, void **arguments, A... given) {
    P value;
    __builtin_memcpy(&value, *arguments, sizeof value);
    treadle_emu_call<Rest...>::run(kernel, arguments + 1, given..., value);
  }
};

template <typename... P> __attribute__((no_sanitize("thread")))
inline void treadle_emu_enter(void (*kernel)(P...), void **arguments) {
  treadle_emu_call<P...>::run(kernel, arguments);
}
template <typename... P> inline uint32_t treadle_emu_parameters(void (*)(P...), treadle_emu_parameter *out) {
  const treadle_emu_parameter all[] = {treadle_emu_describe<P>::value..., {0, 0, 0, 0}};
  for (size_t i = 0; out && i < sizeof...(P); ++i) out[i] = all[i];
  return sizeof...(P);
}

// Stands behind the text, once for each kernel.
#define TREADLE_EMU_KERNEL(NAME)                                                                       \
  extern "C" __attribute__((visibility("default"))) void treadle_emu_enter_##NAME(void **arguments) {  \
    treadle_emu_enter(NAME, arguments);                                                                \
  }                                                                                                    \
  extern "C" __attribute__((visibility("default"))) uint32_t treadle_emu_parameters_##NAME(            \
      treadle_emu_parameter *out) {                                                                    \
    return treadle_emu_parameters(NAME, out);                                                          \
  }

// Blocks of a cluster, for who launches a kernel without its text.
#define TREADLE_EMU_CLUSTER(NAME, X, Y, Z) \
  extern "C" __attribute__((visibility("default"))) const uint32_t treadle_emu_cluster_##NAME[3] = {X, Y, Z};

// Where this module's shared memory lies on the calling core.
// The mention of the launch keeps the linker from dropping the runtime.
#define TREADLE_EMU_ANCHOR                                                                 \
  extern "C" void treadle_emu_launch(void *);                                              \
  extern "C" __attribute__((visibility("default"))) void (*treadle_emu_keep)(void *) = treadle_emu_launch; \
  thread_local char treadle_emu_anchor_byte;                                               \
  extern "C" __attribute__((visibility("default"))) char *treadle_emu_anchor() { return &treadle_emu_anchor_byte; }

// Dynamic shared memory under the name that the text gives it.
#define TREADLE_EMU_DYNAMIC(NAME, BYTES)                                        \
  asm(".section .tbss." NAME ",\"awT\",@nobits\n.p2align 10\n.globl " NAME       \
      "\n.type " NAME ",@object\n.size " NAME "," #BYTES "\n" NAME ":\n.zero " #BYTES "\n.previous\n");
