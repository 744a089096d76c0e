// A small JSON value, and a reader that is strict where the field's libraries are lenient.
//
// Refused, with file, line and column: duplicate keys, nesting deeper than the limit, integers beyond 64
// bits, invalid UTF-8, NUL in keys, NaN and Infinity, anything after the value. A UTF-8 byte order mark at
// the start is accepted once.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace phalanx {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // in the order of the text

  Json() = default;  // null
  Json(bool value) : value_(value) {}
  Json(int value) : value_(std::int64_t{value}) {}
  Json(std::int64_t value) : value_(value) {}
  Json(std::uint64_t value);  // throws Error beyond 2^63 - 1
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  // Throws IoError that begins with `file:line:column`.
  static Json parse(std::string_view text, std::string_view file, int max_depth = 64);
  static Json parse_file(const std::string& path, int max_depth = 64);
  // indent < 0 gives one line; doubles are written so that they read back to the same value.
  std::string dump(int indent = -1) const;

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  const char* kind() const;  // "null", "boolean", "integer", "number", "string", "array", "object"

  // These throw Error naming the kind found and the kind wanted.
  bool as_bool() const;
  std::int64_t as_integer() const;
  double as_number() const;  // integers too
  const std::string& as_string() const;
  const Array& as_array() const;
  Array& as_array();
  const Object& as_object() const;
  Object& as_object();

  const Json* find(std::string_view key) const;  // nullptr when absent or when this is no object
  const Json& at(std::string_view key) const;    // throws Error naming the key
  void set(std::string_view key, Json value);    // replaces, or appends; null becomes an object
  void push_back(Json value);                    // null becomes an array

  bool operator==(const Json&) const = default;

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace phalanx
