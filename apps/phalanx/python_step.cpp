#include "python_step.h"

#include "core/engine_library.h"
#include "core/error.h"
#include "core/file.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace phalanx {
namespace {

namespace fs = std::filesystem;

constexpr int kNotStarted = 127;  // the shell's exit code for it

// A program started out of a build tree uses the package of that tree.
void set_python_path() {
  for (fs::path folder = fs::path(this_program()).parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    const fs::path package = folder / "python";
    if (fs::exists(package / "phalanx" / "version.txt")) {
      const char* before = std::getenv("PYTHONPATH");
      const std::string path =
          package.string() + (before != nullptr && *before != '\0' ? concat(":", before) : "");
      setenv("PYTHONPATH", path.c_str(), 1);
      return;
    }
  }
}

// Replaces this process. Only returns when the program cannot be started.
void exec(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) {
    pointers.push_back(const_cast<char*>(word.c_str()));
  }
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
}

std::vector<std::string> command_of(const std::string& module, const std::vector<std::string>& words) {
  std::vector<std::string> command = {environment_python(this_program()), "-m", module};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t got = read(fd, piece.data(), piece.size());
    if (got > 0) {
      text.append(piece.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      return text;
    }
  }
}

std::string last_line(std::string text) {
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

volatile std::sig_atomic_t child_of_handler = 0;

void pass_on(int signal) { kill(child_of_handler, signal); }

int exit_code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

void exec_python_step(const std::vector<std::string>& words) {
  const std::vector<std::string> command = command_of("phalanx", words);
  set_python_path();
  exec(command);
  fail<ConfigError>(command.front(), errno_text(errno),
                    "; set PHALANX_PYTHON to the python3 in whose environment phalanx is installed");
}

std::string run_python_step(const std::string& module, const std::vector<std::string>& words) {
  const std::vector<std::string> command = command_of(module, words);
  std::array<int, 2> ends;
  PHALANX_CHECK(pipe(ends.data()) == 0, Error, "pipe", errno_text(errno));
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  const pid_t child = fork();
  PHALANX_CHECK(child >= 0, Error, "fork", errno_text(errno));
  if (child == 0) {
    dup2(writing.get(), STDOUT_FILENO);
    set_python_path();
    exec(command);
    _exit(kNotStarted);
  }
  writing.close();
  const std::string output = read_all(reading.get());
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  PHALANX_CHECK(
      !WIFEXITED(status) || WEXITSTATUS(status) != kNotStarted, ConfigError, command.front(),
      ": could not be started; set PHALANX_PYTHON to the python3 in whose environment phalanx is installed");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw PythonStepFailed{exit_code_of(status)};
  }
  return last_line(output);
}

int run_python_program(const std::string& module, const std::vector<std::string>& words) {
  const std::vector<std::string> command = command_of(module, words);
  const pid_t child = fork();
  PHALANX_CHECK(child >= 0, Error, "fork", errno_text(errno));
  if (child == 0) {
    setsid();  // Ctrl-C reaches it once, through us
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    set_python_path();
    exec(command);
    _exit(kNotStarted);
  }
  child_of_handler = child;
  struct sigaction action {};
  action.sa_handler = pass_on;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    sigaction(signal, &action, nullptr);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return exit_code_of(status);
}

}  // namespace phalanx
