// print_batches CONFIG.json COUNT
//
// The first COUNT micro-batches of a run in whose folder CONFIG.json lies, as the trainer takes them: a line of JSON each, the numbers of
// its samples, counted through the folders of the data. With them another program can train on the same batches.
#include "config/run_config.h"
#include "core/error.h"
#include "core/file.h"
#include "models/spec/model_spec.h"
#include "train/plan/run_data.h"

#include <iostream>
#include <string>

namespace phalanx {
namespace {

void print_batches(const std::string& path, std::int64_t count) {
  const RunConfig config = run_config_from_json(Json::parse(read_text(path), path), path);
  const auto data = open_training_data(config, load_model_spec(config.model).vocab_size);
  for (std::int64_t i = 0; i < count; ++i) {
    Json line = Json::array();
    for (const std::int64_t sample : data->next().sample_ids) {
      line.push_back(sample);
    }
    std::cout << line.dump() << "\n";
  }
}

}  // namespace
}  // namespace phalanx

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: print_batches CONFIG.json COUNT\n";
    return 2;
  }
  try {
    phalanx::print_batches(argv[1], std::stoll(argv[2]));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
