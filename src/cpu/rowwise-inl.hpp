// SPDX-License-Identifier: Apache-2.0
// Conversions and elementwise steps on contiguous rows. Included once per SIMD target.
#if defined(SLUICE_CPU_ROWWISE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_ROWWISE_INL
#undef SLUICE_CPU_ROWWISE_INL
#else
#define SLUICE_CPU_ROWWISE_INL
#endif

#include "cpu/kernels.hpp"
#include "cpu/vector-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {

template <class T>
void widen(const void* in, std::int64_t n, float* out) {
  const F32 d;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(load<T>(d, element<T>(in, i)), d, out + i);
  if (i < n) store_n<float>(d, load_n<T>(d, element<T>(in, i), n - i), out + i, n - i);
}

template <class T>
void narrow(const float* in, std::int64_t n, void* out) {
  const F32 d;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store<T>(d, hn::LoadU(d, in + i), element<T>(out, i));
  if (i < n) store_n<T>(d, load_n<float>(d, in + i, n - i), element<T>(out, i), n - i);
}

inline void add(const float* in, std::int64_t n, float* inout) {
  const F32 d;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, inout + i), hn::LoadU(d, in + i)), d, inout + i);
  }
  for (; i < n; ++i) inout[i] += in[i];
}

inline void scale(const float* in, float factor, const float* weight, float offset, std::int64_t n,
                  float* out) {
  const F32 d;
  const auto f = hn::Set(d, factor);
  const auto o = hn::Set(d, offset);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto w = hn::Add(hn::LoadU(d, weight + i), o);
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, in + i), f), w), d, out + i);
  }
  for (; i < n; ++i) out[i] = (in[i] * factor) * (weight[i] + offset);
}

inline const RowKernels& row_table() {
  static constexpr RowKernels kTable = {
      {widen<math::BF16>, widen<math::F16>, widen<float>},
      {narrow<math::BF16>, narrow<math::F16>, narrow<float>},
      add,
      scale,
  };
  return kTable;
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
