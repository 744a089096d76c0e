#include "models/spec/expert_shares.h"

#include "core/error.h"

namespace phalanx {

void check_expert_shares(const ModelSpec& spec, std::int64_t ep_size) {
  for (const LayerSpec& layer : spec.layers) {
    PHALANX_CHECK(!layer.feed_forward.router.has_value() || layer.feed_forward.router->num_experts >= ep_size,
                  ConfigError, "ep_size is ", ep_size, ", but a layer has ",
                  layer.feed_forward.router->num_experts,
                  " experts; each rank needs at least one: lower ep_size");
  }
}

}  // namespace phalanx
