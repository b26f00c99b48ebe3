// SPDX-License-Identifier: Apache-2.0
// The functions of the operators of torch.ops.sluice, the same for CPU and CUDA. Schemas:
// schemas.cpp; shapes, fakes and autograd: python/src/sluice/torch_operators.py.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "binding/errors.hpp"
#include "call.hpp"
#include "operator.hpp"

namespace sluice_torch {
namespace {

using sluice_binding::refuse;
using std::int64_t;

// [H, D] as one matrix of rows, also where it comes as blocks of rows.
int64_t hidden_of(const Tensor& w_gate) { return rows_of("w_gate", w_gate); }

// What gate_up, mlp and mlp_grad have in common.
Call call_with_gate_up(sluice_op op, const Tensor& x, const Tensor& w_gate, const Tensor& w_up,
                       const MaybeTensor& b_gate, const MaybeTensor& b_up,
                       const GateArguments& gate) {
  Call call(op);
  const Bound& in = call.in(Operand::kX, x);
  const Bound& weight = call.in(Operand::kWGate, w_gate);
  call.dims(in.rows, in.cols, weight.rows).types(in.dtype, weight.dtype).gate(gate);
  call.in(Operand::kWUp, w_up);
  if (b_gate.has_value() != b_up.has_value()) {
    refuse(b_gate ? "b_up" : "b_gate", "got none, wanted both biases of gate and up or neither");
  }
  call.problem().bias_gate_up = b_gate ? 1 : 0;
  call.in(Operand::kBGate, b_gate);
  call.in(Operand::kBUp, b_up);
  return call;
}

void add_residual(Call& call, const MaybeTensor& residual) {
  if (!residual) return;
  call.problem().residual = SLUICE_RESIDUAL_OPERAND;
  call.in(Operand::kResidual, residual);
}

// A result that is not asked for is a tensor without elements: a schema has no optional results
// that every compiler of Torch takes. This is its operand.
MaybeTensor unless_empty(bool asked_for, const Tensor& tensor) {
  return asked_for ? MaybeTensor(tensor) : MaybeTensor();
}

// y summed over ranks, the next block's RMSNorm of it (no elements where none is asked for), and
// the bytes that each peer buffer needs: where they are more than those given, nothing is written.
using Reduced = std::tuple<Tensor, Tensor, int64_t>;

void check_sum(const MaybeTensor& x_residual, const MaybeTensor& x_sum) {
  if (x_sum && !x_residual) {
    refuse("x_sum", "got one without x_residual: the sum would be x itself");
  }
}

// Runs the call for y summed over ranks.
Reduced run_reduced(Call& call, const Tensor& y, const Ranks& ranks, const MaybeTensor& next_norm,
                    double next_eps, double next_weight_offset) {
  Tensor y_norm = next_norm ? empty_like(y) : empty_vector(y, 0);
  if (next_norm) {
    sluice_norm& norm = call.problem().reduce.norm;
    norm.enabled = 1;
    norm.eps = static_cast<float>(next_eps);
    norm.weight_offset = static_cast<float>(next_weight_offset);
    call.in(Operand::kNextNormWeight, *next_norm);
    call.out(Operand::kYNorm, y_norm);
  }
  return {y, y_norm, call.run(ranks)};
}

// --- gate_up: h [.., H] from x [.., D]

void gate_up_run(const Tensor& x, const Tensor& w_gate, const Tensor& w_up,
                 const MaybeTensor& b_gate, const MaybeTensor& b_up, const GateArguments& gate,
                 bool weights_static, const Tensor& h, const MaybeTensor& g, const MaybeTensor& u) {
  Call call = call_with_gate_up(SLUICE_GATE_UP, x, w_gate, w_up, b_gate, b_up, gate);
  call.problem().weights_static = weights_static ? 1 : 0;
  call.problem().save_g_u = g ? 1 : 0;
  call.out(Operand::kH, h);
  call.out(Operand::kG, g);
  call.out(Operand::kU, u);
  call.run();
}

void gate_up_out(const Tensor& x, const Tensor& w_gate, const Tensor& w_up,
                 const MaybeTensor& b_gate, const MaybeTensor& b_up, const GateArguments& gate,
                 bool weights_static, const Tensor& out) {
  gate_up_run(x, w_gate, w_up, b_gate, b_up, gate, weights_static, out, {}, {});
}

Tensor gate_up(const Tensor& x, const Tensor& w_gate, const Tensor& w_up, const MaybeTensor& b_gate,
               const MaybeTensor& b_up, const GateArguments& gate, bool weights_static) {
  Tensor h = empty_with_width(x, hidden_of(w_gate));
  gate_up_run(x, w_gate, w_up, b_gate, b_up, gate, weights_static, h, {}, {});
  return h;
}

std::tuple<Tensor, Tensor, Tensor> gate_up_save(const Tensor& x, const Tensor& w_gate,
                                                const Tensor& w_up, const MaybeTensor& b_gate,
                                                const MaybeTensor& b_up, const GateArguments& gate,
                                                bool recompute) {
  const int64_t hidden = hidden_of(w_gate);
  Tensor h = empty_with_width(x, hidden);
  Tensor g = recompute ? empty_vector(x, 0) : empty_with_width(x, hidden);
  Tensor u = recompute ? empty_vector(x, 0) : empty_with_width(x, hidden);
  gate_up_run(x, w_gate, w_up, b_gate, b_up, gate, false, h, unless_empty(!recompute, g),
              unless_empty(!recompute, u));
  return {h, g, u};
}

// --- down: y [.., D] from h [.., H]

Call call_of_down(const Tensor& h, const Tensor& w_down, const MaybeTensor& b_down,
                  const MaybeTensor& residual, bool weights_static, const Tensor& y) {
  Call call(SLUICE_DOWN);
  const Bound& in = call.in(Operand::kH, h);
  const Bound& weight = call.in(Operand::kWDown, w_down);
  call.dims(in.rows, weight.rows, in.cols).types(in.dtype, weight.dtype);
  call.problem().y_dtype = call.out(Operand::kY, y).dtype;
  call.problem().bias_down = b_down ? 1 : 0;
  call.problem().weights_static = weights_static ? 1 : 0;
  add_residual(call, residual);
  call.in(Operand::kBDown, b_down);
  return call;
}

void down_out(const Tensor& h, const Tensor& w_down, const MaybeTensor& b_down,
              const MaybeTensor& residual, bool weights_static, const Tensor& out) {
  call_of_down(h, w_down, b_down, residual, weights_static, out).run();
}

Tensor down(const Tensor& h, const Tensor& w_down, const MaybeTensor& b_down,
            const MaybeTensor& residual, bool weights_static) {
  Tensor y = empty_with_width(h, rows_of("w_down", w_down));
  down_out(h, w_down, b_down, residual, weights_static, y);
  return y;
}

Reduced down_reduce(const Tensor& h, const Tensor& w_down, const MaybeTensor& b_down,
                    const MaybeTensor& residual, bool weights_static, int64_t rank,
                    const std::vector<int64_t>& peers, int64_t peer_bytes,
                    const MaybeTensor& next_norm, double next_eps, double next_weight_offset) {
  Tensor y = empty_with_width(h, rows_of("w_down", w_down));
  Call call = call_of_down(h, w_down, b_down, residual, weights_static, y);
  return run_reduced(call, y, {rank, peers, peer_bytes}, next_norm, next_eps, next_weight_offset);
}

// --- mlp: y [.., D] from x [.., D]

Call call_of_mlp(const Tensor& x, const Tensor& w_gate, const Tensor& w_up, const Tensor& w_down,
                 const MaybeTensor& b_gate, const MaybeTensor& b_up, const MaybeTensor& b_down,
                 const MaybeTensor& residual, const GateArguments& gate, bool weights_static,
                 const Tensor& y, const MaybeTensor& g, const MaybeTensor& u) {
  Call call = call_with_gate_up(SLUICE_MLP, x, w_gate, w_up, b_gate, b_up, gate);
  call.problem().y_dtype = call.out(Operand::kY, y).dtype;
  call.problem().bias_down = b_down ? 1 : 0;
  call.problem().weights_static = weights_static ? 1 : 0;
  call.problem().save_g_u = g ? 1 : 0;
  add_residual(call, residual);
  call.in(Operand::kWDown, w_down);
  call.in(Operand::kBDown, b_down);
  call.out(Operand::kG, g);
  call.out(Operand::kU, u);
  return call;
}

void mlp_out(const Tensor& x, const Tensor& w_gate, const Tensor& w_up, const Tensor& w_down,
             const MaybeTensor& b_gate, const MaybeTensor& b_up, const MaybeTensor& b_down,
             const MaybeTensor& residual, const GateArguments& gate, bool weights_static,
             const Tensor& out) {
  call_of_mlp(x, w_gate, w_up, w_down, b_gate, b_up, b_down, residual, gate, weights_static, out,
              {}, {})
      .run();
}

Tensor mlp(const Tensor& x, const Tensor& w_gate, const Tensor& w_up, const Tensor& w_down,
           const MaybeTensor& b_gate, const MaybeTensor& b_up, const MaybeTensor& b_down,
           const MaybeTensor& residual, const GateArguments& gate, bool weights_static) {
  Tensor y = empty_like(x);
  mlp_out(x, w_gate, w_up, w_down, b_gate, b_up, b_down, residual, gate, weights_static, y);
  return y;
}

Reduced mlp_reduce(const Tensor& x, const Tensor& w_gate, const Tensor& w_up, const Tensor& w_down,
                   const MaybeTensor& b_gate, const MaybeTensor& b_up, const MaybeTensor& b_down,
                   const MaybeTensor& residual, const GateArguments& gate, bool weights_static,
                   int64_t rank, const std::vector<int64_t>& peers, int64_t peer_bytes,
                   const MaybeTensor& next_norm, double next_eps, double next_weight_offset) {
  Tensor y = empty_like(x);
  Call call = call_of_mlp(x, w_gate, w_up, w_down, b_gate, b_up, b_down, residual, gate,
                          weights_static, y, {}, {});
  return run_reduced(call, y, {rank, peers, peer_bytes}, next_norm, next_eps, next_weight_offset);
}

// Of x and the weights alone. Each argument left to its default costs the host some 0.1 us in
// Torch's parser, and mlp has eleven of them.
Tensor mlp_plain(const Tensor& x, const Tensor& w_gate, const Tensor& w_up, const Tensor& w_down) {
  return mlp(x, w_gate, w_up, w_down, {}, {}, {}, {}, {}, false);
}

std::tuple<Tensor, Tensor, Tensor> mlp_save(const Tensor& x, const Tensor& w_gate,
                                            const Tensor& w_up, const Tensor& w_down,
                                            const MaybeTensor& b_gate, const MaybeTensor& b_up,
                                            const MaybeTensor& b_down, const MaybeTensor& residual,
                                            const GateArguments& gate, bool recompute) {
  const int64_t hidden = hidden_of(w_gate);
  Tensor y = empty_like(x);
  Tensor g = recompute ? empty_vector(x, 0) : empty_with_width(x, hidden);
  Tensor u = recompute ? empty_vector(x, 0) : empty_with_width(x, hidden);
  call_of_mlp(x, w_gate, w_up, w_down, b_gate, b_up, b_down, residual, gate, false, y,
              unless_empty(!recompute, g), unless_empty(!recompute, u))
      .run();
  return {y, g, u};
}

// --- norm_mlp: y [.., D] from RMSNorm(x + x_residual); also the sum

Call call_of_norm_mlp(const Tensor& x, const Tensor& norm_weight, const Tensor& w_gate,
                      const Tensor& w_up, const Tensor& w_down, const MaybeTensor& x_residual,
                      const MaybeTensor& b_gate, const MaybeTensor& b_up, const MaybeTensor& b_down,
                      double eps, double weight_offset, bool add_sum, const GateArguments& gate,
                      bool weights_static, const Tensor& y, const MaybeTensor& x_sum) {
  check_sum(x_residual, x_sum);
  Call call = call_with_gate_up(SLUICE_MLP, x, w_gate, w_up, b_gate, b_up, gate);
  sluice_problem& problem = call.problem();
  problem.y_dtype = call.out(Operand::kY, y).dtype;
  problem.bias_down = b_down ? 1 : 0;
  problem.weights_static = weights_static ? 1 : 0;
  problem.norm.enabled = 1;
  problem.norm.add = x_residual ? 1 : 0;
  problem.norm.eps = static_cast<float>(eps);
  problem.norm.weight_offset = static_cast<float>(weight_offset);
  problem.residual = add_sum ? SLUICE_RESIDUAL_NORM_INPUT : SLUICE_RESIDUAL_NONE;
  call.in(Operand::kNormWeight, norm_weight);
  call.in(Operand::kXResidual, x_residual);
  call.in(Operand::kWDown, w_down);
  call.in(Operand::kBDown, b_down);
  call.out(Operand::kXSum, x_sum);
  return call;
}

void norm_mlp_out(const Tensor& x, const Tensor& norm_weight, const Tensor& w_gate,
                  const Tensor& w_up, const Tensor& w_down, const MaybeTensor& x_residual,
                  const MaybeTensor& b_gate, const MaybeTensor& b_up, const MaybeTensor& b_down,
                  double eps, double weight_offset, bool add_sum, const GateArguments& gate,
                  bool weights_static, const Tensor& out, const MaybeTensor& x_sum) {
  call_of_norm_mlp(x, norm_weight, w_gate, w_up, w_down, x_residual, b_gate, b_up, b_down, eps,
                   weight_offset, add_sum, gate, weights_static, out, x_sum)
      .run();
}

std::tuple<Tensor, Tensor> norm_mlp(const Tensor& x, const Tensor& norm_weight,
                                    const Tensor& w_gate, const Tensor& w_up, const Tensor& w_down,
                                    const MaybeTensor& x_residual, const MaybeTensor& b_gate,
                                    const MaybeTensor& b_up, const MaybeTensor& b_down, double eps,
                                    double weight_offset, bool add_sum, const GateArguments& gate,
                                    bool weights_static) {
  const bool adds = x_residual.has_value();
  Tensor y = empty_like(x);
  Tensor x_sum = adds ? empty_like(x) : empty_vector(x, 0);
  norm_mlp_out(x, norm_weight, w_gate, w_up, w_down, x_residual, b_gate, b_up, b_down, eps,
               weight_offset, add_sum, gate, weights_static, y, unless_empty(adds, x_sum));
  return {y, x_sum};
}

std::tuple<Tensor, Tensor, Tensor, int64_t> norm_mlp_reduce(
    const Tensor& x, const Tensor& norm_weight, const Tensor& w_gate, const Tensor& w_up,
    const Tensor& w_down, const MaybeTensor& x_residual, const MaybeTensor& b_gate,
    const MaybeTensor& b_up, const MaybeTensor& b_down, double eps, double weight_offset,
    bool add_sum, const GateArguments& gate, bool weights_static, int64_t rank,
    const std::vector<int64_t>& peers, int64_t peer_bytes, const MaybeTensor& next_norm,
    double next_eps, double next_weight_offset) {
  const bool adds = x_residual.has_value();
  Tensor y = empty_like(x);
  Tensor x_sum = adds ? empty_like(x) : empty_vector(x, 0);
  const MaybeTensor written = unless_empty(adds, x_sum);  // lives as long as the call
  Call call =
      call_of_norm_mlp(x, norm_weight, w_gate, w_up, w_down, x_residual, b_gate, b_up, b_down, eps,
                       weight_offset, add_sum, gate, weights_static, y, written);
  auto [sum, y_norm, wanted] =
      run_reduced(call, y, {rank, peers, peer_bytes}, next_norm, next_eps, next_weight_offset);
  return {sum, x_sum, y_norm, wanted};
}

// --- norm: n [.., D], RMSNorm of x + x_residual; also the sum

void norm_out(const Tensor& x, const Tensor& norm_weight, const MaybeTensor& x_residual, double eps,
              double weight_offset, const Tensor& out, const MaybeTensor& x_sum) {
  check_sum(x_residual, x_sum);
  Call call(SLUICE_NORM);
  const Bound& in = call.in(Operand::kX, x);
  const Bound& weight = call.in(Operand::kNormWeight, norm_weight);
  call.dims(in.rows, in.cols, 0).types(in.dtype, weight.dtype);
  sluice_problem& problem = call.problem();
  problem.y_dtype = call.out(Operand::kY, out).dtype;
  problem.norm.enabled = 1;
  problem.norm.add = x_residual ? 1 : 0;
  problem.norm.eps = static_cast<float>(eps);
  problem.norm.weight_offset = static_cast<float>(weight_offset);
  call.in(Operand::kXResidual, x_residual);
  call.out(Operand::kXSum, x_sum);
  call.run();
}

std::tuple<Tensor, Tensor> norm(const Tensor& x, const Tensor& norm_weight,
                                const MaybeTensor& x_residual, double eps, double weight_offset) {
  const bool adds = x_residual.has_value();
  Tensor n = empty_like(x);
  Tensor x_sum = adds ? empty_like(x) : empty_vector(x, 0);
  norm_out(x, norm_weight, x_residual, eps, weight_offset, n, unless_empty(adds, x_sum));
  return {n, x_sum};
}

// --- gate_mul: h [.., H] from g and u, and its gradient

void gate_mul_out(const Tensor& g, const Tensor& u, const GateArguments& gate, bool round_gate,
                  const Tensor& out) {
  Call call(SLUICE_GATE_MUL);
  const Bound& in = call.in(Operand::kG, g);
  call.dims(in.rows, 1, in.cols).types(in.dtype, in.dtype);
  call.gate(gate);
  call.problem().round_gate = round_gate ? 1 : 0;
  call.in(Operand::kU, u);
  call.out(Operand::kH, out);
  call.run();
}

Tensor gate_mul(const Tensor& g, const Tensor& u, const GateArguments& gate, bool round_gate) {
  Tensor h = empty_like(g);
  gate_mul_out(g, u, gate, round_gate, h);
  return h;
}

void gate_mul_grad_out(const Tensor& dh, const Tensor& g, const Tensor& u,
                       const GateArguments& gate, bool round_gate, const Tensor& dg,
                       const Tensor& du) {
  Call call(SLUICE_GATE_MUL_GRAD);
  const Bound& in = call.in(Operand::kG, g);
  call.dims(in.rows, 1, in.cols).types(in.dtype, in.dtype);
  call.gate(gate);
  call.problem().round_gate = round_gate ? 1 : 0;
  call.in(Operand::kDh, dh);
  call.in(Operand::kU, u);
  call.out(Operand::kDg, dg);
  call.out(Operand::kDu, du);
  call.run();
}

std::tuple<Tensor, Tensor> gate_mul_grad(const Tensor& dh, const Tensor& g, const Tensor& u,
                                         const GateArguments& gate, bool round_gate) {
  Tensor dg = empty_like(g);
  Tensor du = empty_like(g);
  gate_mul_grad_out(dh, g, u, gate, round_gate, dg, du);
  return {dg, du};
}

// --- gate_up_grad: dg, du and h from dy, with dh = dy·Wd

void gate_up_grad_out(const Tensor& dy, const Tensor& w_down, const Tensor& g, const Tensor& u,
                      const GateArguments& gate, const Tensor& dg, const Tensor& du,
                      const Tensor& h) {
  Call call(SLUICE_GATE_UP_GRAD);
  const Bound& from = call.in(Operand::kDy, dy);
  const Bound& saved = call.in(Operand::kG, g);
  const Bound& weight = call.in(Operand::kWDown, w_down);
  call.dims(from.rows, from.cols, saved.cols).types(saved.dtype, weight.dtype);
  call.problem().y_dtype = from.dtype;
  call.gate(gate);
  call.in(Operand::kU, u);
  call.out(Operand::kDg, dg);
  call.out(Operand::kDu, du);
  call.out(Operand::kH, h);
  call.run();
}

std::tuple<Tensor, Tensor, Tensor> gate_up_grad(const Tensor& dy, const Tensor& w_down,
                                                const Tensor& g, const Tensor& u,
                                                const GateArguments& gate) {
  Tensor dg = empty_like(g);
  Tensor du = empty_like(g);
  Tensor h = empty_like(g);
  gate_up_grad_out(dy, w_down, g, u, gate, dg, du, h);
  return {dg, du, h};
}

// --- mlp_grad: all gradients of mlp; g and u given, or recomputed from x

void mlp_grad_out(const Tensor& dy, const Tensor& x, const Tensor& w_gate, const Tensor& w_up,
                  const Tensor& w_down, const MaybeTensor& g, const MaybeTensor& u,
                  const MaybeTensor& b_gate, const MaybeTensor& b_up, const GateArguments& gate,
                  bool accumulate, const MaybeTensor& dx, const MaybeTensor& dw_gate,
                  const MaybeTensor& dw_up, const MaybeTensor& dw_down, const MaybeTensor& db_gate,
                  const MaybeTensor& db_up, const MaybeTensor& db_down) {
  const bool recompute = !g && !u;
  const MaybeTensor none;
  Call call = call_with_gate_up(SLUICE_MLP_GRAD, x, w_gate, w_up, recompute ? b_gate : none,
                                recompute ? b_up : none, gate);
  call.problem().y_dtype = call.in(Operand::kDy, dy).dtype;
  const std::array dw = {call.out(Operand::kDwGate, dw_gate), call.out(Operand::kDwUp, dw_up),
                         call.out(Operand::kDwDown, dw_down)};
  const auto given = std::find_if(dw.begin(), dw.end(), [](const Bound* one) { return one; });
  call.problem().dw_dtype = given != dw.end() ? (*given)->dtype : call.problem().w_dtype;
  call.problem().recompute = recompute ? 1 : 0;
  call.problem().accumulate_dw = accumulate ? 1 : 0;
  call.problem().bias_gate_up = b_gate || b_up || db_gate || db_up ? 1 : 0;
  call.problem().bias_down = db_down ? 1 : 0;
  call.in(Operand::kWDown, w_down);
  call.in(Operand::kG, g);
  call.in(Operand::kU, u);
  call.out(Operand::kDx, dx);
  call.out(Operand::kDbGate, db_gate);
  call.out(Operand::kDbUp, db_up);
  call.out(Operand::kDbDown, db_down);
  call.run();
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> mlp_grad(
    const Tensor& dy, const Tensor& x, const Tensor& w_gate, const Tensor& w_up,
    const Tensor& w_down, const MaybeTensor& g, const MaybeTensor& u, const MaybeTensor& b_gate,
    const MaybeTensor& b_up, const GateArguments& gate, bool need_x, bool need_weights,
    bool need_bias_gate_up, bool need_bias_down) {
  const auto none = [&] { return empty_vector(w_gate, 0); };
  Tensor dx = need_x ? empty_like(x) : none();
  Tensor dw_gate = need_weights ? empty_like(w_gate) : none();
  Tensor dw_up = need_weights ? empty_like(w_up) : none();
  Tensor dw_down = need_weights ? empty_like(w_down) : none();
  Tensor db_gate = need_bias_gate_up ? empty_vector(w_gate, hidden_of(w_gate)) : none();
  Tensor db_up = need_bias_gate_up ? empty_vector(w_gate, hidden_of(w_gate)) : none();
  Tensor db_down = need_bias_down ? empty_vector(w_down, rows_of("w_down", w_down)) : none();
  mlp_grad_out(dy, x, w_gate, w_up, w_down, g, u, b_gate, b_up, gate, false,
               unless_empty(need_x, dx), unless_empty(need_weights, dw_gate),
               unless_empty(need_weights, dw_up), unless_empty(need_weights, dw_down),
               unless_empty(need_bias_gate_up, db_gate), unless_empty(need_bias_gate_up, db_up),
               unless_empty(need_bias_down, db_down));
  return {dx, dw_gate, dw_up, dw_down, db_gate, db_up, db_down};
}

// One registration for each backend: the functions look at where their tensors are.
void implement(torch::stable::detail::StableLibrary& library) {
  library.impl("gate_up", TORCH_BOX(&Operator<&gate_up>::run));
  library.impl("gate_up.out", TORCH_BOX((&Operator<&gate_up_out, 1>::run)));
  library.impl("gate_up_save", TORCH_BOX(&Operator<&gate_up_save>::run));
  library.impl("down", TORCH_BOX(&Operator<&down>::run));
  library.impl("down.out", TORCH_BOX((&Operator<&down_out, 1>::run)));
  library.impl("mlp", TORCH_BOX(&Operator<&mlp>::run));
  library.impl("mlp.plain", TORCH_BOX(&Operator<&mlp_plain>::run));
  library.impl("mlp.out", TORCH_BOX((&Operator<&mlp_out, 1>::run)));
  library.impl("mlp_save", TORCH_BOX(&Operator<&mlp_save>::run));
  library.impl("norm_mlp", TORCH_BOX(&Operator<&norm_mlp>::run));
  library.impl("norm_mlp.out", TORCH_BOX((&Operator<&norm_mlp_out, 2>::run)));
  library.impl("norm", TORCH_BOX(&Operator<&norm>::run));
  library.impl("norm.out", TORCH_BOX((&Operator<&norm_out, 2>::run)));
  library.impl("gate_mul", TORCH_BOX(&Operator<&gate_mul>::run));
  library.impl("gate_mul.out", TORCH_BOX((&Operator<&gate_mul_out, 1>::run)));
  library.impl("gate_mul_grad", TORCH_BOX(&Operator<&gate_mul_grad>::run));
  library.impl("gate_mul_grad.out", TORCH_BOX((&Operator<&gate_mul_grad_out, 2>::run)));
  library.impl("gate_up_grad", TORCH_BOX(&Operator<&gate_up_grad>::run));
  library.impl("gate_up_grad.out", TORCH_BOX((&Operator<&gate_up_grad_out, 3>::run)));
  library.impl("mlp_grad", TORCH_BOX(&Operator<&mlp_grad>::run));
  library.impl("mlp_grad.out", TORCH_BOX((&Operator<&mlp_grad_out, 7>::run)));
  library.impl("_down_reduce", TORCH_BOX(&Operator<&down_reduce>::run));
  library.impl("_mlp_reduce", TORCH_BOX(&Operator<&mlp_reduce>::run));
  library.impl("_norm_mlp_reduce", TORCH_BOX(&Operator<&norm_mlp_reduce>::run));
}

}  // namespace
}  // namespace sluice_torch

STABLE_TORCH_LIBRARY_IMPL(sluice, CPU, library) { sluice_torch::implement(library); }
STABLE_TORCH_LIBRARY_IMPL(sluice, CUDA, library) { sluice_torch::implement(library); }
