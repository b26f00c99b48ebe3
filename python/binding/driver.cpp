// SPDX-License-Identifier: Apache-2.0
#include "driver.hpp"

#include <dlfcn.h>

#include <new>
#include <stdexcept>
#include <string>

namespace sluice_binding {
namespace {

// The driver's functions in the versions named, with the types of cuda.h as C has them.
constexpr int kOutOfMemory = 2;         // CUDA_ERROR_OUT_OF_MEMORY
constexpr int kNoContext = 201;         // CUDA_ERROR_INVALID_CONTEXT
constexpr int kCaptureActive = 1;       // CU_STREAM_CAPTURE_STATUS_ACTIVE
constexpr int kRelaxed = 2;             // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr unsigned kNoSync = 1;         // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
constexpr unsigned kMoveReference = 1;  // CU_GRAPH_USER_OBJECT_MOVE

struct Driver {
  int (*capture_info)(void* stream, int* status, std::uint64_t* id, void** graph, void*, void*);
  int (*exchange_capture_mode)(int* mode);
  int (*allocate)(unsigned long long* address, std::size_t bytes);
  int (*retain_context)(void** context, int device);
  int (*set_context)(void* context);
  int (*create_object)(void** object, void* argument, void (*destroy)(void*), unsigned references,
                       unsigned flags);
  int (*retain_object)(void* graph, void* object, unsigned references, unsigned flags);
};

template <class Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library == nullptr ? nullptr : dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("no CUDA driver with ") + name);
}

const Driver& driver() {
  static const Driver found = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    Driver d{};
    look_up(library, "cuStreamGetCaptureInfo_v2", d.capture_info);
    look_up(library, "cuThreadExchangeStreamCaptureMode", d.exchange_capture_mode);
    look_up(library, "cuMemAlloc_v2", d.allocate);
    look_up(library, "cuDevicePrimaryCtxRetain", d.retain_context);
    look_up(library, "cuCtxSetCurrent", d.set_context);
    look_up(library, "cuUserObjectCreate", d.create_object);
    look_up(library, "cuGraphRetainUserObject", d.retain_object);
    return d;
  }();
  return found;
}

void expect(int code, const char* call) {
  if (code == kOutOfMemory) throw std::bad_alloc();
  if (code != 0) {
    throw std::runtime_error(std::string(call) + " returned CUDA error " + std::to_string(code));
  }
}

// Lets this thread allocate while some stream captures.
class RelaxedCapture {
 public:
  RelaxedCapture() { expect(driver().exchange_capture_mode(&mode_), "exchange of capture modes"); }
  ~RelaxedCapture() { static_cast<void>(driver().exchange_capture_mode(&mode_)); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_ = kRelaxed;
};

}  // namespace

Capture capture_of(void* stream) {
  int status = 0;
  Capture capture;
  // It fails on the default stream while another one captures; the launch will say so.
  const int code =
      driver().capture_info(stream, &status, &capture.id, &capture.graph, nullptr, nullptr);
  return code == 0 && status == kCaptureActive ? capture : Capture{};
}

void* allocate_for_good(const Place& place, std::size_t bytes) {
  const RelaxedCapture relaxed;
  unsigned long long address = 0;
  int code = driver().allocate(&address, bytes);
  if (code == kNoContext) {  // a thread that has called nothing of CUDA yet
    void* context = nullptr;
    expect(driver().retain_context(&context, place.index), "cuDevicePrimaryCtxRetain");
    expect(driver().set_context(context), "cuCtxSetCurrent");
    code = driver().allocate(&address, bytes);
  }
  expect(code, "cuMemAlloc");
  return reinterpret_cast<void*>(address);
}

void at_end_of(void* graph, void (*function)(void*), void* argument) {
  void* object = nullptr;
  expect(driver().create_object(&object, argument, function, 1, kNoSync), "cuUserObjectCreate");
  expect(driver().retain_object(graph, object, 1, kMoveReference), "cuGraphRetainUserObject");
}

}  // namespace sluice_binding
