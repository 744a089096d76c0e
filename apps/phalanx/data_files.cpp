#include "data_files.h"

#include "core/advice.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "python_step.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr int kLinesLookedAt = 64;
constexpr std::size_t kBytesLookedAt = 1 << 20;
constexpr const char* kBlank = " \t\r\n\xef\xbb\xbf";  // a byte order mark says nothing either

constexpr const char* kRecordCure =
    "; a record is one object, for example {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, "
    "{\"role\": \"assistant\", \"content\": \"...\"}]}";

void check_object(const Json& record, const std::string& where) {
  PHALANX_CHECK(record.is_object(), ConfigError, where, ": found ", record.kind(), "; expected an object",
                kRecordCure);
}

// One JSON value a line, as JSONL has it. The line breaks before it make the parser count the right line.
void check_lines(const std::string& path, std::ifstream& file) {
  std::string line;
  std::size_t bytes = 0;
  for (int number = 1; number <= kLinesLookedAt && bytes < kBytesLookedAt && std::getline(file, line);
       ++number) {
    bytes += line.size();
    if (line.find_first_not_of(kBlank) != std::string::npos) {
      const std::string breaks(number - 1, '\n');
      check_object(Json::parse(number == 1 ? line : breaks + line, path), concat(path, ":", number));
    }
  }
}

// An array of records, or an object around one; parsed whole if it is small.
void check_document(const std::string& path, std::uint64_t size) {
  if (size > kBytesLookedAt) {
    return;
  }
  const Json records = Json::parse_file(path);
  PHALANX_CHECK(!records.is_array() || !records.as_array().empty(), ConfigError, path,
                ": the array holds no record", kRecordCure);
  if (records.is_array()) {
    for (std::size_t i = 0; i < records.as_array().size(); ++i) {
      check_object(records.as_array()[i], concat(path, ": record ", i + 1));
    }
  }
}

// Whether the first line that is not blank is a JSON value of its own.
bool begins_with_a_record(std::ifstream& file) {
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find_first_not_of(kBlank);
    if (first == std::string::npos) {
      continue;
    }
    if (line[first] != '{') {
      return false;
    }
    try {
      return Json::parse(line, "").is_object();
    } catch (const IoError&) {
      return false;
    }
  }
  return false;
}

// The same reading as the Python step's: only a .json file may be one document.
void check_json_file(const std::string& path, std::uint64_t size) {
  std::ifstream file(path, std::ios::binary);
  std::string start(4096, '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(file.gcount()));
  PHALANX_CHECK(start.find_first_not_of(kBlank) != std::string::npos || size > start.size(), ConfigError,
                path, ": the file holds no record", kRecordCure);
  const auto rewind = [&] {
    file.clear();
    file.seekg(0);
  };
  rewind();
  const bool lines = fs::path(path).extension() != ".json" || begins_with_a_record(file);
  rewind();
  if (lines) {
    check_lines(path, file);
  } else {
    check_document(path, size);
  }
}

InputFile open_data_file(const std::string& path) {
  try {
    return InputFile(path);
  } catch (const IoError& error) {
    fail<ConfigError>(error.what(), "; name a regular file that you may read with --data");
  }
}

void check_data_file(const std::string& path) {
  const fs::file_status status = fs::status(path);
  PHALANX_CHECK(fs::exists(status), ConfigError, path, ": no such file; check the path given with --data");
  if (fs::is_directory(status)) {
    PHALANX_CHECK(is_prepared(path), ConfigError, path,
                  ": the folder holds no manifest.json, so `phalanx prepare` did not write it; name the data "
                  "files themselves");
    Json::parse_file((fs::path(path) / "manifest.json").string());
    return;
  }
  const InputFile file = open_data_file(path);
  PHALANX_CHECK(file.size() > 0, ConfigError, path, ": the file is empty", kRecordCure);
  const std::string extension = fs::path(path).extension();
  if (extension == ".json" || extension == ".jsonl" || extension == ".ndjson") {
    check_json_file(path, file.size());
  }
}

std::vector<std::string> prepare_group(const std::vector<std::string>& paths, const DataConfig& data,
                                       const std::string& model_folder) {
  std::vector<std::string> folders, files;
  std::partition_copy(paths.begin(), paths.end(), std::back_inserter(folders), std::back_inserter(files),
                      is_prepared);
  if (files.empty()) {
    return folders;
  }
  std::vector<std::string> words = {"prepare",   "--model",    model_folder, "--format",
                                    data.format, "--train-on", data.train_on};
  if (!data.chat_template.empty()) {
    words.insert(words.end(), {"--chat-template", data.chat_template});
  }
  words.push_back("--data");
  words.insert(words.end(), files.begin(), files.end());
  words.push_back("--print-folder");
  folders.push_back(run_python_step("phalanx", words));
  PHALANX_CHECK(is_prepared(folders.back()), Error, "phalanx prepare answered '", folders.back(),
                "', which is no folder of prepared data; are program and Python package of one version?");
  return folders;
}

}  // namespace

bool is_prepared(const std::string& path) { return fs::exists(fs::path(path) / "manifest.json"); }

bool needs_tokenizer(const DataConfig& data) {
  const auto raw = [](const std::string& path) { return !is_prepared(path); };
  return std::any_of(data.train.begin(), data.train.end(), raw) ||
         std::any_of(data.validation.begin(), data.validation.end(), raw);
}

void check_data_files(const DataConfig& data) {
  if (!data.chat_template.empty()) {
    with_advice("check the path given with --chat-template", [&] { InputFile{data.chat_template}; });
  }
  for (const auto* paths : {&data.train, &data.validation}) {
    for (const std::string& path : *paths) {
      const char* advice =
          is_prepared(path) ? "run `phalanx prepare` again" : "correct the file at this place";
      with_advice(advice, [&] { check_data_file(path); });
    }
  }
}

DataConfig prepare_data(const DataConfig& data, const std::string& model_folder) {
  DataConfig prepared = data;
  prepared.train = prepare_group(data.train, data, model_folder);
  prepared.validation = prepare_group(data.validation, data, model_folder);
  return prepared;
}

}  // namespace phalanx
