// Which gradients backward hands out together.
#pragma once
#include <string>

namespace phalanx {

// The layer that a parameter belongs to ("model.layers.7."), else the parameter itself.
inline std::string gradient_bucket(const std::string& parameter) {
  const std::string layers = "model.layers.";
  return parameter.starts_with(layers) ? parameter.substr(0, parameter.find('.', layers.size()) + 1)
                                       : parameter;
}

}  // namespace phalanx
