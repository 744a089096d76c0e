// Loops over rows on the CPU: run by torch's threads, each row by a function compiled for several instruction
// sets.
//
// A row function is a plain template, explicitly instantiated and marked
//   [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
// on x86-64, so that one binary runs everywhere and uses AVX-512 or AVX2 where the machine has it.
#pragma once
#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PHALANX_VECTORIZE [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define PHALANX_VECTORIZE  // the loader resolves clones before a sanitizer is ready
#endif

namespace phalanx::cpu {

// Sums and products are formed in this type.
template <class T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};
template <class T>
using compute_t = typename Compute<T>::type;

// Calls body(begin, end) over [0, rows), about `kGrainElements` elements of work a task.
template <class Body>
void parallel_rows(std::int64_t rows, std::int64_t elements_per_row, const Body& body) {
  constexpr std::int64_t kGrainElements = 32768;
  const std::int64_t grain =
      std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(1, elements_per_row));
  at::parallel_for(0, rows, grain, body);
}

}  // namespace phalanx::cpu
