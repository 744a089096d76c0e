#include "phalanx/version.h"

namespace phalanx {

const char* version() { return PHALANX_VERSION; }

}  // namespace phalanx
