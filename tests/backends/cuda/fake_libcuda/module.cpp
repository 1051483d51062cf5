// Modules: an image is a shared library that the emulator's compiler made, as the bytes of its file.
#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "driver.h"

namespace {

enum { JIT_ERROR_LOG = 5, JIT_INFO_LOG_SIZE = 4, JIT_ERROR_LOG_SIZE = 6 };
enum { FUNCTION_THREADS = 0, FUNCTION_PTX = 5, FUNCTION_BINARY = 6, FUNCTION_DYNAMIC = 8 };

constexpr int WITHOUT_WISH = 48 * 1024;  // bytes of dynamic shared memory

// A driver is given no length: where the sections end, the image ends.
size_t image_size(const char *image, const Elf64_Ehdr &header) {
  size_t end = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    memcpy(&section, image + header.e_shoff + (size_t)i * header.e_shentsize, sizeof section);
    if (section.sh_type != SHT_NOBITS) end = std::max(end, (size_t)(section.sh_offset + section.sh_size));
  }
  return end;
}

// The library of an image's bytes; the file is gone once it is mapped.
void *open_bytes(const char *image, size_t bytes, std::string &message) {
  std::string path = std::string(P_tmpdir) + "/treadle-image-XXXXXX";
  int file = mkstemp(path.data());
  if (file < 0) return message = "no temporary file", nullptr;
  size_t written = 0;
  while (written < bytes) {
    ssize_t part = write(file, image + written, bytes - written);
    if (part <= 0) break;
    written += (size_t)part;
  }
  close(file);
  void *library = written == bytes ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) message = written == bytes ? dlerror() : "no room for a temporary file";
  unlink(path.c_str());
  return library;
}

CUresult load(Module **out, const char *image, std::string &message) {
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  if (strncmp(image, ELFMAG, SELFMAG)) return message = "not an ELF file", CUDA_ERROR_INVALID_IMAGE;
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof header);
  if (header.e_machine != EM_X86_64) return message = "not for this device", CUDA_ERROR_NO_BINARY_FOR_GPU;
  void *library = open_bytes(image, image_size(image, header), message);
  if (!library) return CUDA_ERROR_INVALID_IMAGE;
  if (!dlsym(library, "treadle_emu_anchor")) {
    dlclose(library);
    return message = "not made by the emulator", CUDA_ERROR_INVALID_IMAGE;
  }
  auto made = std::make_unique<Module>();
  made->library = library;
  *out = made.get();
  device().modules[*out] = std::move(made);
  return CUDA_SUCCESS;
}

void close_module(Module &module) {
  for (auto &[name, function] : module.functions) device().functions.erase(function.get());
  dlclose(module.library);
}

// Fills the caller's log, whose room and used length are option values.
void log_message(const std::string &message, unsigned count, const int *options, void **values) {
  char *text = nullptr;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == JIT_ERROR_LOG) text = (char *)values[i];
  }
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == JIT_INFO_LOG_SIZE) values[i] = nullptr;
    if (options[i] != JIT_ERROR_LOG_SIZE) continue;
    size_t length = text ? std::min((size_t)(unsigned)(uintptr_t)values[i], message.size()) : 0;
    if (length) memcpy(text, message.data(), length);
    values[i] = (void *)(uintptr_t)length;
  }
}

}  // namespace

void unload_all_modules() {
  for (auto &[handle, module] : device().modules) close_module(*module);
  device().modules.clear();
}

EXPORT CUresult cuModuleLoadDataEx(Module **out, const void *image, unsigned count, int *options, void **values) {
  return outside_capture([&] {
    std::string message;
    CUresult result = load(out, (const char *)image, message);
    log_message(message, count, options, values);
    return result;
  });
}

EXPORT CUresult cuModuleLoadData(Module **out, const void *image) {
  return cuModuleLoadDataEx(out, image, 0, nullptr, nullptr);
}

EXPORT CUresult cuModuleUnload(Module *module) {
  return in_context([&] {
    auto found = device().modules.find(module);
    if (found == device().modules.end()) return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = drain();
    close_module(*module);
    device().modules.erase(found);
    return result;
  });
}

EXPORT CUresult cuModuleGetFunction(Function **out, Module *module, const char *name) {
  return in_context([&] {
    if (!device().modules.count(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (!dlsym(module->library, (std::string("treadle_emu_enter_") + name).c_str())) return CUDA_ERROR_NOT_FOUND;
    std::unique_ptr<Function> &slot = module->functions[name];
    if (!slot) slot = std::make_unique<Function>(Function{module, name, WITHOUT_WISH});
    *out = slot.get();
    device().functions.insert(*out);
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, Function *function) {
  return in_context([&] {
    if (!device().functions.count(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute < FUNCTION_THREADS || attribute > FUNCTION_DYNAMIC) return CUDA_ERROR_INVALID_VALUE;
    int version = 10 * driver().major + driver().minor;
    switch (attribute) {
      case FUNCTION_THREADS: *value = 1024; break;
      case FUNCTION_PTX: case FUNCTION_BINARY: *value = version; break;
      case FUNCTION_DYNAMIC: *value = function->max_dynamic_shared; break;
      default: *value = 0;  // registers, local memory and the like, which the emulator has none of
    }
    return CUDA_SUCCESS;
  });
}

EXPORT CUresult cuFuncSetAttribute(Function *function, int attribute, int value) {
  return in_context([&] {
    if (!device().functions.count(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute != FUNCTION_DYNAMIC || value < 0 || value > shared_optin()) return CUDA_ERROR_INVALID_VALUE;
    function->max_dynamic_shared = value;
    return CUDA_SUCCESS;
  });
}
