// SPDX-License-Identifier: Apache-2.0
// The schemas of torch.ops.sluice; ops.py documents each operator.
#include <torch/csrc/stable/library.h>

#include <string>

STABLE_TORCH_LIBRARY_FRAGMENT(sluice, library) {
  const std::string gate =
      "int activation=0, float alpha=1.0, float? limit=None, float up_offset=0.0, "
      "float gate_multiplier=1.0, float output_multiplier=1.0";
  const std::string gate_up =
      "Tensor x, Tensor w_gate, Tensor w_up, Tensor? b_gate=None, Tensor? b_up=None, " + gate;
  const std::string down =
      "Tensor h, Tensor w_down, Tensor? b_down=None, Tensor? residual=None, "
      "bool weights_static=False";
  const std::string mlp =
      "Tensor x, Tensor w_gate, Tensor w_up, Tensor w_down, Tensor? b_gate=None, "
      "Tensor? b_up=None, Tensor? b_down=None, Tensor? residual=None, " +
      gate;
  const std::string norm_mlp =
      "Tensor x, Tensor norm_weight, Tensor w_gate, Tensor w_up, Tensor w_down, "
      "Tensor? x_residual=None, Tensor? b_gate=None, Tensor? b_up=None, Tensor? b_down=None, "
      "float eps=1e-6, float weight_offset=0.0, bool add_sum=False, " +
      gate;
  const std::string norm =
      "Tensor x, Tensor norm_weight, Tensor? x_residual=None, float eps=1e-6, "
      "float weight_offset=0.0";
  const std::string mlp_grad =
      "Tensor dy, Tensor x, Tensor w_gate, Tensor w_up, Tensor w_down, Tensor? g=None, "
      "Tensor? u=None, Tensor? b_gate=None, Tensor? b_up=None, " +
      gate;
  const std::string gate_mul = "Tensor g, Tensor u, " + gate + ", bool round_gate=False";
  const std::string is_static = ", bool weights_static=False";
  const std::string recompute = ", *, bool recompute=False";
  const std::string out = ", *, Tensor(a!) out) -> ()";
  // Of a process group's name, in Python (ranks.py); below them, of its peer buffers.
  const std::string next_norm =
      ", Tensor? next_norm=None, float next_eps=1e-6, float next_weight_offset=0.0) -> ";
  const std::string group = ", *, str group" + next_norm;
  const std::string ranks = ", *, int rank, int[] peers, int peer_bytes" + next_norm;
  for (const std::string& schema : {
           "gate_up(" + gate_up + is_static + ") -> Tensor",
           "gate_up.out(" + gate_up + is_static + out,
           "gate_up_save(" + gate_up + recompute + ") -> (Tensor h, Tensor g, Tensor u)",
           "down(" + down + ") -> Tensor",
           "down.out(" + down + out,
           "mlp(" + mlp + is_static + ") -> Tensor",
           std::string("mlp.plain(Tensor x, Tensor w_gate, Tensor w_up, Tensor w_down) -> Tensor"),
           "mlp.out(" + mlp + is_static + out,
           "mlp_save(" + mlp + recompute + ") -> (Tensor y, Tensor g, Tensor u)",
           "norm_mlp(" + norm_mlp + is_static + ") -> (Tensor y, Tensor x_sum)",
           "norm_mlp.out(" + norm_mlp + is_static +
               ", *, Tensor(a!) out, Tensor(b!)? x_sum=None) -> ()",
           "norm(" + norm + ") -> (Tensor n, Tensor x_sum)",
           "norm.out(" + norm + ", *, Tensor(a!) out, Tensor(b!)? x_sum=None) -> ()",
           "gate_mul(" + gate_mul + ") -> Tensor",
           "gate_mul.out(" + gate_mul + out,
           "gate_mul_grad(Tensor dh, " + gate_mul + ") -> (Tensor dg, Tensor du)",
           "gate_mul_grad.out(Tensor dh, " + gate_mul + ", *, Tensor(a!) dg, Tensor(b!) du) -> ()",
           "gate_up_grad(Tensor dy, Tensor w_down, Tensor g, Tensor u, " + gate +
               ") -> (Tensor dg, Tensor du, Tensor h)",
           "gate_up_grad.out(Tensor dy, Tensor w_down, Tensor g, Tensor u, " + gate +
               ", *, Tensor(a!) dg, Tensor(b!) du, Tensor(c!) h) -> ()",
           "mlp_grad(" + mlp_grad +
               ", bool need_x=True, bool need_weights=True, bool need_bias_gate_up=False, "
               "bool need_bias_down=False) -> (Tensor dx, Tensor dw_gate, Tensor dw_up, "
               "Tensor dw_down, Tensor db_gate, Tensor db_up, Tensor db_down)",
           "mlp_grad.out(" + mlp_grad +
               ", bool accumulate=False, *, Tensor(a!)? dx=None, Tensor(b!)? dw_gate=None, "
               "Tensor(c!)? dw_up=None, Tensor(d!)? dw_down=None, Tensor(e!)? db_gate=None, "
               "Tensor(f!)? db_up=None, Tensor(g!)? db_down=None) -> ()",
           "down_reduce(" + down + group + "(Tensor y, Tensor y_norm)",
           "mlp_reduce(" + mlp + is_static + group + "(Tensor y, Tensor y_norm)",
           "norm_mlp_reduce(" + norm_mlp + is_static + group +
               "(Tensor y, Tensor x_sum, Tensor y_norm)",
           "_down_reduce(" + down + ranks + "(Tensor y, Tensor y_norm, int wanted_bytes)",
           "_mlp_reduce(" + mlp + is_static + ranks + "(Tensor y, Tensor y_norm, int wanted_bytes)",
           "_norm_mlp_reduce(" + norm_mlp + is_static + ranks +
               "(Tensor y, Tensor x_sum, Tensor y_norm, int wanted_bytes)",
           std::string("_lies_in_a_pool(Tensor tensor) -> bool"),     // in Python: workspace.cpp
           std::string("_wants_gradient(Tensor[] tensors) -> bool"),  // in Python: call.cpp
       }) {
    library.def(schema.c_str());
  }
}
