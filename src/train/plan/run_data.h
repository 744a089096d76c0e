// The data of a run, opened and checked as the trainer opens them.
#pragma once
#include "config/run_config.h"
#include "data/data_loader.h"

#include <cstdint>
#include <memory>
#include <string>

namespace phalanx {

// Throw ConfigError and IoError as DataLoader does. config.data names folders of prepared data.
std::unique_ptr<DataLoader> open_training_data(const RunConfig& config, std::int64_t vocab_size, int rank = 0,
                                               int world = 1);
// Null when the run validates on nothing.
std::unique_ptr<DataLoader> open_validation_data(const RunConfig& config, std::int64_t vocab_size,
                                                 int rank = 0, int world = 1);

// For a person: how many samples are used, in how many rows, and what was dropped or cut and would not be otherwise.
std::string describe(const DataLoader& data, const DataConfig& config);

}  // namespace phalanx
