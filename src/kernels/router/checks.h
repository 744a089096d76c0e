// What every launcher of this folder checks.
#pragma once
#include "core/error.h"
#include "kernels/router/router.h"

namespace phalanx::kernels {

inline constexpr int kMaxRouterExperts = 512;
inline constexpr int kMaxRouterTopK = 32;

inline void check_router_shape(const RouterShape& shape) {
  PHALANX_CHECK(shape.experts >= 1 && shape.experts <= kMaxRouterExperts && shape.top_k >= 1 &&
                    shape.top_k <= kMaxRouterTopK && shape.top_k <= shape.experts,
                ConfigError, "router: ", shape.top_k, " experts per token of ", shape.experts,
                "; on a GPU there can be 1 to ", kMaxRouterExperts, " experts, and 1 to ", kMaxRouterTopK,
                " of them per token");
}

}  // namespace phalanx::kernels
