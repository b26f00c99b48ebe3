# SPDX-License-Identifier: Apache-2.0
"""Sluice's Python side: checkpoints for the benches and the pages made from their results.

Modules are programs of their own (``python -m sluice.checkpoint``, ``python -m sluice.report``,
``python -m sluice.readme_tables``) and import only what they use.
"""
