// The version of Phalanx.
#pragma once

namespace phalanx {

// "MAJOR.MINOR.PATCH", as in the Python package. Never null.
const char* version();

}  // namespace phalanx
