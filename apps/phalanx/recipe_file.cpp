#include "recipe_file.h"

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>

namespace phalanx {
namespace {

constexpr std::uint64_t kMaxBytes = 1 << 20;
constexpr int kMaxValues = 10000;  // after unfolding the aliases
constexpr int kMaxDepth = 16;

const std::string kYamlTags = "tag:yaml.org,2002:";

// "?" is a plain value without a tag, "!" a quoted one.
bool is_plain_tag(const std::string& tag) {
  for (const char* name : {"str", "int", "float", "bool", "null", "map", "seq"}) {
    if (tag == kYamlTags + name) {
      return true;
    }
  }
  return tag.empty() || tag == "?" || tag == "!";
}

// Turns YAML nodes into JSON and notes the line of each key.
class Converter {
 public:
  explicit Converter(std::string path) : path_(std::move(path)) {}

  Json convert(const YAML::Node& node, const std::string& key, int depth) {
    check(++values_ <= kMaxValues && depth <= kMaxDepth, node, key,
          "the recipe unfolds to too many values; write it without nested aliases");
    check(is_plain_tag(node.Tag()), node, key,
          "found the tag " + in_quotes(node.Tag()) + "; a recipe holds plain values only");
    switch (node.Type()) {
      case YAML::NodeType::Map:
        return convert_map(node, key, depth);
      case YAML::NodeType::Sequence: {
        Json array = Json::array();
        for (const YAML::Node& item : node) {
          array.push_back(convert(item, key, depth + 1));
        }
        return array;
      }
      case YAML::NodeType::Scalar:
        return convert_scalar(node);
      default:
        return Json();
    }
  }

  std::string place(const std::string& key) const {
    const auto found = lines_.find(key);
    return found == lines_.end() ? path_ : concat(path_, ":", found->second);
  }

 private:
  Json convert_map(const YAML::Node& node, const std::string& prefix, int depth) {
    Json object = Json::object();
    for (const auto& member : node) {
      check(member.first.IsScalar(), member.first, prefix,
            "found a key that is no text; write `field: value`");
      const std::string name = member.first.Scalar();
      const std::string key = prefix.empty() ? name : prefix + "." + name;
      check(name != "<<", member.first, prefix, "merge keys (<<) are not supported; write the fields out");
      check(object.find(name) == nullptr, member.first, key,
            concat("the field is there twice, first in line ", lines_[key], "; keep one of them"));
      lines_[key] = member.first.Mark().line + 1;
      object.set(name, convert(member.second, key, depth + 1));
    }
    return object;
  }

  Json convert_scalar(const YAML::Node& node) {
    const std::string& text = node.Scalar();
    const bool quoted = node.Tag() == "!" || node.Tag() == kYamlTags + "str";
    const bool looks_like_json = text.starts_with('[') || text.starts_with('{') || text.starts_with('"');
    return quoted || looks_like_json ? Json(text) : value_from_text(text);
  }

  void check(bool good, const YAML::Node& node, const std::string& key, const std::string& problem) const {
    PHALANX_CHECK(good, ConfigError, path_, ":", node.Mark().line + 1, ":", node.Mark().column + 1, ": ", key,
                  key.empty() ? "" : ": ", problem);
  }

  std::string path_;
  std::map<std::string, int> lines_;
  int values_ = 0;
};

std::vector<YAML::Node> parse(const std::string& path, const std::string& text) {
  try {
    return YAML::LoadAll(text);
  } catch (const YAML::Exception& error) {
    fail<ConfigError>(
        path, ":", error.mark.line + 1, ":", error.mark.column + 1, ": not valid YAML: ", error.msg,
        "; check the indentation (spaces only) and the `name: value` form of this line and the one above");
  }
}

}  // namespace

void read_recipe(const std::string& path, ConfigDraft& draft) {
  PHALANX_CHECK(std::filesystem::is_regular_file(path), ConfigError, path,
                ": no such recipe file; check the path given with --config");
  const std::vector<YAML::Node> documents = parse(path, read_text(path, kMaxBytes));
  PHALANX_CHECK(!documents.empty() && !documents.front().IsNull(), ConfigError, path,
                ": the recipe is empty; write at least `model:`, `output:` and `data:`");
  PHALANX_CHECK(documents.size() == 1, ConfigError, path, ":", documents[1].Mark().line + 1, ": found ",
                documents.size(), " YAML documents; a recipe is one, without a `---` in the middle");
  PHALANX_CHECK(documents.front().IsMap(), ConfigError, path, ":", documents.front().Mark().line + 1,
                ": found no fields; a recipe is made of `name: value` lines");
  Converter converter(path);
  const Json values = converter.convert(documents.front(), "", 0);
  draft.merge(values, [&](const std::string& key) { return converter.place(key); });
}

}  // namespace phalanx
