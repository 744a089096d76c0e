#include "core/json.h"

#include "core/error.h"
#include "core/text.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace phalanx {
namespace {

void write_string(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  constexpr std::string_view kShort = "btn fr";  // of \x08 ... \x0e, a blank where there is no short escape
  out += '"';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += text[i];
    } else if (byte >= 0x08 && byte < 0x08 + kShort.size() && kShort[byte - 0x08] != ' ') {
      out += '\\';
      out += kShort[byte - 0x08];
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      const std::size_t length = utf8_sequence_length(text, i);
      PHALANX_CHECK(length > 0, Error, "JSON can hold UTF-8 only: ", in_quotes(text));
      out.append(text.substr(i, length));
      i += length - 1;
    }
  }
  out += '"';
}

// The shortest digits that read back to the same double, with a point or an exponent so that it stays a
// double.
void write_double(double value, std::string& out) {
  PHALANX_CHECK(std::isfinite(value), Error, "JSON cannot hold ", value);
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  const std::string_view written(digits, static_cast<std::size_t>(end.ptr - digits));
  out += written;
  if (written.find_first_of(".e") == std::string_view::npos) {
    out += ".0";
  }
}

void new_line(int indent, int level, std::string& out) {
  if (indent >= 0) {
    out += '\n';
    out.append(static_cast<std::size_t>(indent) * level, ' ');
  }
}

void write(const Json& value, int indent, int level, std::string& out) {
  if (value.is_object()) {
    out += '{';
    const char* comma = "";
    for (const auto& [name, member] : value.as_object()) {
      out += comma;
      comma = ",";
      new_line(indent, level + 1, out);
      write_string(name, out);
      out += indent >= 0 ? ": " : ":";
      write(member, indent, level + 1, out);
    }
    if (!value.as_object().empty()) {
      new_line(indent, level, out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    const char* comma = "";
    for (const Json& element : value.as_array()) {
      out += comma;
      comma = ",";
      new_line(indent, level + 1, out);
      write(element, indent, level + 1, out);
    }
    if (!value.as_array().empty()) {
      new_line(indent, level, out);
    }
    out += ']';
  } else if (value.is_string()) {
    write_string(value.as_string(), out);
  } else if (value.is_integer()) {
    out += std::to_string(value.as_integer());
  } else if (value.is_number()) {
    write_double(value.as_number(), out);
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else {
    out += "null";
  }
}

[[noreturn]] void wrong_kind(const Json& value, const char* wanted) {
  fail("JSON value is of kind ", value.kind(), ", expected ", wanted);
}

}  // namespace

Json::Json(std::uint64_t value) : value_(static_cast<std::int64_t>(value)) {
  PHALANX_CHECK(value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()), Error,
                "JSON integer ", value, " does not fit 64 bits with a sign");
}

std::string Json::dump(int indent) const {
  std::string out;
  write(*this, indent, 0, out);
  return out;
}

const char* Json::kind() const {
  constexpr const char* kKinds[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
  return kKinds[value_.index()];
}

bool Json::as_bool() const {
  if (!is_bool()) {
    wrong_kind(*this, "boolean");
  }
  return std::get<bool>(value_);
}

std::int64_t Json::as_integer() const {
  if (!is_integer()) {
    wrong_kind(*this, "integer");
  }
  return std::get<std::int64_t>(value_);
}

double Json::as_number() const {
  if (!is_number()) {
    wrong_kind(*this, "number");
  }
  return is_integer() ? static_cast<double>(std::get<std::int64_t>(value_)) : std::get<double>(value_);
}

const std::string& Json::as_string() const {
  if (!is_string()) {
    wrong_kind(*this, "string");
  }
  return std::get<std::string>(value_);
}

const Json::Array& Json::as_array() const {
  if (!is_array()) {
    wrong_kind(*this, "array");
  }
  return std::get<Array>(value_);
}

Json::Array& Json::as_array() { return const_cast<Array&>(std::as_const(*this).as_array()); }

const Json::Object& Json::as_object() const {
  if (!is_object()) {
    wrong_kind(*this, "object");
  }
  return std::get<Object>(value_);
}

Json::Object& Json::as_object() { return const_cast<Object&>(std::as_const(*this).as_object()); }

const Json* Json::find(std::string_view key) const {
  if (!is_object()) {
    return nullptr;
  }
  for (const auto& [name, value] : as_object()) {
    if (name == key) {
      return &value;
    }
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  const Json* value = find(key);
  PHALANX_CHECK(value != nullptr, Error, "JSON ", kind(), " has no key ", in_quotes(key));
  return *value;
}

void Json::set(std::string_view key, Json value) {
  if (is_null()) {
    value_ = Object{};
  }
  for (auto& [name, member] : as_object()) {
    if (name == key) {
      member = std::move(value);
      return;
    }
  }
  as_object().emplace_back(std::string(key), std::move(value));
}

void Json::push_back(Json value) {
  if (is_null()) {
    value_ = Array{};
  }
  as_array().push_back(std::move(value));
}

}  // namespace phalanx
