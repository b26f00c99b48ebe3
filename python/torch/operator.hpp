// SPDX-License-Identifier: Apache-2.0
// Operator: a function as the operator that a schema names. A schema has the gate's parameters one
// by one, the function one GateArguments.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "call.hpp"

namespace sluice_torch {

/// A parameter as arguments of a schema.
template <class Parameter>
struct Flat {
  using Arguments = std::tuple<Parameter>;
};
template <>
struct Flat<const GateArguments&> {
  using Arguments =
      std::tuple<std::int64_t, double, const std::optional<double>&, double, double, double>;
};
template <class... Parameters>
using FlatArguments =
    decltype(std::tuple_cat(std::declval<typename Flat<Parameters>::Arguments>()...));

/// Counts a write to an argument; what is no tensor is not written.
inline void count_write(const MaybeTensor& tensor) {
  if (tensor) count_write(*tensor);
}
template <class Other>
void count_write(const Other& /*not written*/) {}

/// Adds an argument to the tensors, where it is one.
inline void add_tensor(std::vector<Tensor>& tensors, const Tensor& tensor) {
  if (tensor.defined()) tensors.push_back(tensor);
}
inline void add_tensor(std::vector<Tensor>& tensors, const MaybeTensor& tensor) {
  if (tensor) add_tensor(tensors, *tensor);
}
template <class Other>
void add_tensor(std::vector<Tensor>& /*tensors*/, const Other& /*no tensor*/) {}

template <auto kFunction, std::size_t kOutputs, class Arguments>
class Flattened;
template <class Result, class... Parameters, Result (*kFunction)(Parameters...),
          std::size_t kOutputs, class... Arguments>
class Flattened<kFunction, kOutputs, std::tuple<Arguments...>> {
 public:
  static Result run(Arguments... arguments) {
    // A count costs the host a microsecond a tensor, the question before it eight in all.
    if (kOutputs > 0 && aoti_torch_grad_mode_is_enabled()) {
      std::vector<Tensor> tensors;
      (add_tensor(tensors, arguments), ...);
      refuse_gradients(tensors);
      std::size_t index = 0;
      ((index++ + kOutputs >= sizeof...(Arguments) ? count_write(arguments) : void()), ...);
    }
    return call(std::tie(arguments...), std::index_sequence_for<Parameters...>());
  }

 private:
  // The gate's index, or that behind the last.
  static constexpr std::array kIsGate = {std::is_same_v<Parameters, const GateArguments&>...};
  static constexpr std::size_t kGate =
      std::find(kIsGate.begin(), kIsGate.end(), true) - kIsGate.begin();
  static constexpr std::size_t kMore = sizeof...(Arguments) - sizeof...(Parameters);

  template <class All, std::size_t... kIndices>
  static Result call(const All& all, std::index_sequence<kIndices...> /*of parameters*/) {
    return kFunction(parameter<kIndices>(all)...);
  }

  template <std::size_t kIndex, class All>
  static decltype(auto) parameter(const All& all) {
    if constexpr (kIndex == kGate) {
      return gate(all, std::make_index_sequence<kMore + 1>());
    } else {
      return std::get<kIndex + (kIndex > kGate ? kMore : 0)>(all);
    }
  }

  template <class All, std::size_t... kMembers>
  static GateArguments gate(const All& all, std::index_sequence<kMembers...> /*of the gate*/) {
    return {std::get<kGate + kMembers>(all)...};
  }
};

/// `run` has the arguments of kFunction's schema. The last kOutputs are what an .out form writes:
/// they are counted as written where gradients are recorded, and no argument may want one then.
template <auto kFunction, std::size_t kOutputs = 0>
class Operator;
template <class Result, class... Parameters, Result (*kFunction)(Parameters...),
          std::size_t kOutputs>
class Operator<kFunction, kOutputs>
    : public Flattened<kFunction, kOutputs, FlatArguments<Parameters...>> {};

}  // namespace sluice_torch
