// The Python half of the product: tokenizers, chat templates, downloads, plots. Run as `python -m phalanx...`.
#pragma once
#include <string>
#include <vector>

namespace phalanx {

// The Python step ended with `exit_code` after saying on stderr what is wrong: there is nothing to add.
struct PythonStepFailed {
  int exit_code;
};

// Goes on as `python -m phalanx WORDS...`; returns only by an exception.
[[noreturn]] void exec_python_step(const std::vector<std::string>& words);

// Runs `python -m MODULE WORDS...` to its end, its stderr on ours, and returns the last line that it wrote to stdout. Throws
// PythonStepFailed with its exit code.
std::string run_python_step(const std::string& module, const std::vector<std::string>& words);

// Runs it with our stdout and passes SIGTERM, SIGINT and SIGUSR1 on to it; it is ended when this process is. Returns its exit code.
int run_python_program(const std::string& module, const std::vector<std::string>& words);

}  // namespace phalanx
