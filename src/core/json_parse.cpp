// nlohmann-json's parser reports events; what it is lenient about is refused here. The only file that
// includes it.
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <unordered_set>

namespace phalanx {
namespace {

// Walks over the text and tells, through `consumed`, how far the parser has come: its events carry no
// position.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(std::string_view text, std::size_t at, std::size_t* consumed)
      : text_(text), at_(at), consumed_(consumed) {}
  reference operator*() const { return text_[at_]; }
  CountingIterator& operator++() {
    *consumed_ = ++at_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  std::string_view text_;
  std::size_t at_;
  std::size_t* consumed_;
};

// "file:line:column: ", both from 1, columns in characters.
std::string position(std::string_view text, std::string_view file, std::size_t at) {
  const std::string_view before = text.substr(0, std::min(at, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  const auto column =
      1 + std::count_if(before.begin() + static_cast<std::ptrdiff_t>(line_start), before.end(),
                        [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return concat(file, ':', line, ':', column, ": ");
}

// Builds the value from the parser's events. An object being read keeps its keys in a set once they are many.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  Builder(std::string_view text, std::string_view file, int max_depth, const std::size_t& consumed)
      : text_(text), file_(file), max_depth_(static_cast<std::size_t>(max_depth)), consumed_(consumed) {}

  Json take() { return std::move(root_); }

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(number_integer_t value) { return add(Json(std::int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) {
    refuse_if(value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max()),
              number_start(), "integer ", value, " does not fit 64 bits with a sign");
    return add(Json(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& digits) {
    refuse_if(digits.find_first_of(".eE") == string_t::npos, number_start(), "integer ",
              printable(digits, 60), " does not fit 64 bits with a sign");
    return add(Json(value));
  }
  bool string(string_t& value) { return add(Json(std::move(value))); }
  bool binary(binary_t&) { return false; }  // no event of JSON text

  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(string_t& name) {
    refuse_if(name.find('\0') != string_t::npos, string_start(), "key ", in_quotes(name),
              " holds a NUL character");
    Scope& scope = scopes_.back();
    refuse_if(!scope.insert(name), string_start(), "key ", in_quotes(name), " occurs twice in this object");
    scope.container->as_object().emplace_back(std::move(name), Json());
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) {
    std::string message = error.what();
    for (const std::string_view start : {"syntax error", "number overflow"}) {
      if (const std::size_t at = message.find(start); at != std::string::npos) {
        message.erase(0, at);
        break;
      }
    }
    const bool at_end = message.find("unexpected end of input") != std::string::npos;
    refuse_if(true, at_end || consumed_ == 0 ? consumed_ : consumed_ - 1, printable(message, 300));
    return false;
  }

 private:
  struct Scope {
    static constexpr std::size_t kFewKeys = 16;
    Json* container;
    std::unordered_set<std::string> keys;  // filled from kFewKeys on

    bool insert(const std::string& name) {
      const Json::Object& members = container->as_object();
      if (members.size() < kFewKeys) {
        return std::none_of(members.begin(), members.end(),
                            [&](const auto& member) { return member.first == name; });
      }
      if (keys.empty()) {
        for (const auto& member : members) {
          keys.insert(member.first);
        }
      }
      return keys.insert(name).second;
    }
  };

  template <class... Pieces>
  void refuse_if(bool condition, std::size_t at, const Pieces&... pieces) const {
    if (condition) {
      fail<IoError>(position(text_, file_, at), pieces...);
    }
  }

  Json& place(Json value) {
    if (scopes_.empty()) {
      return root_ = std::move(value);
    }
    Json& container = *scopes_.back().container;
    if (container.is_object()) {
      return container.as_object().back().second = std::move(value);
    }
    return container.as_array().emplace_back(std::move(value));
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  bool open(Json container) {
    refuse_if(scopes_.size() >= max_depth_, consumed_ - 1, "nesting deeper than ", max_depth_, " levels");
    Json& placed =
        place(std::move(container));  // stays where it is: its parent does not grow before it is closed
    scopes_.push_back({&placed, {}});
    return true;
  }

  bool close() {
    scopes_.pop_back();
    return true;
  }

  // The parser has read the closing quote of a string: the opening one is the last unescaped quote before it.
  std::size_t string_start() const {
    std::size_t at = consumed_ - 1;
    while (at > 0) {
      --at;
      if (text_[at] == '"') {
        std::size_t slashes = 0;
        while (slashes < at && text_[at - 1 - slashes] == '\\') {
          ++slashes;
        }
        if (slashes % 2 == 0) {
          break;
        }
      }
    }
    return at;
  }

  // The parser has read a number and, unless the text ended, one character more.
  std::size_t number_start() const {
    constexpr std::string_view kNumber = "+-.0123456789eE";
    std::size_t at = consumed_;
    if (at > 0 && kNumber.find(text_[at - 1]) == std::string_view::npos) {
      --at;
    }
    while (at > 0 && kNumber.find(text_[at - 1]) != std::string_view::npos) {
      --at;
    }
    return at;
  }

  std::string_view text_;
  std::string_view file_;
  std::size_t max_depth_;
  const std::size_t& consumed_;
  Json root_;
  std::vector<Scope> scopes_;
};

}  // namespace

Json Json::parse(std::string_view text, std::string_view file, int max_depth) {
  // The parser takes a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail<IoError>(position(text, file, nul), "NUL character; this is no JSON text");
  }
  std::size_t consumed = 0;
  Builder builder(text, file, max_depth, consumed);
  nlohmann::json::sax_parse(CountingIterator(text, 0, &consumed),
                            CountingIterator(text, text.size(), &consumed), &builder);
  return builder.take();
}

Json Json::parse_file(const std::string& path, int max_depth) {
  return parse(read_text(path), path, max_depth);
}

}  // namespace phalanx
