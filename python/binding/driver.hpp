// SPDX-License-Identifier: Apache-2.0
// What of the CUDA driver is called directly. It is looked up in the process that the framework's
// CUDA half has loaded it into: the bindings also serve where there is none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "place.hpp"

namespace sluice_binding {

/// The graph capture that a stream is part of; id 0 for none.
struct Capture {
  std::uint64_t id = 0;
  void* graph = nullptr;  ///< a CUgraph
};
Capture capture_of(void* stream);

/// Memory of a CUDA device beside the framework's allocator, for the life of the process: of the
/// current context, which is the device's, or where the thread has none of its primary one, which
/// is current then. Also while a stream captures, and then no part of the graph.
void* allocate_for_good(const Place& place, std::size_t bytes);

/// Calls function(argument) when `graph`, which is being captured, and all that was instantiated
/// from it are gone. On a thread of the driver's, where no CUDA function may be called.
void at_end_of(void* graph, void (*function)(void*), void* argument);

}  // namespace sluice_binding
