// The program `phalanx`. It links no torch: what is wrong with the command line, the recipe, the model folder or the data is
// said at once; the engine is opened only to compute.
#include "bind/engine_c_api.h"
#include "commands.h"
#include "core/error.h"
#include "core/log.h"
#include "python_step.h"

#include <exception>
#include <filesystem>
#include <iostream>

namespace {

int failed(const std::exception& error, int exit_code) {
  std::cerr << "phalanx: error: " << error.what() << "\n";
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace phalanx;
  set_log_sink([](LogLevel level, std::string_view message) {
    std::cerr << "phalanx: " << (level == LogLevel::kInfo ? "" : concat(log_level_name(level), ": "))
              << message << "\n";
  });
  try {
    return run_command_line({finetune_command(), eval_command(), export_command(), inspect_command(),
                             plan_command(), prepare_command(), plot_command(), demo_command()},
                            argc, argv);
  } catch (const PythonStepFailed& step) {
    return step.exit_code;
  } catch (const ConfigError& error) {
    return failed(error, kPhalanxBadInput);
  } catch (const IoError& error) {
    return failed(error, kPhalanxBadInput);
  } catch (const std::filesystem::filesystem_error& error) {  // a path that cannot even be looked at
    const std::string what = concat(error.path1().string(), ": ", error.code().message(),
                                    "; check the path and the permissions of the folders on it");
    return failed(ConfigError(what), kPhalanxBadInput);
  } catch (const std::exception& error) {
    return failed(error, kPhalanxFailed);
  }
}
