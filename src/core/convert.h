// Conversion between the floating-point dtypes that weights are stored in.
#pragma once
#include "core/dtype.h"

#include <cstddef>

namespace phalanx {

// Between BF16, F16 and F32 in every direction, from any of them to F64, and from F64 to F32; and any dtype to itself.
bool can_convert(Dtype from, Dtype to);

// `count` elements, rounded to nearest even; beyond the range becomes infinity, NaN stays NaN. Going to a wider dtype and back gives
// the same bits, NaN included. `source` and `destination` do not overlap. Throws Error when can_convert says no.
void convert_elements(const void* source, Dtype from, void* destination, Dtype to, std::size_t count);

}  // namespace phalanx
