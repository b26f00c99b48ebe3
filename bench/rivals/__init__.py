# SPDX-License-Identifier: Apache-2.0
"""What bench/gpu_rivals.py is made of: cases, Sluice on tensors, the operators with their rivals, timing."""
