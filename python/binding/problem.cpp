// SPDX-License-Identifier: Apache-2.0
#include "problem.hpp"

#include <cstddef>
#include <cstring>

#include "errors.hpp"

namespace sluice_binding {
namespace {

using sluice::Operand;

constexpr std::size_t offset_of(Operand id) {
  return sizeof(std::size_t) + static_cast<std::size_t>(id) * sizeof(void*);
}
#define SLUICE_MATRIX(id, member, shape, dtype, layout) \
  static_assert(offsetof(sluice_operands, member) == offset_of(Operand::id));
#define SLUICE_VECTOR(id, member, shape, dtype) \
  static_assert(offsetof(sluice_operands, member) == offset_of(Operand::id));
#include "core/operands.inc"

}  // namespace

const sluice_problem& new_problem() {
  static const sluice_problem made = [] {
    sluice_problem problem;
    std::memset(&problem, 0, sizeof(problem));
    sluice_error error{};
    check(sluice_problem_init(&problem, sizeof(problem), &error), error);
    problem.weights_static = 0;
    return problem;
  }();
  return made;
}

void set_operand(sluice_operands& operands, Operand id, void* data) {
  std::memcpy(reinterpret_cast<char*>(&operands) + offset_of(id), &data, sizeof(data));
}

}  // namespace sluice_binding
