#include "core/text.h"

#include <array>

namespace phalanx {
namespace {

// The first continuation byte carries the checks against overlong forms, surrogates and values beyond
// U+10FFFF.
bool first_continuation_is_valid(unsigned char lead, unsigned char next) {
  switch (lead) {
    case 0xE0:
      return next >= 0xA0 && next <= 0xBF;
    case 0xED:
      return next >= 0x80 && next <= 0x9F;
    case 0xF0:
      return next >= 0x90 && next <= 0xBF;
    case 0xF4:
      return next >= 0x80 && next <= 0x8F;
    default:
      return next >= 0x80 && next <= 0xBF;
  }
}

std::string escaped(std::string_view text) {
  constexpr std::array<char, 17> kHex = {"0123456789abcdef"};
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_sequence_length(text, i);
    const bool plain = length > 1 || (length == 1 && byte >= 0x20 && byte != 0x7F);
    if (plain) {
      out.append(text.substr(i, length));
      i += length;
      continue;
    }
    if (byte == '\n') {
      out += "\\n";
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
    ++i;
  }
  return out;
}

}  // namespace

std::size_t utf8_sequence_length(std::string_view text, std::size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) {
    return 1;
  }
  const std::size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                             : lead >= 0xE0 && lead <= 0xEF ? 3
                             : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                            : 0;
  if (length == 0 || at + length > text.size()) {
    return 0;
  }
  if (!first_continuation_is_valid(lead, static_cast<unsigned char>(text[at + 1]))) {
    return 0;
  }
  for (std::size_t i = 2; i < length; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) {
      return 0;
    }
  }
  return length;
}

std::string printable(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) {
    return escaped(text);
  }
  const std::size_t half = max_bytes / 2;
  return escaped(text.substr(0, half)) + "..." + escaped(text.substr(text.size() - half));
}

std::string in_quotes(std::string_view text, std::size_t max_bytes) {
  return "'" + printable(text, max_bytes) + "'";
}

}  // namespace phalanx
