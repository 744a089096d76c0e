// Text from files in messages: names of tensors and keys are foreign bytes and must not garble a terminal.
#pragma once
#include <string>
#include <string_view>

namespace phalanx {

// `text` with control characters and invalid UTF-8 escaped (\n, \x00), shortened in the middle to about
// `max_bytes`.
std::string printable(std::string_view text, std::size_t max_bytes = 200);

// The same between single quotes. (Not `quoted`: argument-dependent look-up would find std::quoted.)
std::string in_quotes(std::string_view text, std::size_t max_bytes = 200);

// Length of the valid UTF-8 sequence that starts at text[at], or 0.
std::size_t utf8_sequence_length(std::string_view text, std::size_t at);

}  // namespace phalanx
