// The token dispatcher over c10d's all-to-all: every backend, one host or several. A token travels once to each rank that holds one of
// its experts, not once per expert, and what a rank's experts make of it comes back as one row.
//
// c10d wants the number of rows on the host, so plan() waits for an exchange of P numbers before the first rows travel.
#pragma once
#include "parallel/mesh.h"

namespace phalanx {

// For the experts of `mesh`; null where every rank holds all of them.
std::shared_ptr<const TokenDispatcher> make_dispatcher(const Mesh& mesh);

}  // namespace phalanx
