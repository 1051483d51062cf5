// Names and texts of results.
#include "driver.h"

namespace {

struct Text {
  CUresult result;
  const char *name, *text;
};

#define TEXT(NAME, NUMBER, WORDS) {CUDA_##NAME, "CUDA_" #NAME, WORDS},
const Text TEXTS[] = {FOR_EACH_RESULT(TEXT)};
#undef TEXT

CUresult look_up(CUresult result, const char **out, const char *Text::*field) {
  for (const Text &each : TEXTS) {
    if (each.result != result) continue;
    *out = each.*field;
    return CUDA_SUCCESS;
  }
  *out = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

EXPORT CUresult cuGetErrorName(CUresult result, const char **out) { return look_up(result, out, &Text::name); }

EXPORT CUresult cuGetErrorString(CUresult result, const char **out) { return look_up(result, out, &Text::text); }
