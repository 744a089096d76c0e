// The gradients of a step, of all ranks together.
#pragma once
#include "models/parameter_set.h"
#include "ops/block.h"
#include "parallel/mesh.h"

namespace phalanx {

// Sums every gradient over the ranks that hold its parameter, in place: dense ones over all, those of experts over the ranks with the
// same experts, because a rank's experts have seen the tokens of the others already. One gradient per parameter, in order.
// -> norm of the whole gradient, the same bits on every rank. Collective.
double sum_over_ranks(const Mesh& mesh, const ParameterSet& parameters, const Tensors& gradients);

}  // namespace phalanx
