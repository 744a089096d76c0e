// Training checkpoints: everything a run needs to go on as if it had never stopped.
//
//   CHECKPOINTS/step-00000012/model.safetensors      weights, names and shapes as in memory
//                             optimizer.safetensors  exp_avg.NAME, exp_avg_sq.NAME, master.NAME
//                             progress.json          step, data position, counters, the run's configuration
//                             manifest.json          XXH64 of progress.json and of every tensor, taken in memory before the write
//
// A folder appears under its name by one rename after everything in it is durable: what has the name is whole. Reading checks
// every checksum.
#pragma once
#include "core/json.h"
#include "train/optimizer.h"
#include "train/plan/checkpoint_folder.h"

#include <cstdint>
#include <string>
#include <unordered_map>

namespace phalanx {

// All tensors on the CPU and contiguous.
struct CheckpointTensors {
  NamedTensors model;
  NamedTensors optimizer;
};

CheckpointTensors on_host(
    const CheckpointTensors& tensors);  // those on the CPU as they are, copies of the others
void copy_tensors(const CheckpointTensors& from,
                  const CheckpointTensors& to);  // of the same names, in the same order

// Writes CHECKPOINTS/step-`step`; one of that name is replaced. Returns its path. Throws IoError, and leaves nothing behind then.
std::string save_training_checkpoint(const std::string& checkpoints, std::int64_t step, const Json& progress,
                                     const CheckpointTensors& tensors);

// Of tensors that hold a part of the checkpoint's rows: the first one, by the name of the parameter.
using FirstRows = std::unordered_map<std::string, std::int64_t>;

// Reads into the tensors given, which must be those of the checkpoint in name, dtype and shape. Throws IoError that names file and
// tensor.
void load_checkpoint_tensors(const std::string& folder, const CheckpointTensors& tensors,
                             const FirstRows& first_rows = {});
void load_checkpoint_weights(const std::string& folder, const NamedTensors& model,
                             const FirstRows& first_rows = {});  // the weights alone

}  // namespace phalanx
