// One rank of a training run, for the Python process that torchrun or `phalanx.launch` has started.
#include "bind/engine_c_api.h"
#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "parallel/mesh.h"
#include "train/trainer.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <iostream>

namespace phalanx {
namespace {

void print_of_first(LogLevel level, std::string_view message) {
  (level >= LogLevel::kWarning ? std::cerr << log_level_name(level) << ": " : std::cout)
      << message << std::endl;
}

void print_of_others(LogLevel, std::string_view) {}

// `config` is a resolved RunConfig as text, `groups` the names of torch.distributed's groups (parallel/mesh.h). -> a PhalanxExit and,
// where it is an error, the message.
std::tuple<std::int64_t, std::string> finetune_rank(const std::string& config,
                                                    const std::vector<std::string>& groups) {
  const Mesh mesh = make_mesh(groups.at(0), groups.at(1), groups.at(2));
  const LogSink former = set_log_sink(mesh.is_first() ? print_of_first : print_of_others);
  std::tuple<std::int64_t, std::string> result;
  try {
    const std::string where = "the resolved configuration";
    Trainer trainer(run_config_from_json(Json::parse(config, where), where), mesh);
    result = {trainer.run() == RunEnd::kFinished ? kPhalanxOk : kPhalanxInterrupted, ""};
  } catch (const ConfigError& error) {
    result = {kPhalanxBadInput, error.what()};
  } catch (const c10::Error& error) {
    result = {kPhalanxFailed, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    result = {kPhalanxFailed, error.what()};
  }
  set_log_sink(former);
  return result;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(phalanx, m) {
  m.def("finetune_rank(str config, str[] groups) -> (int exit_code, str message)", finetune_rank);
}

}  // namespace phalanx
