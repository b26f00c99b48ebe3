// SPDX-License-Identifier: Apache-2.0
// The handlers of XLA's foreign function interface, one a platform: from buffers to one sluice_run.
// Which operand a buffer is, is an attribute; shapes, derivatives and batching are
// python/src/sluice/jax.py's, which registers them.
#include <sluice/sluice.h>
#include <xla/ffi/api/ffi.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <sluice/operands.hpp>
#include <stdexcept>
#include <string>

#include "binding/errors.hpp"
#include "binding/place.hpp"
#include "binding/plan_cache.hpp"
#include "binding/problem.hpp"
#include "workspace.hpp"

namespace sluice_jax {

/// What a call's attributes say of its problem, whose layouts are contiguous: one member each, in
/// their order below.
struct Attributes {
  std::int32_t op;
  std::int64_t m, d, h;
  std::int32_t x_dtype, w_dtype;
  std::int32_t activation;
  float alpha, limit, up_offset, gate_multiplier, output_multiplier;
  xla::ffi::Span<const std::int32_t> operands;  ///< Operand of each argument, then of each result
};

}  // namespace sluice_jax

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    sluice_jax::Attributes, xla::ffi::StructMember<std::int32_t>("op"),
    xla::ffi::StructMember<std::int64_t>("m"), xla::ffi::StructMember<std::int64_t>("d"),
    xla::ffi::StructMember<std::int64_t>("h"), xla::ffi::StructMember<std::int32_t>("x_dtype"),
    xla::ffi::StructMember<std::int32_t>("w_dtype"),
    xla::ffi::StructMember<std::int32_t>("activation"), xla::ffi::StructMember<float>("alpha"),
    xla::ffi::StructMember<float>("limit"), xla::ffi::StructMember<float>("up_offset"),
    xla::ffi::StructMember<float>("gate_multiplier"),
    xla::ffi::StructMember<float>("output_multiplier"),
    xla::ffi::StructMember<xla::ffi::Span<const std::int32_t>>("operands"));

namespace sluice_jax {
namespace {

namespace ffi = xla::ffi;
using ll = long long;
using sluice::Operand;
using sluice_binding::Prepared;
using sluice_binding::refuse;

// XLA aligns buffers to 16 bytes and more; the kernels ask for no more.
constexpr std::uintptr_t kBestAlignment = 16;

sluice_dtype dtype_of(const char* name, ffi::DataType type) {
  switch (type) {
    case ffi::BF16:
      return SLUICE_BF16;
    case ffi::F16:
      return SLUICE_FP16;
    case ffi::F32:
      return SLUICE_FP32;
    case ffi::F64:
      return SLUICE_FP64;
    default:
      refuse(name, "expected bfloat16, float16, float32 or float64");
  }
}

class Call {
 public:
  Call(const Place& place, const Attributes& attributes) : place_(place), attributes_(attributes) {
    std::memcpy(&problem_, &sluice_binding::new_problem(), sizeof(problem_));
    problem_.op = attributes.op;
    problem_.m = attributes.m;
    problem_.d = attributes.d;
    problem_.h = attributes.h;
    problem_.x_dtype = problem_.y_dtype = attributes.x_dtype;
    problem_.w_dtype = problem_.dw_dtype = attributes.w_dtype;
    problem_.gate = {attributes.activation,      attributes.alpha,
                     attributes.limit,           attributes.up_offset,
                     attributes.gate_multiplier, attributes.output_multiplier};
    operands_.struct_size = sizeof(operands_);
  }

  // The next buffer; the attribute says which operand it is.
  void bind(const ffi::AnyBuffer& buffer, bool written) {
    if (count_ >= attributes_.operands.size()) throw std::logic_error("a buffer without operand");
    const auto id = static_cast<Operand>(attributes_.operands[count_]);
    if (static_cast<std::size_t>(id) >= bound_.size()) throw std::logic_error("no such operand");
    bound_[count_++] = {id, buffer, written};
    sluice_binding::set_operand(operands_, id, buffer.untyped_data());
    addresses_ |= reinterpret_cast<std::uintptr_t>(buffer.untyped_data());
  }

  // Plans, and holds every buffer against the plan's wishes.
  const Prepared& prepare() {
    const sluice_operands& o = operands_;
    const bool saves = problem_.op == SLUICE_GATE_UP || problem_.op == SLUICE_MLP;
    problem_.bias_gate_up = o.b_gate || o.b_up || o.db_gate || o.db_up ? 1 : 0;
    problem_.bias_down = o.b_down || o.db_down ? 1 : 0;
    problem_.residual = o.residual ? SLUICE_RESIDUAL_OPERAND : SLUICE_RESIDUAL_NONE;
    problem_.save_g_u = saves && o.g ? 1 : 0;
    problem_.recompute = problem_.op == SLUICE_MLP_GRAD && !o.g ? 1 : 0;
    if (place_.cuda && operands_.w_gate != nullptr && operands_.w_gate == operands_.w_up) {
      refuse("w_up", "expected another buffer than w_gate's: on a GPU they may not be one");
    }
    problem_.alignment_bytes = static_cast<std::int64_t>(addresses_ & (~addresses_ + 1));
    const Prepared& prepared = sluice_binding::prepare(problem_, place_, 0, nullptr);
    for (std::size_t i = 0; i < count_; ++i) check(prepared, bound_[i]);
    return prepared;
  }

  [[nodiscard]] const sluice_operands& operands() const { return operands_; }

 private:
  struct Bound {
    Operand id{};
    ffi::AnyBuffer buffer{nullptr};
    bool written = false;
  };

  static void check(const Prepared& prepared, const Bound& bound) {
    const sluice_operand_spec& wanted = prepared.operands[static_cast<std::size_t>(bound.id)];
    const auto sizes = bound.buffer.dimensions();
    if (sizes.size() == 0) refuse(wanted.name, "expected at least one dimension, got a scalar");
    const std::int64_t cols = sizes.back();
    std::int64_t rows = 1;
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) rows *= sizes[i];
    if (rows != wanted.rows || cols != wanted.cols) {
      refuse(wanted.name, "expected shape [%lld, %lld], got [%lld, %lld]", ll{wanted.rows},
             ll{wanted.cols}, ll{rows}, ll{cols});
    }
    const sluice_dtype dtype = dtype_of(wanted.name, bound.buffer.element_type());
    if (dtype != wanted.dtype) {
      refuse(wanted.name, "expected %s, got %s", sluice_dtype_name(wanted.dtype),
             sluice_dtype_name(dtype));
    }
    if (wanted.access == SLUICE_UNUSED || bound.written != (wanted.access != SLUICE_READ)) {
      throw std::logic_error(std::string(wanted.name) + ": bound as what it is not");
    }
  }

  Place place_;
  const Attributes& attributes_;
  sluice_problem problem_;
  sluice_operands operands_{};
  std::array<Bound, sluice::kOperandCount> bound_;
  std::size_t count_ = 0;
  std::uintptr_t addresses_ = kBestAlignment;
};

// `run(plan, operands, bytes)` on the buffers; exceptions as XLA's codes.
template <class Run>
ffi::Error call(const Place& place, const Attributes& attributes, const ffi::RemainingArgs& args,
                const ffi::RemainingRets& results, const Run& run) {
  using ffi::ErrorCode;
  try {
    Call made(place, attributes);
    for (std::size_t i = 0; i < args.size(); ++i) {
      made.bind(args.get<ffi::AnyBuffer>(i).value(), false);
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      made.bind(*results.get<ffi::AnyBuffer>(i).value(), true);
    }
    const Prepared& prepared = made.prepare();
    run(prepared.plan, made.operands(), prepared.workspace_bytes);
    return ffi::Error::Success();
  } catch (const std::invalid_argument& error) {
    return {ErrorCode::kInvalidArgument, error.what()};
  } catch (const sluice_binding::Unsupported& error) {
    return {ErrorCode::kUnimplemented, error.what()};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::kResourceExhausted, "sluice: out of memory"};
  } catch (const std::exception& error) {
    return {ErrorCode::kInternal, error.what()};
  }
}

ffi::Error call_on_cpu(ffi::RemainingArgs args, ffi::RemainingRets results,
                       const Attributes& attributes) {
  return call(Place{}, attributes, args, results,
              [](const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes) {
                run_on_cpu(plan, operands, bytes);
              });
}

ffi::Error call_on_cuda(void* stream, std::int32_t device, ffi::ScratchAllocator scratch,
                        ffi::RemainingArgs args, ffi::RemainingRets results,
                        const Attributes& attributes) {
  if (device < 0 || device >= sluice_binding::kMaxDevices) {
    return {ffi::ErrorCode::kInvalidArgument, "device: its number is out of range"};
  }
  const Place place{.cuda = true, .index = device};
  return call(place, attributes, args, results,
              [&](const sluice_plan& plan, const sluice_operands& operands, std::size_t bytes) {
                run_on_cuda(plan, operands, bytes, place, stream, scratch);
              });
}

}  // namespace
}  // namespace sluice_jax

// What the library exports.
extern "C" {
__attribute__((visibility("default"))) XLA_FFI_Error* sluice_jax_cpu(XLA_FFI_CallFrame*);
__attribute__((visibility("default"))) XLA_FFI_Error* sluice_jax_cuda(XLA_FFI_CallFrame*);
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    sluice_jax_cpu, sluice_jax::call_on_cpu,
    xla::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs<sluice_jax::Attributes>());

// Not declared compatible with command buffers, so that XLA captures no call in a graph: its
// scratch is XLA's again when the call returns, and another operation's when the graph is replayed.
XLA_FFI_DEFINE_HANDLER_SYMBOL(sluice_jax_cuda, sluice_jax::call_on_cuda,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<void*>>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Ctx<xla::ffi::ScratchAllocator>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs<sluice_jax::Attributes>());
